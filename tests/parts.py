"""Parts of a broker without the rest of it: a router on a log in memory, and what it is made of."""

from collections.abc import Callable
from typing import Any

from everlog.base import AckRun, MessageColumns, TopicTable
from everlog.broker.delivery.audiences import Audiences
from everlog.broker.delivery.kept_topics import SPILLED as SPILLED
from everlog.broker.delivery.kept_topics import KeptTopics
from everlog.broker.delivery.pending_acks import AckQueue
from everlog.broker.delivery.read_plan import ReadPlans
from everlog.broker.delivery.retained_messages import RetainedMessages
from everlog.broker.delivery.router import Router
from everlog.broker.groups import GroupOptions, GroupRegistry
from everlog.mqtt import Decoder, Publish, encode
from everlog.sessions import Session, Subscribed, Terms
from everlog.topics import parse_filter
from tests.memory_log import MemoryLog


def make_kept_topics(table: TopicTable, shard_of: Callable[[bytes], int]) -> KeptTopics:
    """Make the table of what is kept."""
    return KeptTopics(table, shard_of)


def make_audiences(table: TopicTable, groups: Any, cached: int = 1000, max_bytes: int = 64 << 20) -> Audiences:
    """Make the audiences of topics."""
    return Audiences(table, groups.target, cached, max_bytes)


def make_read_plans(log: Any) -> ReadPlans:
    """Make what decides how sessions that are behind read a log."""
    return ReadPlans(log)


class SinkClient:
    """A sink that knows the payloads it was sent."""

    def __init__(self, session: Session) -> None:
        self.answered: list[tuple[bytes, int]] = []
        self.payloads: list[str] = []
        self.ids: list[int] = []
        self.session = session
        self.queue = AckQueue(self)
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

    def answer(self, acks: bytes, pubacks: int) -> None:
        """Take answers that waited for the log."""
        self.answered.append((acks, pubacks))


class RouterStage:
    """A router, its log and its clients; `turn` does what the event loop would."""

    def __init__(
        self, shards: int = 1, manual: bool = False, max_topics: int = 1000, spill_bytes: int = 0, forwarder: Any = None
    ) -> None:
        self.log = MemoryLog(shards, manual)
        self.table = TopicTable(0, max_topics)
        self.soon: list[Callable[[], None]] = []
        self.now_us = 1
        retained = RetainedMessages(1000, 1 << 20)
        self.router = Router(
            self.log,
            self.table,
            retained,
            self.soon.append,
            lambda: self.now_us,
            1000,
            spill_bytes=spill_bytes,
            forwarder=forwarder,
        )
        self.groups = GroupRegistry(self.router, GroupOptions(), lambda: 0.0, self.soon.append, lambda key: None)
        self.router.use(self.groups, None)
        self.audiences, self.kept = self.router.audiences, self.router.kept
        self.time_reads(lambda: 0.0)  # turns end by bytes, not by how busy the machine is
        self._decoder = Decoder(MessageColumns(16), self.table, version=4)

    def client(self, *filters: str, qos: int = 1, inflight: int = 100) -> SinkClient:
        """Connect a client with these subscriptions."""
        session = Session("c", expiry_s=100)
        client = self.connect(session, inflight)
        for text in filters:
            self.subscribe(session, Subscribed(text, qos))
        return client

    def subscribe(self, session: Session, one: Subscribed) -> None:
        """Subscribe a connected session."""
        session.subscribe(one)
        flt = parse_filter(one.filter)
        if flt.group is not None:
            self.groups.join(session, flt, one)
        self.router.subscribe(session, flt, one)

    def connect(self, session: Session, inflight: int) -> SinkClient:
        """Connect a session, as it is."""
        session.connected(Terms(expiry_s=session.expiry_s, max_inflight=inflight))
        client = SinkClient(session)
        self.router.attach(session, client)
        return client

    def disconnect(self, client: SinkClient) -> None:
        """Take a client's sink away."""
        self.router.detach(client.session)

    # Transient clients

    def transient(self, name: str, queue_bytes: int, inflight: int) -> SinkClient:
        """Connect a client whose session ends with its connection."""
        return self.connect(Session(name, queue_bytes=queue_bytes), inflight)

    def unsubscribe(self, session: Session, text: str) -> None:
        """Have a connected session give up a filter."""
        session.unsubscribe(text)
        flt = parse_filter(text)
        self.router.unsubscribe(session, flt)
        if flt.group is not None:
            self.groups.leave(session, flt)
            self.groups.unsubscribed(session, flt)

    def end(self, client: SinkClient) -> None:
        """End a transient client's connection, and its session with it."""
        session = client.session
        for text in session.subscriptions:
            flt = parse_filter(text)
            self.router.unsubscribe(session, flt)
            self.groups.leave(session, flt)
        self.router.detach(session)
        for _ in self.groups.left(session):
            pass
        session.disconnected(self.now_us)
        for _ in self.groups.ended(session):
            pass

    def puback(self, client: SinkClient, count: int = 1 << 16) -> None:
        """Acknowledge so many messages as a client does, for its groups too."""
        ids = [packet_id for packet_id, _, _ in client.session.pending()[:count]]
        if ids:
            client.session.acked(AckRun(4, b"".join(one.to_bytes(2, "little") for one in ids), bytes(len(ids))))
            self.router.acked(client.session)

    def commit(self) -> None:
        """Commit everything that was appended, and hand it on."""
        self.log.commit_now()
        self.router.committed()

    def sweep(self) -> None:
        """Do what is done once a second."""
        self.groups.sweep(0.0)
        self.router.spills.sweep()
        self.turn()

    def publish(
        self, *payloads: str, topic: str = "t", qos: int = 1, sink: SinkClient | None = None, turn: bool = True
    ) -> None:
        """Publish messages that came in one piece."""
        packets = [Publish(topic, one.encode(), qos, packet_id=7 if qos else 0) for one in payloads]
        for run in self._decoder.feed(b"".join(encode(one, 4) for one in packets)):
            self.router.publish(run, sink and sink.queue, b"ack" if sink else b"", len(packets))
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
        self.router.catchup.pump(client.session)

    def resume(self, client: SinkClient) -> None:
        """Send again what is under way, then read on."""
        self.router.catchup.resume(client.session)

    def forget(self, client: SinkClient) -> None:
        """Read for a client no more."""
        self.router.catchup.forget(client.session)

    def retry(self) -> None:
        """Try reads that failed once more."""
        self.router.catchup.retry()

    def time_reads(self, clock: Callable[[], float]) -> None:
        """Set the clock by which reading takes turns."""
        self.router.catchup._clock = clock


def numbers(*bounds: int) -> list[str]:
    """Return the numbers of a range as payloads."""
    return [str(number) for number in range(*bounds)]
