"""One client's session: its subscriptions, what is under way to it, and what waits.

Pure, and written by its own methods only. What is to be sent comes back as bytes. A session takes what it is given
until its window or its output is full. Then messages of the log are left there (`lag` says from which offset on, and
the session pulls them later), and messages that are in no log wait in a `MemoryQueue`. When that gets long, whoever
looks after the session has its filters kept (spills it), so that what follows is left in the log. Longer than other
modules, since all that can be done to a session should be found in one place; what it has published is in `Publisher`,
what it has subscribed to in `Subscriber`.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import cython

from everlog.base import unpack_position
from everlog.mqtt import ANY_BYTES, MAX_PACKET_BYTES, Will
from everlog.sessions.early_packets import SMALL_WINDOW, write_early
from everlog.sessions.inflight_copies import CopiesTotal, InflightCopies, with_ids
from everlog.sessions.memory_queue import MemoryQueue
from everlog.sessions.retained_feed import RetainedFeed
from everlog.sessions.subscription import Subscribed
from everlog.sessions.terms import Terms
from everlog.sessions.window import RELEASED
from everlog.sessions.writers import Writers

if not cython.compiled:
    from everlog.base import NOT_KEPT, AckRun
    from everlog.mqtt import PublishWriter
    from everlog.sessions.counters import Counters
    from everlog.sessions.merged_subscription import MergedSubscription
    from everlog.sessions.outgoing_rows import OutgoingRows
    from everlog.sessions.publisher import Unsure
    from everlog.sessions.received_ids import ReceivedIds
    from everlog.sessions.subscriber import Subscriber
    from everlog.sessions.window import Window

_FEED_BYTES = 64 << 10  # retained messages written at a time
_FEED_ROWS = 512
_LOOK_BYTES = 1024  # that could be written in the time it takes to look for a filter's retained messages
_WRITE_BYTES = 1 << 20  # written at a time, as it may be a thousand times what came in; then the output is looked at

Sent: TypeAlias = tuple[int, list[int]]  # the first of packet ids one after the other, and the positions they are for
Packets: TypeAlias = bytes | list[bytes | memoryview]  # or parts of them, whose payloads are views of a batch
Inflight: TypeAlias = tuple[int, int, int]  # packet id, state, position


class Session(Subscriber):
    """The state of one client id, connected or not; one thread owns it."""

    def __init__(
        self, client_id: str, version: int = 4, expiry_s: int = 0, *, queue_bytes: int = 4 << 20,
        subscriptions: dict[str, Subscribed] | None = None, lag: dict[int, int] | None = None, user: str | None = None,
        away_us: int = 0, kept: bool = False, will: Will | None = None, doubt: dict[int, int] | None = None,
        copies_total: CopiesTotal | None = None, unsure: list[Unsure] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(subscriptions, kept, will, unsure)
        self.client_id = client_id
        self.version = version
        self.expiry_s = expiry_s  # 0 ends with the connection, 0xFFFFFFFF never
        self.max_inflight, self.max_packet_bytes, self.max_aliases = 2048, MAX_PACKET_BYTES, 0
        self.queue_bytes = queue_bytes
        self.lag = {} if lag is None else lag  # shard -> first offset not handed over
        self.counters = Counters()
        self.user = user
        self.ready = False  # connected, its output has room, and it is not halted
        self.scatters = False  # its output can write packets in parts
        self.early = 0  # messages under way whose packets its output keeps until the window has room for them
        self.early_packets: list[bytes] = []  # of these, what the output has not taken yet
        self.away_us = away_us  # when its client left, 0 while it is there
        self.cut = False  # the last write ended because it was long, and not for lack of room
        self.ahead = False  # packet ids of QoS 2 messages were given or released, and no table knows of it yet
        self.doubt = {} if doubt is None else doubt  # shard -> below it, messages may have been sent before
        self.copies_total = CopiesTotal() if copies_total is None else copies_total  # its copies count against it
        self._is_long = False  # something was added to a long queue
        self._again: deque[Inflight] | None = None  # what was under way at the last connection, to be sent again
        self._copies: InflightCopies | None = None
        self._feeds: deque[RetainedFeed] | None = None  # retained messages for new subscriptions
        self._window: Window | None = None
        self._queue: MemoryQueue | None = None
        self._writers: Writers | None = None  # of its connection, once something is sent
        self._takes_early = False  # its output does
        self._has_room = False  # of its output
        self._halted = False

    # What others read

    @property
    def durable(self) -> bool:
        """Whether it outlives its connection."""
        return self.expiry_s > 0

    @property
    def window(self) -> Window:
        """The messages under way; made when the first QoS 1 or 2 message is sent."""
        return self._made_window()

    def _made_window(self) -> Window:
        if self._window is None:
            self._window = Window(self.max_inflight)
        return self._window

    @property
    def inflight(self) -> int:
        """The number of messages under way."""
        return 0 if self._window is None else self._window.inflight

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
    def drains_next(self) -> bool:
        """Whether messages that are in no log wait, and come before any that are in the log."""
        return self._queue is not None and self._queue.is_due(self.lag)

    def reads_up_to(self, shard: int, end: int) -> int:
        """Return the offset up to which the log comes before what waits in memory, or `end` if nothing waits."""
        after = () if self._queue is None else self._queue.after
        return after[shard] if after else end

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
            and self.early == 0
            and not self.mount
            and self.max_aliases == 0
            and self.max_packet_bytes >= MAX_PACKET_BYTES
        )

    def writer(self, merged: MergedSubscription) -> PublishWriter:
        """Return the writer for a subscription; aliases belong to the connection, so only the plain one uses them."""
        if self._writers is None:
            self._writers = Writers(self.version, self.max_packet_bytes, self.max_aliases, self.mount)
        return self._writers[merged.identifiers, merged.retain_as_published, merged.tells]

    # Connecting and leaving

    def connected(self, terms: Terms) -> None:
        """Begin being served by a connection."""
        self.version, self.user, self.is_bridge = terms.version, terms.user, terms.is_bridge
        self.expiry_s, self.mount = terms.expiry_s, terms.mount
        self.kept = self.kept or terms.expiry_s > 0
        self.set_will(terms.will)
        self.away_us = 0
        self.max_inflight, self.max_aliases = terms.max_inflight, terms.max_aliases
        self.max_packet_bytes = terms.max_packet_bytes
        self._writers = None
        if self._window is not None:
            self._window.limit = terms.max_inflight
        self.no_local = sum(one.no_local for one in self.subscriptions.values())
        self._halted = False
        self.set_ready(True)

    def disconnected(self, now_us: int) -> None:
        """Stop being served by a connection; what waited in no log is gone with it."""
        self.away_us = now_us
        self.set_ready(False)
        self._writers = None
        self._again = None
        self.forget_early()
        if not self.durable:
            self._feeds = None
        if self._queue is not None:
            self.counters.dropped += self._queue.clear()
            self._queue = None
            self._is_long = False

    def set_expiry(self, expiry_s: int) -> None:
        """Change how long the session stays after its connection."""
        self.expiry_s = expiry_s

    def scatter(self, scatters: bool) -> None:
        """Say whether the output can write large packets in parts; what is pushed or pulled may come so then."""
        self.scatters = scatters

    def set_ready(self, ready: bool) -> None:
        """Take messages, or none until the client has read what was sent."""
        self._has_room = ready
        self.ready = ready and not self._halted

    def halt(self) -> None:
        """Take no messages, whatever room there is, while its subscriptions change in several steps."""
        self._halted = True
        self.ready = False

    def go_on(self) -> None:
        """Take messages again after `halt`."""
        self._halted = False
        self.ready = self._has_room

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

    def ahead_of(self, begins: Sequence[int], routed: Sequence[int]) -> dict[int, int]:
        """Return by shard where it is, of those in which a replay begins earlier."""
        here = {shard: self.lag.get(shard, end) for shard, end in enumerate(routed)}
        return {shard: at for shard, at in here.items() if begins[shard] < at}

    def rewind(self, begins: dict[int, int]) -> None:
        """Go back to these offsets, by shard."""
        self.lag.update(begins)

    def count_sent(self, count: int) -> None:
        """Count messages that were sent as bytes shared with other sessions."""
        self.counters.sent += count

    def count_lost(self, count: int) -> None:
        """Count offsets that could not be read any more."""
        self.counters.lost += count

    # Taking messages

    def push(self, out: OutgoingRows, shard: int, now_us: int, released: Sequence[int] = ()) -> Packets:
        """Return the bytes for as many rows as fit; the rest stays in the log, or waits if it is in none.

        What is left in `out` then is for another call, once these bytes are written. Below the offsets `released`, the
        log may have older messages of topics that are in no log any more.
        """
        if not self.ready or self._queue or self._again or self.early:
            self._hold(out, shard, released)
            return b""
        if self.lag and self._comes_later(out, shard, released):
            self._hold(out, shard, released)
            return b""
        data: Packets = self._write(out, shard, now_us, 0, False, None, self.scatters)
        if out.start < out.stop and not self.cut:
            self._hold(out, shard, released)
        return data

    def _comes_later(self, out: OutgoingRows, shard: int, released: Sequence[int]) -> bool:
        """Return whether what the session has not read of the log comes before these rows."""
        if shard != NOT_KEPT:
            return shard in self.lag
        return self._is_below(released) and not out.all_at_most_once()

    def _is_below(self, offsets: Sequence[int]) -> bool:
        return any(at < offsets[shard] for shard, at in self.lag.items()) if offsets else False

    def pull(self, out: OutgoingRows, shard: int, now_us: int) -> tuple[Packets, int]:
        """Return the bytes for as many rows of the log as fit, and the offset at which that stopped, -1 for the end."""
        if not self.ready:
            return b"", out.offset()
        data = b"" if self.early else self._write(out, shard, now_us, 0, False, None, self.scatters)
        if out.start < out.stop and self._takes_early and out.merged.qos == 2 and not self.cut:
            self._write_early(out, shard, now_us)
        return data, out.offset() if out.start < out.stop else -1

    def deal(self, out: OutgoingRows, shard: int, now_us: int, tag: int, again: bool) -> tuple[bytes, list[Sent]]:
        """Return the bytes of rows that a shared group gives to the session, and what is under way by that.

        The caller knows that the window has room for all of it.
        """
        sent: list[Sent] = []
        return self._write(out, shard, now_us, tag, again, sent), sent

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
        """Return the bytes for some of what waited in memory, as far as there is room; none when that is all."""
        queue = self._queue
        if not queue or not self.ready or self.early:
            return b""
        data: list[bytes] = []
        size = 0
        while size < _WRITE_BYTES and queue.is_due(self.lag):
            out = queue.first
            written = self._write(out, NOT_KEPT, now_us)
            data.append(written)
            size += len(written)
            if out.start < out.stop:
                break
            queue.remove_first()
        return b"".join(data)

    def take_long(self) -> bool:
        """Return whether something had to wait in a long queue since the last call."""
        is_long, self._is_long = self._is_long, False
        return is_long

    def spilled(self) -> None:
        """Expect that what follows is in the log: what waits in memory by now may wait."""
        if self._queue is not None:
            self._queue.spilled()

    def shed(self) -> bool:
        """Drop what is owed and waits beyond the limit; return whether there was any."""
        dropped = 0 if self._queue is None else self._queue.shed()
        self.counters.dropped += dropped
        return dropped > 0

    @property
    def feeds(self) -> Sequence[RetainedFeed]:
        """The retained messages that are still to be sent, by the subscriptions that asked for them."""
        return self._feeds or ()

    def feed(self, *feeds: RetainedFeed) -> None:
        """Have retained messages to send by and by; newer messages need not wait for them."""
        if self._feeds is None:
            self._feeds = deque()
        self._feeds.extend(feeds)

    def take_feed(self, now_us: int) -> tuple[bytes, int]:
        """Return the bytes of some retained messages, as far as there is room, and what it was worth in bytes."""
        found: list[bytes] = []
        size = 0
        while self._feeds and self.ready and not self._queue and size < _FEED_BYTES:
            if (room := _FEED_ROWS if self._window is None else self._window.room()) == 0:
                break
            feed = self._feeds[0]
            out = feed.take(room)
            if out is None:
                size += _LOOK_BYTES if feed.is_over else _FEED_BYTES // 4  # that could be written in the same time
                if feed.is_over:
                    self._feeds.popleft()
                continue
            data = self._write(out, NOT_KEPT, now_us)
            feed.sent(out)
            found.append(data)
            size += len(data)
            if out.start < out.stop and not self.cut:
                break
        return b"".join(found), size

    def _write(
        self, out: OutgoingRows, shard: int, now_us: int, tag: int = 0, again: bool = False,
        sent: list[Sent] | None = None, scatters: bool = False,
    ) -> Any:  # fmt: skip
        """Write what the window has room for, or a long stretch of it (`cut`); `out.start` is where that ended.

        `sent` is told what has an id, and all of it is written then. If it `scatters`, large packets come in parts.
        """
        writer = self.writer(out.merged)
        qos = out.merged.qos
        counters = self.counters
        most = _WRITE_BYTES if sent is None else ANY_BYTES
        if qos == 0:
            start, stop = out.start, out.stop
            if scatters:
                data = writer.write_parts(out.records, out.rows, start, stop, 0, 1, now_us, False, 0, shard, most)
            else:
                data = writer.write(out.records, out.rows, start, stop, 0, 1, now_us, False, 0, shard, most)
            out.start = writer.stopped_at
            self.cut = writer.is_cut
            counters.sent += writer.written
            counters.expired += writer.left_out
            return data
        window = self._made_window()
        if tag == 0:
            again = bool(self.doubt) and self._in_doubt(out, shard)
        parts = []
        while out.start < out.stop:
            room = window.room()
            start, stop, next_id = out.start, out.stop, window.next_id
            if scatters:
                data = writer.write_parts(
                    out.records, out.rows, start, stop, qos, next_id, now_us, again, room, shard, most
                )
            else:
                data = writer.write(out.records, out.rows, start, stop, qos, next_id, now_us, again, room, shard, most)
            window.sent(writer, out.records, out.rows, start, shard, tag)
            if sent is not None:
                if writer.ids_used:
                    sent.append((next_id, window.newest(writer.ids_used)))
            elif writer.ids_used and (out.merged.group is not None or (shard == NOT_KEPT and self.expiry_s)):
                self._remember(out, writer, next_id, start, shard)
            out.start = writer.stopped_at
            counters.sent += writer.written
            counters.expired += writer.left_out
            if isinstance(data, list):
                parts += data
            elif data:
                parts.append(data)
            if qos == 2 and data and (self.expiry_s or tag):
                self.ahead = True
            self.cut = writer.is_cut
            if out.start == start or self.cut:
                break
        if len(parts) == 1:
            return parts[0]
        return parts if scatters and parts else b"".join(parts)

    def take_early(self) -> None:
        """Have an output that keeps packets until there is room for them, and an id in the tables by then."""
        self._takes_early = self.kept and self.max_inflight <= SMALL_WINDOW and self.max_aliases == 0

    def _write_early(self, out: OutgoingRows, shard: int, now_us: int) -> None:
        """Give the messages that come next their ids; what a group gave may go back, and free room without an ack."""
        window = self._made_window()
        most = window.limit - self.early
        if 0 < most <= window.limit <= window.inflight - self.early and not (self.memberships or self.doubt):
            packets = write_early(window, self.writer(out.merged), out, shard, now_us, most, self.counters)
            self.early += len(packets)
            self.early_packets += packets

    def take_early_packets(self) -> list[bytes]:
        """Return what the output is to keep now."""
        packets, self.early_packets = self.early_packets, []
        return packets

    def send_early(self) -> bool:
        """Take note that the next early packet is sent; return False if there is none or no room for it."""
        sends = self.early > 0 and self.window.inflight - self.early < self.window.limit
        self.early -= sends
        return sends

    def forget_early(self) -> None:
        """Have no early packets any more; the messages stay under way."""
        self.early, self.early_packets = 0, []

    def _remember(self, out: OutgoingRows, writer: PublishWriter, first_id: int, start: int, shard: int) -> None:
        if self._copies is None:
            self._copies = InflightCopies(self, self.copies_total)
        self._copies.add(first_id, with_ids(out, start, writer), shard, self.window)

    def _in_doubt(self, out: OutgoingRows, shard: int) -> bool:
        """Return whether a crashed broker may have sent rows [MQTT-3.3.1-1]; batches end where the log ended then."""
        below = self.doubt.get(shard, 0)
        if out.offset() < below:
            return True
        if below:
            del self.doubt[shard]
        return False

    def _hold(self, out: OutgoingRows, shard: int, released: Sequence[int]) -> None:
        """Leave rows for later: in the log if they are there, else in memory."""
        if shard != NOT_KEPT and out.merged.group is None:  # no other member's messages are found there
            self.lag.setdefault(shard, out.offset())
        else:
            if self._queue is None:
                self._queue = MemoryQueue(self.queue_bytes)
            after = tuple(released) if self.lag and out.merged.group is None and self._is_below(released) else ()
            self.counters.dropped += self._queue.add(out, after)
            self._is_long = self._queue.is_long
        out.start = out.stop

    # What is under way

    def restore_ids(self, pending: list[Inflight], next_id: int, received: bytearray | None) -> None:
        """Begin with what was under way, and with the ids taken in, when the session was stored."""
        if pending or next_id != 1:
            self.window.restore(pending, next_id)
        if received is not None:
            self._received = ReceivedIds(received)

    def acked(self, run: AckRun) -> bytes:
        """Take in acks; return the packet ids (as a column) that a PUBREL must be sent for."""
        window = self._made_window()
        released = window.acked(run)
        if self._copies is not None and window.inflight == 0:
            self.drop_copies()
        return released

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

    def drop_copies(self) -> None:
        """Forget what was kept in memory of messages under way: they can't be sent again."""
        if self._copies is not None:
            self._copies.drop()
            self._copies = None

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
        if self.early:  # sent as what is sent again, which is looked at
            self._again = deque(self.pending()[-self.early :])
            self.forget_early()
        return 0 if self._queue is None else self._queue.withhold(allows)

    def give_up_shared(self, group: tuple[str, str] | None = None) -> list[OutgoingRows]:
        """Return what a shared group gave to the session and another member must get: what waits, and, if the session
        ends now, QoS 1 messages under way. [MQTT-4.8.2-5] a QoS 2 message that was sent goes to nobody else. With a
        `group`, only what waits of that one: the session is no member of it any more."""
        shared = [] if self._queue is None else self._queue.take_shared(group)
        if self._copies is None or self.durable or group is not None:
            return shared
        sent = self._copies.find_all(
            (packet_id, position) for packet_id, state, position in self.pending() if state == 1
        )
        return [*(out for out in sent if out.merged.group is not None), *shared]
