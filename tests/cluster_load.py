"""Clients of a cluster that keep what MQTT asks of them, whatever happens to brokers: publishers and subscribers with
sessions, each in a thread, that note in a history what they were told and got.
"""

import contextlib
import itertools
import socket
import threading
import time
from collections.abc import Callable, Sequence

from everlog.mqtt import Disconnect, Puback, Pubcomp, Publish, Pubrec, Pubrel, Reason
from tests.cluster_processes import PATIENCE_S, ClusterProcess
from tests.message_history import MessageHistory
from tests.raw_client import Closed, RawClient

EXPIRY_S = 10_000


class LoadThread(threading.Thread):
    """A client that goes on at the next broker of its list when a connection ends; `end` raises what it has met."""

    def __init__(self, name: str, brokers: Sequence[ClusterProcess], history: MessageHistory) -> None:
        super().__init__(name=name, daemon=True)
        self._brokers = itertools.cycle(brokers)
        self._history = history
        self.stopping = threading.Event()
        self.moving = threading.Event()  # set: connect to the next broker now
        self.error: BaseException | None = None
        self.moves: list[float] = []  # how long each way to another broker took
        self.client: RawClient
        self.at: ClusterProcess

    def run(self) -> None:
        try:
            self._connect()
            while not self.is_done():
                try:
                    self._step()
                except (Closed, OSError):
                    self.moving.set()
                if self.moving.is_set() and not self.is_done():
                    self.moving.clear()
                    began = time.monotonic()
                    self._connect()
                    self.moves.append(time.monotonic() - began)
            self.client.close()
        except BaseException as error:  # noqa: BLE001 - `end` raises it
            self.error = error

    def is_done(self) -> bool:
        return self.stopping.is_set()

    def _connect(self) -> None:
        while True:
            broker = next(self._brokers)
            if broker.is_over:
                raise ConnectionError("the cluster is gone")
            if broker.process.poll() is not None or broker.is_frozen:
                time.sleep(0.002)
                continue
            try:
                self.client = broker.client(self.name, clean_start=False, expiry=EXPIRY_S)
            except (Closed, OSError, AssertionError):
                time.sleep(0.002)
                continue  # it ended meanwhile
            self.at = broker
            self._connected(broker.connacks[self.name].session_present)
            return

    def _connected(self, is_known: bool) -> None:
        raise NotImplementedError

    def _step(self) -> None:
        raise NotImplementedError

    def move(self) -> None:
        """Go on at the next broker now."""
        self.moving.set()
        if not hasattr(self, "client"):
            return  # it has not found a broker yet
        with contextlib.suppress(OSError):
            self.client.socket.shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        """Stop it when it has ended what it began, and raise what it has met."""
        self.stopping.set()
        while self.is_alive() and not self.is_done():
            self.join(0.01)
        if self.is_alive():
            self.move()
        self.join(PATIENCE_S)
        assert not self.is_alive(), f"{self.name} waits for ever"
        if self.error is not None:
            raise self.error


class SessionPublisher(LoadThread):
    """Publishes one message after the other, each again until it is answered for; at QoS 2 it is there once."""

    def __init__(
        self, name: str, brokers: Sequence[ClusterProcess], history: MessageHistory, topics: Sequence[str], qos: int
    ) -> None:
        super().__init__(name, brokers, history)
        self._topics, self._qos = topics, qos
        self._number = 0
        self._sent: Publish | None = None
        self._is_released = self._is_released_again = False
        self._was_there = False
        self.longest_s = 0.0
        self.waits: list[float] = []
        self._began = 0.0
        self.start()

    def is_done(self) -> bool:
        return self.stopping.is_set() and self._sent is None

    def _connected(self, is_known: bool) -> None:
        assert is_known or not self._was_there, f"the session of {self.name} is lost"
        self._was_there = True
        self._is_released_again = self._is_released
        if self._sent is None:
            return
        self._history.unsure(self.name, self._sent.topic, self._number)
        again = Publish(self._sent.topic, self._sent.payload, self._qos, False, True, self._sent.packet_id)
        self._send(Pubrel(again.packet_id) if self._is_released else again)

    def _send(self, packet: Publish | Pubrel) -> None:
        try:
            self.client.send(packet)
        except OSError:
            self.moving.set()

    def _step(self) -> None:
        if self._sent is None:
            self._number += 1
            topic = self._topics[self._number % len(self._topics)]
            payload = self._history.sent(self.name, topic, self._number, self._qos)
            self._sent = Publish(topic, payload, self._qos, False, False, self._number % 65_535 + 1)
            self._is_released = self._is_released_again = False
            self._began = time.monotonic()
            self._send(self._sent)
        answer = self.client.receive()
        if isinstance(answer, Disconnect):
            raise Closed
        if isinstance(answer, Pubrec):
            self._is_released = True
            self._send(Pubrel(answer.packet_id))
            return
        assert isinstance(answer, Puback | Pubcomp), answer
        if answer.packet_id != self._sent.packet_id:
            return  # of the message before: it was answered for twice
        # [MQTT 5, 3.7.2.1] not to know the packet id is no error of who gets a PUBREL again
        is_done = self._is_released_again and answer.reason is Reason.PACKET_IDENTIFIER_NOT_FOUND
        assert is_done or not answer.reason.is_error, answer
        self._history.acked(self.name, self._sent.topic, self._number)
        self.waits.append(time.monotonic() - self._began)
        self._sent = None


class SessionSubscriber(LoadThread):
    """Gets everything at QoS 2, over any number of connections; `end` waits until it has all that was acknowledged."""

    def __init__(
        self, name: str, brokers: Sequence[ClusterProcess], history: MessageHistory, pattern: str = "t/#"
    ) -> None:
        super().__init__(name, brokers, history)
        self._pattern = pattern
        self._unreleased: set[int] = set()
        self._seen: set[bytes] = set()
        self._before: set[bytes] = set()  # seen over connections that are over
        self.is_there = threading.Event()
        self.start()
        assert self.is_there.wait(PATIENCE_S), self.error

    def is_done(self) -> bool:
        return self.stopping.is_set() and self._history.has_all(self.name)

    def _connected(self, is_known: bool) -> None:
        if not self.is_there.is_set():
            self.client.subscribe(self._pattern, qos=2)
            self.is_there.set()
            return
        assert is_known, f"the session of {self.name} is lost"
        self._before = set(self._seen)

    def _step(self) -> None:
        packet = self.client.receive()
        if isinstance(packet, Publish) and packet.qos == 1:
            if packet.payload not in self._before:  # after a new connection a message of QoS 1 may come again
                self._history.got(self.name, packet.payload)
                self._seen.add(packet.payload)
            self._send(Puback(packet.packet_id))
        elif isinstance(packet, Publish):
            if packet.packet_id not in self._unreleased:
                self._unreleased.add(packet.packet_id)
                self._history.got(self.name, packet.payload)
            self._send(Pubrec(packet.packet_id))
        elif isinstance(packet, Pubrel):
            self._unreleased.discard(packet.packet_id)
            self._send(Pubcomp(packet.packet_id))
        elif isinstance(packet, Disconnect):
            raise Closed

    def _send(self, packet: Puback | Pubrec | Pubcomp) -> None:
        try:
            self.client.send(packet)
        except OSError:
            self.moving.set()


def until_acked(history: MessageHistory, more: int) -> None:
    """Wait until so many more messages are acknowledged."""
    goal = history.acked_count + more
    wait_until(lambda: history.acked_count >= goal, "nothing is acknowledged any more")


def wait_until(condition: Callable[[], object], why: str) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, why
        time.sleep(0.01)
