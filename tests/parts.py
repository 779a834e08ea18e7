"""Parts of a broker without the rest of it: a router on a log in memory, and what it is made of."""

from collections.abc import Callable
from typing import Any

from everlog.base import MessageColumns, TopicTable
from everlog.broker.audience import Audiences
from everlog.broker.course import Courses
from everlog.broker.keep import Keep
from everlog.broker.router import Router
from everlog.mqtt import Decoder, Publish, encode
from everlog.sessions import Session, Subscribed
from everlog.topics import parse_filter
from tests.memory_log import MemoryLog


def make_keep(table: TopicTable, shard_of: Callable[[bytes], int], cached: int = 1000) -> Keep:
    """Make the table of what is kept."""
    return Keep(table, shard_of, cached)


def make_audiences(table: TopicTable, cached: int = 1000) -> Audiences:
    """Make the audiences of topics."""
    return Audiences(table, cached)


def make_courses(log: Any) -> Courses:
    """Make what decides how sessions that are behind read a log."""
    return Courses(log)


class SinkClient:
    """A sink that knows the payloads it was sent."""

    def __init__(self, session: Session) -> None:
        self.held = 0
        self.answered: list[tuple[bytes, int]] = []
        self.payloads: list[str] = []
        self.ids: list[int] = []
        self.session = session
        self._decoder = Decoder(MessageColumns(16), TopicTable(0), version=4, from_client=False)

    def write(self, data: bytes) -> None:
        """Take PUBLISHes."""
        for event in self._decoder.feed(data):
            columns = event.columns
            for row in range(event.start, event.stop):
                place = slice(4 * row, 4 * row + 4)
                start, end = (
                    int.from_bytes(column[place], "little") for column in (columns.payload_starts, columns.payload_ends)
                )
                self.payloads.append(bytes(columns.source[start:end]).decode())
                self.ids.append(int.from_bytes(columns.packet_ids[2 * row : 2 * row + 2], "little"))

    def answer(self, data: bytes, count: int) -> None:
        """Take answers that waited for the log."""
        self.answered.append((data, count))


class RouterStage:
    """A router, its log and its clients; `turn` does what the event loop would."""

    def __init__(self, shards: int = 1, manual: bool = False, max_topics: int = 1000) -> None:
        self.log = MemoryLog(shards, manual)
        self.table = TopicTable(0, max_topics)
        self.audiences = make_audiences(self.table)
        self.keep = make_keep(self.table, self.log.shard_of)
        self.soon: list[Callable[[], None]] = []
        self.now_us = 1
        self.router = Router(self.log, self.table, self.audiences, self.keep, self.soon.append, lambda: self.now_us)
        self._decoder = Decoder(MessageColumns(16), self.table, version=4)

    def client(self, *filters: str, qos: int = 1, inflight: int = 100) -> SinkClient:
        """Connect a client with these subscriptions."""
        session = Session("c", expiry_s=100)
        client = self.connect(session, inflight)
        for text in filters:
            session.subscriptions[text] = Subscribed(text, qos)
            self.audiences.subscribe(session, parse_filter(text), session.subscriptions[text])
        return client

    def connect(self, session: Session, inflight: int) -> SinkClient:
        """Connect a session, as it is."""
        session.connected(4, inflight, 1 << 28, 0)
        client = SinkClient(session)
        self.router.delivering.sinks[session] = client
        return client

    def disconnect(self, client: SinkClient) -> None:
        """Take a client's sink away."""
        del self.router.delivering.sinks[client.session]
        self.forget(client)

    def publish(
        self, *payloads: str, topic: str = "t", qos: int = 1, sink: SinkClient | None = None, turn: bool = True
    ) -> None:
        """Publish messages that came in one piece."""
        packets = [Publish(topic, one.encode(), qos, packet_id=7 if qos else 0) for one in payloads]
        for run in self._decoder.feed(b"".join(encode(one, 4) for one in packets)):
            self.router.publish(run, sink, b"ack" if sink else b"", len(packets))
        if turn:
            self.turn()

    def turn(self) -> None:
        """Do what waits for the next turns of the loop, until nothing does."""
        while self.soon:
            self.soon.pop(0)()

    def ack(self, client: SinkClient, count: int = 1 << 16) -> None:
        """Acknowledge so many messages."""
        session = client.session
        for packet_id, _, _ in session.pending()[:count]:
            session.window.forget(packet_id)
        self.pump(client)

    # Sessions that are behind

    def pump(self, client: SinkClient) -> None:
        """Read on for a client."""
        self.router.pulling.pump(client.session)

    def resume(self, client: SinkClient) -> None:
        """Send again what is under way, then read on."""
        self.router.pulling.resume(client.session)

    def forget(self, client: SinkClient) -> None:
        """Read for a client no more."""
        self.router.pulling.forget(client.session)

    def retry(self) -> None:
        """Try reads that failed once more."""
        self.router.pulling.retry()

    def time_reads(self, clock: Callable[[], float]) -> None:
        """Set the clock by which reading takes turns."""
        self.router.pulling._clock = clock


def numbers(*bounds: int) -> list[str]:
    """Return the numbers of a range as payloads."""
    return [str(number) for number in range(*bounds)]
