"""Subscribers that are slower than a burst, on topics that are not kept: a real broker loses nothing and closes nobody.

The publisher has 500 messages of 2 KB in flight and is acknowledged at once; each subscriber takes one at a time.
"""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.broker_process import BrokerProcess
from tests.listening import eventually
from tests.raw_client import Closed, RawClient
from tests.system.serving import PATIENCE_S, Probe, Served

from everlog.mqtt import Puback, Publish

COUNT = 9_000
WINDOW = 500
PADDING = bytes(2_000)
NOTHING_KEPT = {"keep__filters": "[]", "log__segment_bytes": "4MiB"}


class Publisher:
    """A client in a thread that publishes numbers to topics in turn, as fast as it is acknowledged."""

    def __init__(self, port: int, count: int = COUNT, ahead_of: "Subscriber | None" = None) -> None:
        self.sent = threading.Semaphore(0)  # a permit for each message that is acknowledged
        self._count = count
        self._ahead_of = ahead_of  # by three windows at most
        self._client = RawClient(port, 4)
        self._client.connect("publisher")
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with self._client:
            for number in range(self._count + WINDOW):
                if number >= WINDOW:
                    self._client.answer(Puback)
                    self.sent.release()
                if number < self._count:
                    while self._ahead_of is not None and number > len(self._ahead_of.got) + 3 * WINDOW:
                        time.sleep(0.001)
                    payload = b"%08d" % number + PADDING
                    self._client.send(Publish("t/" + "ab"[number % 2], payload, 1, packet_id=number % 60_000 + 1))

    def acknowledged(self, count: int) -> None:
        """Wait until so many more of its messages are."""
        for _ in range(count):
            assert self.sent.acquire(timeout=PATIENCE_S)

    def join(self) -> None:
        """Wait until all of them are."""
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()


class Subscriber:
    """A client that handles its messages one by one."""

    def __init__(self, port: int, name: str, text: str = "t/#", **connect: object) -> None:
        self.got: list[int] = []
        self.client = RawClient(port, 4, receive_buffer=16_384)
        self.client.connect(name, **connect)
        self.client.subscribe(text, qos=1)

    def take(self, count: int) -> None:
        """Take so many messages."""
        for _ in range(count):
            self.got.append(int(self.client.message().payload[:8]))

    def take_until(self, last: int) -> None:
        """Take messages until one has this number."""
        while not self.got or self.got[-1] != last:
            self.take(1)


def wait_for_port(port: int) -> None:
    """Wait until a broker that was just started listens."""

    def listens() -> bool:
        with socket.socket() as one:
            return one.connect_ex(("127.0.0.1", port)) == 0

    eventually(listens, "the broker listens", PATIENCE_S)


@contextmanager
def served(tmp_path: Path, **settings: object) -> Iterator[tuple[Served, ExitStack]]:
    """A broker with a probe that is under way, and clients that are closed at the end."""
    data = tmp_path / "data"
    with Served(data, **NOTHING_KEPT, **settings) as broker, Probe(broker.port) as probe, ExitStack() as stack:
        yield broker, stack
        probe.goes_on()


