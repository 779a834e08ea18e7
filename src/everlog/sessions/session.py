"""One client's session: its subscriptions, what is under way to it, and what waits.

Pure, and written by its own methods only. What is to be sent comes back as bytes. A session takes what it is given
until its window or its output is full. Then messages of the log are left there (`lag` says from which offset on, and
the session pulls them later), and messages that are in no log wait in a `MemoryQueue`. Longer than other modules, since
whoever changes a session must find all that can be done to it in one place.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from everlog.base import NOT_KEPT, AckRun, PublishRun, unpack_position
from everlog.mqtt import MAX_PACKET_BYTES, PublishWriter, Will
from everlog.sessions.inflight_copies import InflightCopies, with_ids
from everlog.sessions.memory_queue import MemoryQueue
from everlog.sessions.outgoing_rows import OutgoingRows
from everlog.sessions.qos_2_ids import qos_2_ids
from everlog.sessions.received_ids import ReceivedIds
from everlog.sessions.retained_feed import RetainedFeed
from everlog.sessions.subscription import MergedSubscription, Subscribed
from everlog.sessions.terms import Counters, Terms
from everlog.sessions.window import RELEASED, Window

SHARED_PREFIX = "$share/"
_FEED_BYTES = 64 << 10  # retained messages written at a time
_MAX_OWN = 10_000  # stretches of the session's own messages that it must not get; of more, the oldest are forgotten

Sent: TypeAlias = tuple[int, list[int]]  # the first of packet ids one after the other, and the positions they are for
Inflight: TypeAlias = tuple[int, int, int]  # packet id, state, position


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
    no_local: int = 0  # how many of its subscriptions have No Local
    away_us: int = 0  # when its client left, 0 while it is there
    kept: bool = False  # it was durable when it began: its filters are kept, and the tables know it
    will: Will | None = None  # what is published when the client stays away too long
    ahead: bool = False  # packet ids of QoS 2 messages were given or released, and no table knows of it yet
    unsure: list[tuple[int, int, bytes]] = field(default_factory=list)  # shard, end, QoS 2 ids not known committed
    doubt: dict[int, int] = field(default_factory=dict)  # shard -> below it, messages may have been sent before
    memberships: tuple[Any, ...] = ()  # in shared groups with a cursor, while it is connected
    _again: deque[Inflight] | None = None  # what was under way at the last connection, to be sent again
    _copies: InflightCopies | None = None
    _feeds: deque[RetainedFeed] | None = None  # retained messages for new subscriptions
    _own: dict[int, list[tuple[int, int]]] | None = None  # shard -> stretches of offsets that it published itself
    _window: Window | None = None
    _received: ReceivedIds | None = None
    _queue: MemoryQueue | None = None
    _writers: dict[tuple[bytes, bool, bool], PublishWriter] = field(default_factory=dict)

    # What others read

    @property
    def durable(self) -> bool:
        """Whether it outlives its connection."""
        return self.expiry_s > 0

    @property
    def window(self) -> Window:
        """The messages under way; made when the first QoS 1 or 2 message is sent."""
        if self._window is None:
            self._window = Window(self.max_inflight)
        return self._window

    @property
    def inflight(self) -> int:
        """The number of messages under way."""
        return 0 if self._window is None else self._window.inflight

    @property
    def received(self) -> ReceivedIds:
        """The QoS 2 packet ids taken from the client and not released; made when first needed."""
        if self._received is None:
            self._received = ReceivedIds()
        return self._received

    @property
    def received_bits(self) -> bytearray | None:
        """The same ids as a bit set, or None while they were never needed."""
        return None if self._received is None else self._received.bits

    @property
    def next_id(self) -> int:
        """The packet id that the next message gets."""
        return 1 if self._window is None else self._window.next_id

    @property
    def waiting(self) -> bool:
        """Whether anything is left to hand over when there is room again."""
        return bool(self._queue) or bool(self.lag) or bool(self._again) or bool(self._feeds)

    @property
    def in_memory_only(self) -> bool:
        """Whether it owes its client something that no log and no table has."""
        return bool(self._feeds) or bool(self._own) or (self._copies is not None and self.inflight > 0)

    @property
    def queued(self) -> bool:
        """Whether messages that are in no log wait."""
        return bool(self._queue)

    @property
    def queued_bytes(self) -> int:
        """The memory of the messages that wait in no log."""
        return 0 if self._queue is None else self._queue.size_bytes

    @property
    def is_redelivering(self) -> bool:
        """Whether some of what was under way at the last connection is still to be sent again."""
        return bool(self._again)

    def pending(self) -> list[Inflight]:
        """Return what is under way, oldest first."""
        return [] if self._window is None else self._window.pending()

    def packed_inflight(self) -> bytes:
        """Return what is under way, as `Window.packed` gives it."""
        return b"" if self._window is None else self._window.packed()

    def shares_runs(self, shard: int) -> bool:
        """Return whether a QoS 0 run for the session now is the same bytes as for any other of its version."""
        return (
            self.ready
            and not self._queue
            and not self._again
            and shard not in self.lag
            and self.max_aliases == 0
            and self.max_packet_bytes >= MAX_PACKET_BYTES
        )

    def writer(self, merged: MergedSubscription) -> PublishWriter:
        """Return the writer for a subscription; aliases belong to the connection, so only the plain one uses them."""
        key = (merged.identifiers, merged.retain_as_published, merged.position)
        writer = self._writers.get(key)
        if writer is None:
            aliases = self.max_aliases if key == (b"", False, False) else 0
            writer = PublishWriter(
                self.version,
                self.max_packet_bytes,
                aliases,
                merged.retain_as_published,
                merged.identifiers,
                merged.position,
            )
            self._writers[key] = writer
        return writer

    # Connecting and leaving

    def connected(self, terms: Terms) -> None:
        """Begin being served by a connection."""
        self.version = terms.version
        self.user = terms.user
        self.expiry_s = terms.expiry_s
        self.kept = self.kept or terms.expiry_s > 0
        self.will = terms.will
        self.away_us = 0
        self.max_inflight = terms.max_inflight
        self.max_packet_bytes = terms.max_packet_bytes
        self.max_aliases = terms.max_aliases
        self._writers.clear()
        if self._window is not None:
            self._window.limit = terms.max_inflight
        self.no_local = sum(one.no_local for one in self.subscriptions.values())
        self.ready = True

    def disconnected(self, now_us: int) -> None:
        """Stop being served by a connection; what waited in no log is gone with it."""
        self.away_us = now_us
        self.ready = False
        self._writers.clear()
        self._again = None
        if not self.durable:
            self._feeds = None
        if self._queue is not None:
            self.counters.dropped += self._queue.clear()
            self._queue = None

    def set_expiry(self, expiry_s: int) -> None:
        """Change how long the session stays after its connection."""
        self.expiry_s = expiry_s

    def take_will(self) -> Will | None:
        """Remove and return the will."""
        will, self.will = self.will, None
        return will

    def set_ready(self, ready: bool) -> None:
        """Take messages, or none until the client has read what was sent."""
        self.ready = ready

    # Subscriptions and groups

    def subscribe(self, one: Subscribed) -> Subscribed | None:
        """Hold a subscription, new or changed; return the one that it replaces."""
        old = self.subscriptions.get(one.filter)
        self.subscriptions[one.filter] = one
        self.no_local += one.no_local - (old.no_local if old is not None else False)
        return old

    def unsubscribe(self, text: str) -> Subscribed | None:
        """Give up a subscription; return it if there was one."""
        old = self.subscriptions.pop(text, None)
        if old is not None:
            self.no_local -= old.no_local
        return old

    def join(self, member: Any) -> None:
        """Become a member of a shared group with a cursor."""
        self.memberships = (*self.memberships, member)

    def leave_group(self, member: Any) -> None:
        """Be a member no more."""
        self.memberships = tuple(one for one in self.memberships if one is not member)

    # How far it is

    def read_on(self, shard: int, offset: int) -> None:
        """Go on with this offset when there is room: all before it was handed over."""
        self.lag[shard] = offset

    def reached(self, routed: Sequence[int]) -> bool:
        """Turn live in every shard in which it has come to what is routed; return whether it is live in all."""
        for shard in tuple(self.lag):
            if self.lag[shard] >= routed[shard]:
                del self.lag[shard]
        return not self.lag

    def leave(self, routed: Sequence[int]) -> None:
        """Stay where it is in the log while its client is away."""
        for shard, at in enumerate(routed):
            self.lag.setdefault(shard, at)

    def rewind(self, replays: dict[str, Sequence[int]], routed: Sequence[int]) -> list[Subscribed]:
        """Go back to where the first of replays (by filter) begins; return its others, which begin later by that."""
        begins = list(map(min, zip(*replays.values(), strict=True)))
        here = [self.lag.get(shard, end) for shard, end in enumerate(routed)]
        back = [shard for shard, begin in enumerate(begins) if begin < here[shard]]
        for shard in back:
            self.lag[shard] = begins[shard]
        changed = []
        for other, one in self.subscriptions.items() if back else ():
            if other in replays or other.startswith(SHARED_PREFIX):
                continue
            since = list(one.since or (0,) * len(here))
            for shard in back:
                since[shard] = max(since[shard], here[shard])
            if tuple(since) != one.since:
                changed.append(replace(one, since=tuple(since)))
        for one in changed:
            self.subscriptions[one.filter] = one
        return changed

    def published(self, shard: int, start: int, end: int, floor: int) -> None:
        """Note offsets as its own messages; below `floor` it has been handed everything."""
        if self._own is None:
            self._own = {}
        stretches = [one for one in self._own.get(shard, ()) if one[1] > floor]
        if stretches and stretches[-1][1] == start:
            start = stretches.pop()[0]
        self._own[shard] = [*stretches[1 - _MAX_OWN :], (start, end)]

    def own(self, shard: int) -> list[tuple[int, int]]:
        """Return the stretches of offsets that it published itself, as far as it may still be handed them."""
        return [] if self._own is None else self._own.get(shard, [])

    def count_sent(self, count: int) -> None:
        """Count messages that were sent as bytes shared with other sessions."""
        self.counters.sent += count

    def count_lost(self, count: int) -> None:
        """Count offsets that could not be read any more."""
        self.counters.lost += count

    # Taking messages

    def push(self, out: OutgoingRows, shard: int, now_us: int) -> bytes:
        """Return the bytes for as many rows as fit; the rest stays in the log, or waits if it is in none."""
        if not self.ready or self._queue or self._again or shard in self.lag:
            self._hold(out, shard)
            return b""
        data = self._write(out, shard, now_us)
        if out.start < out.stop:
            self._hold(out, shard)
        return data

    def pull(self, out: OutgoingRows, shard: int, now_us: int) -> tuple[bytes, int]:
        """Return the bytes for as many rows of the log as fit, and the offset at which that stopped, -1 for the end."""
        data = self._write(out, shard, now_us) if self.ready else b""
        return data, out.offset() if out.start < out.stop else -1

    def deal(self, out: OutgoingRows, shard: int, now_us: int, tag: int, again: bool) -> tuple[bytes, list[Sent]]:
        """Return the bytes of rows that a shared group gives to the session, and what is under way by that.

        The caller knows that the window has room for all of it.
        """
        sent: list[Sent] = []
        data = self._write(out, shard, now_us, tag, again, sent)
        return data, sent

    def deal_again(self, out: OutgoingRows, packet_id: int, position: int, now_us: int, tag: int) -> bytes:
        """Return the bytes of the one message, with the packet id that it had and DUP; none if it has expired."""
        writer = self.writer(out.merged)
        shard, _ = unpack_position(position)
        data = writer.write(out.records, out.rows, out.start, out.stop, 1, packet_id, now_us, True, 65_535, shard)
        self.counters.sent += writer.written
        self.counters.expired += writer.left_out
        if data:
            self.window.take_back(packet_id, 1, position, tag)
        return data

    def drain(self, now_us: int) -> bytes:
        """Return the bytes for what waited in memory, as far as there is room."""
        queue = self._queue
        if not queue or not self.ready:
            return b""
        data = []
        while queue:
            out = queue.first
            data.append(self._write(out, NOT_KEPT, now_us))
            if out.start < out.stop:
                break
            queue.remove_first()
        return b"".join(data)

    def take_over_quota(self) -> bool:
        """Return whether more had to wait than may since the last call."""
        queue = self._queue
        if queue is None or not queue.is_over_quota:
            return False
        queue.is_over_quota = False
        return True

    @property
    def feeds(self) -> Sequence[RetainedFeed]:
        """The retained messages that are still to be sent, by the subscriptions that asked for them."""
        return self._feeds or ()

    def feed(self, *feeds: RetainedFeed) -> None:
        """Have retained messages to send by and by; newer messages need not wait for them."""
        if self._feeds is None:
            self._feeds = deque()
        self._feeds.extend(feeds)

    def take_feed(self, now_us: int) -> bytes:
        """Return the bytes of some retained messages, as far as there is room."""
        found: list[bytes] = []
        size = 0
        while self._feeds and self.ready and not self._queue and size < _FEED_BYTES:
            if self._window is not None and self._window.room() == 0:
                break  # before the next is looked at: it may be another by then
            out = self._feeds[0].next()
            if out is None:
                self._feeds.popleft()
                continue
            data = self._write(out, NOT_KEPT, now_us)
            if out.start < out.stop:
                self._feeds[0].put_back(out)
                break
            self._feeds[0].sent(out)
            found.append(data)
            size += len(data)
        return b"".join(found)

    def _write(
        self,
        out: OutgoingRows,
        shard: int,
        now_us: int,
        tag: int = 0,
        again: bool = False,
        sent: list[Sent] | None = None,
    ) -> bytes:
        """Write what the window has room for; `out.start` is where that ended. `sent` is told what has an id."""
        writer = self.writer(out.merged)
        qos = out.merged.qos
        counters = self.counters
        if qos == 0:
            data = writer.write(out.records, out.rows, out.start, out.stop, 0, 1, now_us, False, 0, shard)
            out.start = out.stop
            counters.sent += writer.written
            counters.expired += writer.left_out
            return data
        window = self.window
        if tag == 0:
            again = bool(self.doubt) and self._in_doubt(out, shard)
        parts = []
        while out.start < out.stop:
            room = window.room()
            start = out.start
            data = writer.write(out.records, out.rows, start, out.stop, qos, window.next_id, now_us, again, room, shard)
            first_id = window.next_id
            window.sent(writer, out.records, out.rows, start, shard, tag)
            if sent is not None:
                if writer.ids_used:
                    sent.append((first_id, window.newest(writer.ids_used)))
            elif writer.ids_used and (out.merged.group is not None or (shard == NOT_KEPT and self.expiry_s)):
                self._remember(out, writer, first_id, start, shard)
            out.start = writer.stopped_at
            counters.sent += writer.written
            counters.expired += writer.left_out
            parts.append(data)
            if qos == 2 and data and (self.expiry_s or tag):
                self.ahead = True
            if out.start == start:
                break
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _remember(self, out: OutgoingRows, writer: PublishWriter, first_id: int, start: int, shard: int) -> None:
        if self._copies is None:
            self._copies = InflightCopies()
        rows = OutgoingRows(out.records, out.rows, start, writer.stopped_at, out.merged)
        if writer.ids_used < writer.stopped_at - start:
            rows = with_ids(out, start, writer.stopped_at, writer.scratch)
        self._copies.add(first_id, rows, shard, self.window)

    def _in_doubt(self, out: OutgoingRows, shard: int) -> bool:
        """Return whether a crashed broker may have sent rows [MQTT-3.3.1-1]; batches end where the log ended then."""
        below = self.doubt.get(shard, 0)
        if out.offset() < below:
            return True
        if below:
            del self.doubt[shard]
        return False

    def _hold(self, out: OutgoingRows, shard: int) -> None:
        """Leave rows for later: in the log if they are there, else in memory."""
        if shard != NOT_KEPT and out.merged.group is None:  # no other member's messages are found there
            self.lag.setdefault(shard, out.offset())
            return
        if self._queue is None:
            self._queue = MemoryQueue(self.queue_bytes)
        self.counters.dropped += self._queue.add(out)

    # What is under way

    def restore_ids(self, pending: list[Inflight], next_id: int, received: bytearray | None) -> None:
        """Begin with what was under way, and with the ids taken in, when the session was stored."""
        if pending or next_id != 1:
            self.window.restore(pending, next_id)
        if received is not None:
            self._received = ReceivedIds(received)

    def acked(self, run: AckRun) -> bytes:
        """Take in acks; return the packet ids (as a column) that a PUBREL must be sent for."""
        return self.window.acked(run)

    def take_ahead(self) -> bool:
        """Return whether packet ids have changed since the last call in a way that must be stored before it is seen."""
        ahead, self.ahead = self.ahead, False
        return ahead

    def begin_redelivery(self) -> None:
        """Have what was under way at the last connection to be sent again."""
        self._again = deque(self.pending()) or None

    def redeliveries(self) -> Iterator[Inflight]:
        """Yield what is to be sent again, as far as the client may be sent it now; each is done when the next is asked.

        [MQTT-3.3.4-9] not more messages than the Receive Maximum allows; a PUBREL waits for no room, it makes some.
        """
        window = self.window
        # acknowledgements may have come for some that were not reached yet
        again = self._again = deque(one for one in self._again or () if window.state(one[0]) == one[1])
        unsent = sum(state != RELEASED for _, state, _ in again)
        while again and self.ready:
            if again[0][1] != RELEASED and window.inflight - unsent >= window.limit:
                self._again = deque(one for one in again if one[1] != RELEASED)
                yield from (one for one in again if one[1] == RELEASED)
                return
            unsent -= again[0][1] != RELEASED
            yield again[0]
            again.popleft()
        if not again:
            self._again = None

    def copy_of(self, packet_id: int, position: int) -> OutgoingRows | None:
        """Return the message that went out with an id, if it had to be kept in memory for that."""
        return None if self._copies is None else self._copies.find(packet_id, position)

    def give_up(self, packet_id: int, withheld: bool = False) -> bool:
        """Let go of a message that can't be sent again: expired, too large now, no longer in the log, or `withheld`.

        Return whether a PUBREL must go out: of QoS 2 the client may have it, and would take the next message with this
        id for it.
        """
        self.counters.expired += not withheld
        if self.window.state(packet_id) == 2:
            self.window.release(packet_id)
            self.ahead = True
            return True
        self.window.forget(packet_id)
        return False

    def take_finished(self) -> dict[int, list[int]]:
        """Remove and return the positions of messages dealt by groups that are done, by the tag of the membership."""
        finished, self.window.finished = self.window.finished, {}
        return finished

    def hand_back(self, tag: int) -> None:
        """End a membership: its QoS 1 messages go to other members, those at QoS 2 stay with the session."""
        for packet_id, state, _ in self.window.tagged(tag):
            if state == 1:
                self.window.forget(packet_id)
            else:
                self.window.untag(packet_id)

    def keep_dealt(self, tag: int) -> None:
        """End a membership whose group is gone: what it was dealt is its own."""
        for packet_id, _, _ in self.window.tagged(tag):
            self.window.untag(packet_id)

    def withhold(self, allows: Callable[[bytes], bool]) -> int:
        """Remove what waits in memory of topics that are not allowed; return how many messages."""
        return 0 if self._queue is None else self._queue.withhold(allows)

    def give_up_shared(self, group: tuple[str, str] | None = None) -> list[OutgoingRows]:
        """Return what a shared group gave to the session and another member must get: what waits, and, if the session
        ends now, QoS 1 messages under way. [MQTT-4.8.2-5] a QoS 2 message that was sent goes to nobody else. With a
        `group`, only what waits of that one: the session is no member of it any more."""
        shared = [] if self._queue is None else self._queue.take_shared(group)
        if self._copies is None or self.durable or group is not None:
            return shared
        sent = (self._copies.find(packet_id, position) for packet_id, state, position in self.pending() if state == 1)
        return [*(out for out in sent if out is not None and out.merged.group is not None), *shared]

    # What it has published

    def drop_duplicates(self, run: PublishRun) -> int:
        """Mark QoS 2 messages that came before as dropped, and remember the ids of the others; return how many were."""
        return self.received.drop_duplicates(run)

    def free_ids(self, ids: bytes) -> int:
        """Forget packet ids (a column) that the client has released; return how many were known."""
        return self.received.discard(ids)

    def note_unconfirmed(self, run: PublishRun, new: int, routes: bytearray, ends: list[tuple[int, int]]) -> None:
        """Note the ids of a run with `new` QoS 2 messages, which are stored ahead of the messages themselves.

        `ends` is where the shards that keep some of them end now: a broker that starts knows by the log whether a
        message is there, and so whether its id counts (docs/decisions/qos2-exactly-once.md).
        """
        if new == len(run) and len(ends) == 1:
            self.unsure.append((*ends[0], bytes(run.columns.packet_ids[2 * run.start : 2 * run.stop])))
            return
        ids = qos_2_ids(run, routes)
        self.unsure.extend((shard, end, bytes(ids[shard])) for shard, end in ends if shard in ids)

    def note_refused(self, run: PublishRun, routes: bytearray, ends: list[tuple[int, int]]) -> None:
        """Forget the ids of a run that the log refused, but for the shards that had taken their part by then (`ends`).

        The client sends the run again, and what was not kept must not be taken for a repetition.
        """
        ids = qos_2_ids(run, routes)
        self.unsure.extend((shard, end, bytes(ids.pop(shard))) for shard, end in ends if shard in ids)
        self.free_ids(b"".join(ids.values()))

    def drop_confirmed(self, committed: Sequence[int]) -> None:
        """Forget which ids were stored ahead of messages that are committed by now."""
        if self.unsure:
            self.unsure = [entry for entry in self.unsure if committed[entry[0]] < entry[1]]
