"""A shared group with members at three broker processes, one of which is killed and one drained."""

import contextlib
import socket
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from tests.cluster_load import wait_until
from tests.cluster_processes import PATIENCE_S, ClusterProcess, ProcessCluster
from tests.crash.test_cluster_processes import Publisher, until
from tests.message_history import MessageHistory
from tests.raw_client import Closed, RawClient

from everlog.mqtt import Disconnect, Puback, Pubcomp, Publish, Pubrec, Pubrel

FILTER = "$share/workers/t/#"


class Worker(threading.Thread):
    """A member that acknowledges what it gets, and goes on at the next broker when its connection ends."""

    def __init__(self, name: str, brokers: list[ClusterProcess], got: list[bytes], text: str = FILTER) -> None:
        super().__init__(name=name, daemon=True)
        self._brokers, self._got = brokers, got
        self._received: set[int] = set()  # QoS 2 packet ids that were not released
        self._at = 0
        self.client = self._connect()
        assert self.client.subscribe(text, qos=2) == (2,)
        self.stopping = threading.Event()
        self.error: BaseException | None = None
        self.start()

    def _connect(self) -> RawClient:
        return self._brokers[self._at % len(self._brokers)].client(self.name, clean_start=False, expiry=1000)

    def run(self) -> None:
        while not self.stopping.is_set():
            try:
                self._take(self.client)
            except TimeoutError:
                continue
            except (Closed, OSError, AssertionError) as error:
                if isinstance(error, AssertionError) and "within a packet" not in str(error):
                    self.error = error
                    return
                if self.stopping.is_set():
                    return
                self._go_on()

    def _go_on(self) -> None:
        self.client.close()
        while not self.stopping.is_set():
            self._at += 1
            try:
                self.client = self._connect()
                return
            except (Closed, OSError):  # that broker ends just now: the next one
                self.stopping.wait(0.05)
            except AssertionError as error:
                self.error = error
                self.stopping.set()

    def _take(self, client: RawClient) -> None:
        packet = client.receive()
        if isinstance(packet, Publish):
            if packet.qos < 2 or packet.packet_id not in self._received:
                self._got.append(packet.payload)  # first of all: what is acknowledged comes never again
            if packet.qos == 2:
                self._received.add(packet.packet_id)
                client.send(Pubrec(packet.packet_id))
            elif packet.qos == 1:
                client.send(Puback(packet.packet_id))
        elif isinstance(packet, Pubrel):
            self._received.discard(packet.packet_id)
            client.send(Pubcomp(packet.packet_id))
        else:
            assert isinstance(packet, Disconnect), packet
            raise Closed

    def end(self) -> None:
        """Stop it, and raise what it has met."""
        self.stopping.set()
        with contextlib.suppress(OSError):
            self.client.socket.shutdown(socket.SHUT_RDWR)
        self.join(PATIENCE_S)
        self.client.close()
        assert not self.is_alive()
        if self.error is not None:
            raise self.error


def problems(history: MessageHistory, got: list[bytes]) -> list[str]:
    """Return what was acknowledged and nobody got, and what came twice at QoS 2."""
    counts = Counter(got)
    missing = [f"{one} is lost" for one in history.payloads_acked() if not counts[one]]
    twice = [f"{one} came {counts[one]} times" for one in history.payloads(2) if counts[one] > 1]
    return sorted(missing + twice)


def work_through(tmp_path: Path, between: int, rounds: int = 0) -> None:
    """Kill a broker and drain another, with so many messages in between; or do so in rounds, and start both again."""
    history, got = MessageHistory(), list[bytes]()
    with ProcessCluster(tmp_path, 4) as cluster:
        brokers = [cluster.add(name) for name in "abc"]
        cluster.until_spread(3)
        order = [brokers[at:] + brokers[:at] for at in range(3)]
        workers = [Worker(f"w{at}", some, got) for at, some in enumerate(order)]
        publishers = [Publisher(f"p{qos}{at}", some, history, qos) for at, some in enumerate(order) for qos in (1, 2)]
        until(history, between)
        if not rounds:
            brokers[0].kill()  # the first of all deals for the group
            until(history, between)
            assert brokers[1].drain() == 0
            until(history, between)
        for number in range(rounds):
            killed, drained = brokers[number % 3], brokers[(number + 1) % 3]
            killed.kill()
            until(history, between)
            killed.start()
            cluster.until_spread(3)
            assert drained.drain() == 0
            until(history, between)
            drained.start()
            cluster.until_spread(3)
            until(history, between)
        began = time.monotonic()
        for publisher in publishers:
            publisher.end()
        deadline = time.monotonic() + PATIENCE_S
        while set(history.payloads_acked()) - set(got) and time.monotonic() < deadline:
            assert not [worker.error for worker in workers if worker.error]
            time.sleep(0.05)
        for worker in workers:
            worker.end()
        print(f"{time.monotonic() - began:.1f} s from the last message to the end")
        print(f"{len(got)} messages to members, {history.acked_count} acknowledged to publishers")
        assert problems(history, got) == []


def test_members_at_three_brokers_lose_nothing_when_one_is_killed_and_one_drained(tmp_path: Path) -> None:
    work_through(tmp_path, 60)


@pytest.mark.soak
def test_groups_move_to_brokers_that_join_and_nothing_is_lost_or_comes_twice(tmp_path: Path) -> None:
    history, got = MessageHistory(), [list[bytes]() for _ in range(6)]
    held = "select number, count(*) from session_groups join incarnations on holder = number where is_alive group by 1"
    with ProcessCluster(tmp_path, 4) as cluster:
        brokers = [cluster.add("a")]
        workers = [Worker(f"w{at}a", brokers, some, f"$share/g{at}/t/#") for at, some in enumerate(got)]
        publishers = [Publisher(f"p{qos}", brokers, history, qos) for qos in (1, 2)]
        for name, counts in (("b", [3, 3]), ("c", [2, 2, 2])):
            until(history, 100)
            brokers.append(cluster.add(name))
            here = brokers[-1:]
            workers += [Worker(f"w{at}{name}", here, some, f"$share/g{at}/t/#") for at, some in enumerate(got)]
            wait_until(lambda counts=counts: sorted(dict(cluster.rows(held)).values()) == counts, "groups do not move")
        publishers += [Publisher(f"q{qos}", brokers[2:], history, qos) for qos in (1, 2)]
        until(history, 200)
        for publisher in publishers:
            publisher.end()
        acked = set(history.payloads_acked())
        wait_until(lambda: any(one.error for one in workers) or all(acked <= set(one) for one in got), "one is lost")
        for worker in workers:
            worker.end()
        print(f"{sum(map(len, got))} messages to members of 6 groups, {history.acked_count} acknowledged to publishers")
        twice = [one for some in got for one, count in Counter(some).items() if count > 1]
        assert [problems(history, some) for some in got] == [[]] * 6
        assert not twice, "no broker was lost, so nothing had to come twice"


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_members_at_three_brokers_lose_nothing_whoever_is_killed_and_drained(tmp_path: Path) -> None:
    work_through(tmp_path, 300, 3)