def test_a_burst_spills_and_everything_comes_in_order(tmp_path):
    with served(tmp_path) as (broker, stack):
        slow, quick = (Subscriber(broker.port, name) for name in ("slow", "quick"))
        stack.callback(slow.client.close)
        stack.callback(quick.client.close)
        publisher = Publisher(broker.port)
        thread = threading.Thread(target=quick.take, args=(COUNT,))
        thread.start()
        publisher.acknowledged(COUNT // 3)
        broker.until("spills_total", 1)
        slow.take(COUNT)
        thread.join(PATIENCE_S)
        publisher.join()
        assert slow.got == quick.got == list(range(COUNT))
        broker.down_to("spilled", 0)
        after = Publisher(broker.port, 600)
        kept = broker.metrics()["messages_kept_total"]
        for one in (slow, quick):
            one.take(600)
            assert one.got[COUNT:] == list(range(600))
        after.join()
        found = broker.metrics()
        assert found["over_quota_total"] == found["messages_dropped_total"] == found["messages_lost_total"] == 0
        assert found["messages_kept_total"] == kept, "the filters were let go"


@pytest.mark.parametrize("sync_ms", [40, pytest.param(400, marks=pytest.mark.slow)])
def test_a_slow_disk_slows_the_publisher_and_loses_nothing(tmp_path, sync_ms):
    with BrokerProcess(tmp_path, "--set", "keep.filters=[]", sync_ms=sync_ms) as broker:
        wait_for_port(broker.port)
        slow = Subscriber(broker.port, "slow")
        publisher = Publisher(broker.port, 3_000)
        publisher.acknowledged(1_500)
        slow.take(3_000)
        publisher.join()
        slow.client.close()
        assert slow.got == list(range(3_000))


def test_a_broker_that_is_killed_forgets_what_was_spilled(tmp_path):
    with BrokerProcess(tmp_path, "--set", "keep.filters=[]") as broker:
        wait_for_port(broker.port)
        slow = Subscriber(broker.port, "slow")
        publisher = Publisher(broker.port, 3_000)
        publisher.join()
        broker.kill()
        slow.client.close()
        broker.start()
        wait_for_port(broker.port)
        again = Subscriber(broker.port, "slow")
        Publisher(broker.port, 600).join()
        again.take(600)
        again.client.close()
        assert again.got == list(range(600))


def test_a_spilled_client_that_is_killed_leaves_nothing_and_begins_anew(tmp_path):
    with served(tmp_path) as (broker, stack):
        durable = Subscriber(broker.port, "durable", "t/a", clean_start=False)
        stack.callback(durable.client.close)
        doomed = Subscriber(broker.port, "doomed")
        publisher = Publisher(broker.port, COUNT)
        publisher.acknowledged(COUNT // 3)
        broker.until("spills_total", 1)
        doomed.take(100)
        for odd in (0, 1):  # what is kept for the other one has an order of its own
            mine = [number for number in doomed.got if number % 2 == odd]
            assert mine == list(range(odd, odd + 2 * len(mine), 2))
        doomed.client.close()
        broker.down_to("spilled", 0)
        again = Subscriber(broker.port, "doomed")
        stack.callback(again.client.close)
        publisher.join()
        last = Publisher(broker.port, 2)
        while {0, 1} - set(again.got):
            again.take(1)
        last.join()
        for odd in (0, 1):
            mine = [number for number in again.got if number % 2 == odd]
            assert mine == [*range(mine[0], COUNT, 2), odd][-len(mine) :]
        durable.take(COUNT // 2)
        assert durable.got == list(range(0, COUNT, 2))
        broker.down_to("spilled", 0)
        assert broker.metrics()["over_quota_total"] == 0


def test_a_clean_group_spills_and_each_message_goes_to_one_member(tmp_path):
    with served(tmp_path) as (broker, stack):
        members = [Subscriber(broker.port, name, "$share/g/t/#") for name in ("first", "second")]
        for one in members:
            stack.callback(one.client.close)
        publisher = Publisher(broker.port)
        publisher.acknowledged(COUNT // 3)
        broker.until("spills_total", 1)
        threads = [threading.Thread(target=_take_all, args=(one,)) for one in members]
        for thread in threads:
            thread.start()
        publisher.join()
        broker.down_to("spilled", 0)
        broker.down_to("inflight_messages", 0)
        with RawClient(broker.port, 4) as last:
            last.connect("last")
            for _ in members * 4:
                last.publish("t/end", b"%08d" % COUNT, 1)
        for thread in threads:
            thread.join(PATIENCE_S)
        got = sorted(number for one in members for number in one.got if number < COUNT)
        assert got == list(range(COUNT))
        assert broker.metrics()["over_quota_total"] == 0


def _take_all(member: Subscriber) -> None:
    member.take_until(COUNT)


def test_beyond_the_limit_the_slowest_is_closed_and_others_go_on(tmp_path):
    with served(tmp_path, limits__spill_bytes="6MiB") as (broker, stack):
        deaf, slow = (Subscriber(broker.port, name) for name in ("deaf", "slow"))
        stack.callback(deaf.client.close)
        stack.callback(slow.client.close)
        publisher = Publisher(broker.port, 3 * COUNT, ahead_of=slow)
        goes_on = threading.Thread(target=slow.take, args=(3 * COUNT,))
        publisher.acknowledged(2 * WINDOW)
        goes_on.start()
        broker.until("over_quota_total", 1)
        publisher.join()
        goes_on.join(PATIENCE_S)
        assert slow.got == list(range(3 * COUNT))
        told = (tmp_path / "broker.log").read_text()
        assert "limit limit=spill_bytes client=deaf" in told
        try:
            deaf.take(3 * COUNT)
        except (Closed, ConnectionError):
            assert deaf.got == list(range(len(deaf.got)))
        else:
            raise AssertionError("it was not closed")
