"""One client's session: its subscriptions, what is under way to it, and what waits.

Pure: what is to be sent comes back as bytes. A session takes what it is given until its window or its output is full.
Then messages of the log are left there (`lag` says from which offset on, and the session pulls them later), and
messages that are in no log wait in a queue of at most `queue_bytes`; beyond it the oldest QoS 0 ones are dropped.
"""

from collections import deque
from dataclasses import dataclass, field

from everlog.base import Records, gather
from everlog.mqtt import MAX_PACKET_BYTES, PublishWriter
from everlog.sessions.window import NOT_KEPT, Window


@dataclass(frozen=True, slots=True)
class Subscribed:
    """A subscription as the session holds it; `since` is the offset in each shard that it begins at."""

    filter: str
    qos: int
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0
    identifier: int = 0
    since: tuple[int, ...] = ()


@dataclass(eq=False, slots=True)
class Delivery:
    """How messages of some topics go to one session: the sum of its subscriptions that match them."""

    session: "Session"
    qos: int
    identifiers: bytes = b""
    retain_as_published: bool = False
    no_local: bool = False


@dataclass(slots=True)
class Piece:
    """Rows of a batch on their way to a session."""

    records: Records
    rows: bytearray | None
    start: int
    stop: int
    delivery: Delivery
    bytes: int = 0

    def row(self) -> int:
        """The first row that is left."""
        if self.rows is None:
            return self.start
        return int.from_bytes(self.rows[4 * self.start : 4 * self.start + 4], "little")


@dataclass(slots=True)
class Counters:
    """What happened to a session's messages."""

    sent: int = 0
    dropped: int = 0
    expired: int = 0


