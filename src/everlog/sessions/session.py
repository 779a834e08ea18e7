"""One client's session: its subscriptions, what is under way to it, and what waits.

Pure: what is to be sent comes back as bytes. A session takes what it is given until its window or its output is full.
Then messages of the log are left there (`lag` says from which offset on, and the session pulls them later), and
messages that are in no log wait in a queue of at most `queue_bytes`; beyond it the oldest QoS 0 ones are dropped.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, TypeAlias

from everlog.base import NOT_KEPT, unpack_position
from everlog.mqtt import MAX_PACKET_BYTES, PublishWriter, Will
from everlog.sessions.pieces import Delivery, Piece, held
from everlog.sessions.unlogged import Unlogged, with_ids
from everlog.sessions.window import Window

__all__ = ["Counters", "Delivery", "Piece", "Session", "Subscribed"]
_FEED_BYTES = 64 << 10  # retained messages written at a time
_MAX_OWN = 10_000  # stretches of the session's own messages that it must not get; of more, the oldest are forgotten


Sent: TypeAlias = tuple[int, list[int]]  # the first of packet ids one after the other, and the positions they are for


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
    position: bool = False  # its messages carry their position and time


@dataclass(slots=True)
class Counters:
    """What happened to a session's messages."""

    sent: int = 0
    dropped: int = 0
    expired: int = 0
    lost: int = 0  # offsets that the log did not have any more when the session asked for them


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
    no_local: int = 0  # how many of its subscriptions have No Local
    again: deque[tuple[int, int, int]] | None = None  # what was under way at the last connection, to be sent again
    unlogged: Unlogged | None = None
    feeds: deque[Iterator[Piece]] | None = None  # retained messages for new subscriptions, taken as there is room
    _own: dict[int, list[tuple[int, int]]] | None = None  # shard -> stretches of offsets that it published itself
    _window: Window | None = None
    _received: bytearray | None = None
    _queue: deque[Piece] | None = None
    queued_bytes: int = 0
    _writers: dict[tuple[bytes, bool, bool], PublishWriter] = field(default_factory=dict)
    away_us: int = 0  # when its client left, 0 while it is there
    kept: bool = False  # it was durable when it began: its filters are kept, and the tables know it
    will: Will | None = None  # what is published when the client stays away too long
    ahead: bool = False  # packet ids of QoS 2 messages were given that no table knows of yet
    unsure: list[tuple[int, int, bytes]] = field(default_factory=list)  # shard, end, QoS 2 ids not known committed
    doubt: dict[int, int] = field(default_factory=dict)  # shard -> below it, messages may have been sent before
    memberships: list[Any] | None = None  # in shared groups with a cursor, while it is connected

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
    def known_ids(self) -> bytearray | None:
        """The same set, or None while it was never needed."""
        return self._received

    @property
    def next_id(self) -> int:
        """The packet id that the next message gets."""
        return 1 if self._window is None else self._window.next_id

    def packed_inflight(self) -> bytes:
        """What is under way, as `Window.packed` gives it."""
        return b"" if self._window is None else self._window.packed()

    @property
    def waiting(self) -> bool:
        """Whether anything is left to hand over when there is room again."""
        return bool(self._queue) or bool(self.lag) or bool(self.again) or bool(self.feeds)

    @property
    def in_memory_only(self) -> bool:
        """Whether it owes its client something that no log and no table has."""
        return bool(self.feeds) or bool(self._own) or (self.unlogged is not None and self.inflight > 0)

    @property
    def queued(self) -> bool:
        """Whether messages that are in no log wait."""
        return bool(self._queue)

    def pending(self) -> list[tuple[int, int, int]]:
        """What is under way, oldest first: (packet id, state, position)."""
        return [] if self._window is None else self._window.pending()

    def shares_runs(self, shard: int) -> bool:
        """Whether a QoS 0 run for the session now is the same bytes as for any other of its version."""
        return (
            self.ready
            and not self._queue
            and not self.again
            and shard not in self.lag
            and self.max_aliases == 0
            and self.max_packet_bytes >= MAX_PACKET_BYTES
        )

    def writer(self, delivery: Delivery) -> PublishWriter:
        """The writer for a delivery; aliases belong to the connection, so only the plain one uses them."""
        key = (delivery.identifiers, delivery.retain_as_published, delivery.position)
        writer = self._writers.get(key)
        if writer is None:
            aliases = self.max_aliases if key == (b"", False, False) else 0
            writer = PublishWriter(
                self.version,
                self.max_packet_bytes,
                aliases,
                delivery.retain_as_published,
                delivery.identifiers,
                delivery.position,
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
        self.no_local = sum(one.no_local for one in self.subscriptions.values())
        self.over_quota = False
        self.ready = True

    def published(self, shard: int, start: int, end: int, floor: int) -> None:
        """These offsets are its own messages; below `floor` it has been handed everything."""
        if self._own is None:
            self._own = {}
        stretches = [one for one in self._own.get(shard, ()) if one[1] > floor]
        if stretches and stretches[-1][1] == start:
            start = stretches.pop()[0]
        self._own[shard] = [*stretches[1 - _MAX_OWN :], (start, end)]

    def own(self, shard: int) -> list[tuple[int, int]]:
        """The stretches of offsets in a shard that it published itself, as far as it may still be handed them."""
        return [] if self._own is None else self._own.get(shard, [])

    def push(self, piece: Piece, shard: int, now_us: int) -> bytes:
        """The bytes for as much of a piece as fits; the rest stays in the log, or waits if it is in none."""
        if not self.ready or self._queue or self.again or shard in self.lag:
            self._hold(piece, shard)
            return b""
        data = self._write(piece, shard, now_us)
        if piece.start < piece.stop:
            self._hold(piece, shard)
        return data

    def deal(self, piece: Piece, shard: int, now_us: int, tag: int, again: bool) -> tuple[bytes, list[Sent]]:
        """The bytes of a piece that a shared group gives to the session, and what is under way by that.

        The caller knows that the window has room for all of it.
        """
        sent: list[Sent] = []
        data = self._write(piece, shard, now_us, tag, again, sent)
        return data, sent

    def deal_again(self, piece: Piece, packet_id: int, position: int, now_us: int, tag: int) -> bytes:
        """The bytes of the one message of a piece, with the packet id that it had and DUP; none if it has expired."""
        writer = self.writer(piece.delivery)
        shard, _ = unpack_position(position)
        data = writer.write(
            piece.records, piece.rows, piece.start, piece.stop, 1, packet_id, now_us, True, 65_535, shard
        )
        self.counters.sent += writer.written
        self.counters.expired += writer.left_out
        if data:
            self.window.take_back(packet_id, 1, position, tag)
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

    def feed(self, pieces: Iterator[Piece]) -> None:
        """Retained messages to send by and by; newer messages need not wait for them."""
        if self.feeds is None:
            self.feeds = deque()
        self.feeds.append(pieces)

    def take_feed(self, now_us: int) -> bytes:
        """The bytes of some retained messages, as far as there is room."""
        out: list[bytes] = []
        size = 0
        while self.feeds and self.ready and not self._queue and size < _FEED_BYTES:
            if self._window is not None and self._window.room() == 0:
                break  # before the next is looked at: it may be another by then
            piece = next(self.feeds[0], None)
            if piece is None:
                self.feeds.popleft()
                continue
            data = self._write(piece, NOT_KEPT, now_us)
            if piece.start < piece.stop:
                self.feeds[0] = chain((piece,), self.feeds[0])
                break
            out.append(data)
            size += len(data)
        return b"".join(out)

    def _write(
        self,
        piece: Piece,
        shard: int,
        now_us: int,
        tag: int = 0,
        again: bool = False,
        sent: list[Sent] | None = None,
    ) -> bytes:
        """Write what the window has room for; `piece.start` is where that ended. `sent` is told what has an id."""
        writer = self.writer(piece.delivery)
        qos = piece.delivery.qos
        counters = self.counters
        if qos == 0:
            data = writer.write(piece.records, piece.rows, piece.start, piece.stop, 0, 1, now_us, False, 0, shard)
            piece.start = piece.stop
            counters.sent += writer.written
            counters.expired += writer.left_out
            return data
        window = self.window
        if tag == 0:
            again = bool(self.doubt) and self._in_doubt(piece, shard)
        out = []
        while piece.start < piece.stop:
            room = window.room()
            start = piece.start
            data = writer.write(
                piece.records, piece.rows, start, piece.stop, qos, window.next_id, now_us, again, room, shard
            )
            first_id = window.next_id
            window.sent(writer, piece.records, piece.rows, start, shard, tag)
            if sent is not None:
                if writer.ids_used:
                    sent.append((first_id, window.newest(writer.ids_used)))
            elif writer.ids_used and (piece.delivery.group is not None or (shard == NOT_KEPT and self.expiry_s)):
                self._remember(piece, writer, first_id, start, shard)
            piece.start = writer.stopped_at
            counters.sent += writer.written
            counters.expired += writer.left_out
            out.append(data)
            if qos == 2 and data and (self.expiry_s or tag):
                self.ahead = True
            if piece.start == start:
                break
        return out[0] if len(out) == 1 else b"".join(out)

    def _remember(self, piece: Piece, writer: PublishWriter, first_id: int, start: int, shard: int) -> None:
        if self.unlogged is None:
            self.unlogged = Unlogged()
        rows = Piece(piece.records, piece.rows, start, writer.stopped_at, piece.delivery)
        if writer.ids_used < writer.stopped_at - start:
            rows = with_ids(piece, start, writer.stopped_at, writer.scratch)
        self.unlogged.add(first_id, rows, shard, self.window)

    def _in_doubt(self, piece: Piece, shard: int) -> bool:
        """[MQTT-3.3.1-1] whether a broker that crashed may have sent these; batches end where the log ended then."""
        below = self.doubt.get(shard, 0)
        if piece.records.offset(piece.row()) < below:
            return True
        if below:
            del self.doubt[shard]
        return False

    def _hold(self, piece: Piece, shard: int) -> None:
        """Leave a piece for later: in the log if it is there, else in the queue, within its limit."""
        if shard != NOT_KEPT and piece.delivery.group is None:  # no other member's messages are found there
            self.lag.setdefault(shard, piece.records.offset(piece.row()))
            return
        if self._queue is None:
            self._queue = deque()
        kept = held(piece)
        if kept.at_most_once and kept.bytes > self.queue_bytes:  # larger than the queue by itself: its newest rows stay
            count = kept.stop - kept.start
            newest = count * self.queue_bytes // (2 * kept.bytes)
            self.counters.dropped += count - newest
            if newest == 0:
                return
            kept = held(Piece(kept.records, kept.rows, kept.stop - newest, kept.stop, kept.delivery))
        self._queue.append(kept)
        self.queued_bytes += kept.bytes
        while self.queued_bytes > self.queue_bytes:
            self._shed()

    def _shed(self) -> None:
        """The queue is over its limit: the oldest QoS 0 messages go; with none, the session is over its quota."""
        assert self._queue is not None
        for place, piece in enumerate(self._queue):
            if piece.at_most_once:
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
        self.again = None
        if not self.durable:
            self.feeds = None
        if self._queue:
            self.counters.dropped += sum(piece.stop - piece.start for piece in self._queue)
            self._queue.clear()
            self.queued_bytes = 0

    def give_up_shared(self) -> list[Piece]:
        """What a shared group gave to the session and another member must get: what waits, and, if the session ends
        now, QoS 1 messages under way. [MQTT-4.8.2-5] a QoS 2 message that was sent goes to nobody else."""
        shared = [piece for piece in self._queue or () if piece.delivery.group is not None]
        if shared and self._queue is not None:
            self._queue = deque(piece for piece in self._queue if piece.delivery.group is None)
            self.queued_bytes = sum(piece.bytes for piece in self._queue)
        if self.unlogged is None or self.durable:
            return shared
        sent = (self.unlogged.find(packet_id, position) for packet_id, state, position in self.pending() if state == 1)
        return [*(piece for piece in sent if piece is not None and piece.delivery.group is not None), *shared]
