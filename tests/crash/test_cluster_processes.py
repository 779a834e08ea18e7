"""Brokers of a cluster as processes: killed, stopped, drained and joined by others, judged by a history of messages."""

import threading
import time
from pathlib import Path

import pytest
from tests.cluster_processes import PATIENCE_S, ClusterProcess, ProcessCluster
from tests.message_history import MessageHistory
from tests.raw_client import Closed, RawClient

TOPICS = 6


class Publisher(threading.Thread):
    """Publishes numbered messages one after the other, and goes on at the next broker when a connection ends."""

    def __init__(self, name: str, brokers: list[ClusterProcess], history: MessageHistory, qos: int) -> None:
        super().__init__(name=name, daemon=True)
        self._brokers, self._history, self._qos = brokers, history, qos
        self.stopping = threading.Event()
        self.error: BaseException | None = None
        self.longest_s = 0.0
        self.start()

    def run(self) -> None:
        try:
            self._publish()
        except BaseException as error:  # noqa: BLE001 - `end` raises it
            self.error = error

    def _publish(self) -> None:
        number, at, client = 0, 0, self._brokers[0].client(self.name)
        while not self.stopping.is_set():
            number += 1
            topic = f"t/{number % TOPICS}"
            payload = self._history.sent(self.name, topic, number, self._qos)
            began = time.monotonic()
            while True:
                try:
                    if not client.publish(topic, payload, self._qos).is_error:
                        self._history.acked(self.name, topic, number)
                        break
                except (Closed, OSError):
                    pass
                except AssertionError as error:
                    if "Disconnect(" not in str(error):  # the broker has said that it ends, in place of an answer
                        raise
                self._history.unsure(self.name, topic, number)
                client.close()
                at, client = self._connect(at + 1)
                if self._qos == 2:
                    break  # whether it was taken is not known to this client: it was, or was not, once
            self.longest_s = max(self.longest_s, time.monotonic() - began)
        client.close()

    def _connect(self, at: int) -> tuple[int, RawClient]:
        """Connect to a broker, or to the next one where that one ends just now."""
        while True:
            try:
                return at, self._brokers[at % len(self._brokers)].client(self.name)
            except (Closed, OSError):
                if self.stopping.wait(0.05):
                    raise
                at += 1

    def end(self) -> None:
        """Stop it, and raise what it has met."""
        self.stopping.set()
        self.join(PATIENCE_S)
        assert not self.is_alive(), "a publisher waits for ever"
        if self.error is not None:
            raise self.error


def receive_all(client: RawClient, history: MessageHistory) -> None:
    """Note what a subscriber gets until it has all that was acknowledged."""
    while not history.has_all("subscriber"):
        history.got("subscriber", client.message().payload)


def until(history: MessageHistory, more: int) -> None:
    """Wait until so many more messages are acknowledged."""
    goal, deadline = history.acked_count + more, time.monotonic() + PATIENCE_S
    while history.acked_count < goal:
        assert time.monotonic() < deadline, "nothing is acknowledged any more"
        time.sleep(0.01)


def test_one_broker_alone_that_is_killed_has_everything_when_it_is_back(tmp_path: Path) -> None:
    with ProcessCluster(tmp_path, 2) as cluster:
        broker = cluster.add("one")
        client = broker.client("away", clean_start=False, expiry=1000)
        client.subscribe("t/#", qos=2)
        client.close()
        publisher = broker.client("publisher")
        publisher.publish("kept", "retained", 1, retain=True)
        for number in range(30):
            assert not publisher.publish(f"t/{number % 3}", str(number), 1 + number % 2).is_error
        broker.kill()
        broker.start()
        client = broker.client("away", clean_start=False, expiry=1000)
        assert broker.connack.session_present
        got = client.payloads(30)
        assert sorted(got, key=int) == [str(number) for number in range(30)]
        client.subscribe("kept", qos=1)
        assert client.message().payload == b"retained"
        assert broker.drain() == 0


@pytest.mark.parametrize(
    "fault", ["kill", pytest.param("drain", marks=pytest.mark.soak), pytest.param("join", marks=pytest.mark.soak)]
)
def test_three_brokers_are_one_to_clients_whatever_happens_to_one(tmp_path: Path, fault: str) -> None:
    history = MessageHistory()
    with ProcessCluster(tmp_path, 6) as cluster:
        names = ["a", "b", "c"] if fault != "join" else ["a", "b"]
        a, b, *rest = [cluster.add(name) for name in names]
        cluster.until_spread(len(names))
        away = a.client("subscriber", clean_start=False, expiry=1000)
        away.subscribe("t/#", qos=2)
        publishers = [
            Publisher(f"p{qos}{name}", brokers, history, qos)
            for qos in (1, 2)
            for name, brokers in (("b", [b, a]), ("a", [a]))
        ]
        until(history, 100)
        away.close()  # it misses some, and goes on elsewhere
        until(history, 100)
        began = time.monotonic()
        if fault == "kill":
            b.kill()
        elif fault == "drain":
            assert b.drain() == 0
        else:
            rest.append(cluster.add("c"))
            cluster.until_spread(3)
        until(history, 200)
        print(f"{fault}: all publishers go on after {time.monotonic() - began:.1f} s")
        for publisher in publishers:
            publisher.end()
            print(f"{publisher.name}: the longest wait for an answer took {publisher.longest_s:.2f} s")
        subscriber = rest[0].client("subscriber", clean_start=False, expiry=1000)
        assert rest[0].connack.session_present
        receive_all(subscriber, history)
        assert history.problems("subscriber") == []