@dataclass(eq=False, slots=True)
class Session:
    """The state of one client id, connected or not; one thread owns it."""

    client_id: str
    version: int = 4
    expiry_s: int = 0  # 0 ends with the connection, 0xFFFFFFFF never
    max_inflight: int = 2048
    max_packet_bytes: int = MAX_PACKET_BYTES
    max_aliases: int = 0
    queue_bytes: int = 4 << 20
    subscriptions: dict[str, Subscribed] = field(default_factory=dict)
    lag: dict[int, int] = field(default_factory=dict)  # shard -> first offset not handed over
    counters: Counters = field(default_factory=Counters)
    user: str | None = None
    ready: bool = False  # connected, and its output has room
    over_quota: bool = False
    _window: Window | None = None
    _received: bytearray | None = None
    _queue: deque[Piece] | None = None
    queued_bytes: int = 0
    _writers: dict[tuple[bytes, bool], PublishWriter] = field(default_factory=dict)

    @property
    def durable(self) -> bool:
        """Whether it outlives its connection."""
        return self.expiry_s > 0

    @property
    def window(self) -> Window:
        """What is under way; made when the first QoS 1 or 2 message goes out."""
        if self._window is None:
            self._window = Window(self.max_inflight)
        return self._window

    @property
    def inflight(self) -> int:
        """How many messages are under way."""
        return 0 if self._window is None else self._window.inflight

    @property
    def received(self) -> bytearray:
        """The QoS 2 packet ids taken from the client and not released, as a bit set; made when first needed."""
        if self._received is None:
            self._received = bytearray(8192)
        return self._received

    @property
    def waiting(self) -> bool:
        """Whether anything is left to hand over when there is room again."""
        return bool(self._queue) or bool(self.lag)

    def pending(self) -> list[tuple[int, int, int]]:
        """What is under way, oldest first: (packet id, state, position)."""
        return [] if self._window is None else self._window.pending()

    def shares_runs(self, shard: int) -> bool:
        """Whether a QoS 0 run for the session now is the same bytes as for any other of its version."""
        return (
            self.ready
            and not self._queue
            and shard not in self.lag
            and self.max_aliases == 0
            and self.max_packet_bytes >= MAX_PACKET_BYTES
        )

    def writer(self, delivery: Delivery) -> PublishWriter:
        """The writer for a delivery; aliases belong to the connection, so only the plain one uses them."""
        key = (delivery.identifiers, delivery.retain_as_published)
        writer = self._writers.get(key)
        if writer is None:
            aliases = 0 if delivery.identifiers or delivery.retain_as_published else self.max_aliases
            writer = PublishWriter(
                self.version, self.max_packet_bytes, aliases, delivery.retain_as_published, delivery.identifiers
            )
            self._writers[key] = writer
        return writer

    def connected(self, version: int, max_inflight: int, max_packet_bytes: int, max_aliases: int) -> None:
        """A connection serves the session from now on, with the client's own limits."""
        self.version = version
        self.max_inflight = max_inflight
        self.max_packet_bytes = max_packet_bytes
        self.max_aliases = max_aliases
        self._writers.clear()
        if self._window is not None:
            self._window.limit = max_inflight
        self.ready = True

    def push(self, piece: Piece, shard: int, now_us: int) -> bytes:
        """The bytes for as much of a piece as fits; the rest stays in the log, or waits if it is in none."""
        if not self.ready or self._queue or shard in self.lag:
            self._hold(piece, shard)
            return b""
        data = self._write(piece, shard, now_us)
        if piece.start < piece.stop:
            self._hold(piece, shard)
        return data

    def drain(self, now_us: int) -> bytes:
        """The bytes for what waited in the queue, as far as there is room."""
        queue = self._queue
        if not queue or not self.ready:
            return b""
        out = []
        while queue:
            piece = queue[0]
            out.append(self._write(piece, NOT_KEPT, now_us))
            if piece.start < piece.stop:
                break
            self.queued_bytes -= piece.bytes
            queue.popleft()
        return b"".join(out)

    def _write(self, piece: Piece, shard: int, now_us: int) -> bytes:
        """Write what the window has room for; `piece.start` is where that ended."""
        writer = self.writer(piece.delivery)
        qos = piece.delivery.qos
        counters = self.counters
        if qos == 0:
            data = writer.write(piece.records, piece.rows, piece.start, piece.stop, 0, 1, now_us)
            piece.start = piece.stop
            counters.sent += writer.written
            counters.expired += writer.left_out
            return data
        window = self.window
        out = []
        while piece.start < piece.stop:
            room = window.room()
            start = piece.start
            data = writer.write(
                piece.records, piece.rows, start, piece.stop, qos, window.next_id, now_us, False, room
            )
            window.sent(writer, piece.records, piece.rows, start, shard)
            piece.start = writer.stopped_at
            counters.sent += writer.written
            counters.expired += writer.left_out
            out.append(data)
            if piece.start == start:
                break
        return out[0] if len(out) == 1 else b"".join(out)

    def _hold(self, piece: Piece, shard: int) -> None:
        """Leave a piece for later: in the log if it is there, else in the queue, within its limit."""
        if shard != NOT_KEPT:
            self.lag.setdefault(shard, piece.records.offset(piece.row()))
            return
        if self._queue is None:
            self._queue = deque()
        held = compact(piece)
        self._queue.append(held)
        self.queued_bytes += held.bytes
        while self.queued_bytes > self.queue_bytes:
            self._shed()

    def _shed(self) -> None:
        """The queue is over its limit: the oldest QoS 0 messages go; with none, the session is over its quota."""
        assert self._queue is not None
        for place, piece in enumerate(self._queue):
            if piece.delivery.qos == 0:
                del self._queue[place]
                break
        else:
            piece = self._queue.popleft()
            self.over_quota = True
        self.queued_bytes -= piece.bytes
        self.counters.dropped += piece.stop - piece.start

    def disconnected(self) -> None:
        """No connection serves the session any more; what waited in no log is gone with it."""
        self.ready = False
        self._writers.clear()
        if self._queue:
            self.counters.dropped += sum(piece.stop - piece.start for piece in self._queue)
            self._queue.clear()
            self.queued_bytes = 0


def compact(piece: Piece) -> Piece:
    """The same rows, in a batch of their own when they are few, so that a slow client does not hold large batches."""
    records, count = piece.records, piece.stop - piece.start
    if 2 * count < records.count:
        if piece.rows is None:
            rows = bytearray(b"".join(i.to_bytes(4, "little") for i in range(piece.start, piece.stop)))
        else:
            rows = piece.rows[4 * piece.start : 4 * piece.stop]
        records = gather([(records, rows)], True)
        return Piece(records, None, 0, count, piece.delivery, records.size)
    return Piece(records, piece.rows, piece.start, piece.stop, piece.delivery, records.size)
