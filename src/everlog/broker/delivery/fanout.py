"""From a batch to the subscribers' bytes: one pass splits it by audience, one call writes a part.

Owns who is connected (`sinks`). A session that can't take all of what is pushed notes where it stopped, and pulls the
rest later.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import cython

from everlog.broker.delivery.overlaps import Mine, in_order, stretches, without_qos_0
from everlog.broker.delivery.own_rows import own_before
from everlog.broker.delivery.partition import merge_rows
from everlog.broker.delivery.ports import Shard, SharedTarget, Sink
from everlog.broker.delivery.read_rights import ReadRights

if not cython.compiled:
    from everlog.base import NOT_KEPT, Records
    from everlog.broker.delivery.audiences import Audiences, Part
    from everlog.broker.delivery.overlaps import is_early
    from everlog.mqtt import PublishWriter
    from everlog.sessions import OutgoingRows, Session

Rows: TypeAlias = tuple[bytearray | None, int, int]
_SHARED_BYTES = 8 << 20  # of a run that is written once for many; a longer one is written for each, as far as it reads


class Fanout:
    """The delivery of messages to sessions; owned by the event loop's thread."""

    def __init__(self, audiences: Audiences, now_us: Callable[[], int], released: Sequence[int] = ()) -> None:
        self.audiences = audiences
        self.now_us = now_us
        self.sinks: dict[Session, Sink] = {}
        self.on_long: Callable[[OutgoingRows], None] = lambda out: None  # so much waits in memory for their session
        self.released = released  # up to where the log may have messages of topics that it does not keep any more
        self.moved: set[Session] | None = None  # stored sessions that were handed something
        self.absent: dict[Session, tuple[int, ...]] = {}  # who gets no QoS 0 messages below these offsets
        self.shards: Sequence[Shard] = ()
        self.rights: ReadRights | None = None  # None: everything is allowed

    def route(self, records: Records, first_row: int, shard: int) -> None:
        """Hand a batch to every live subscriber that is at its place."""
        now = self.now_us()
        parts = self.audiences.split_at_once(records, first_row, records.count)
        if parts is not None:
            self._deliver_parts(records, parts, shard, now)
        else:
            for stretch in self.audiences.split(records, first_row):
                self._deliver_parts(records, stretch, shard, now)

    def _deliver_parts(self, records: Records, parts: list[Part], shard: int, now: int) -> None:
        if len(parts) == 1:
            number, rows, start, stop = parts[0]
            self._deliver(records, rows, start, stop, number, shard, now)
        elif parts:
            self._deliver_mixed(records, parts, shard, now)

    def push(self, out: OutgoingRows, shard: int, now: int) -> None:
        """Hand rows to a live session; what it can't take it notes itself."""
        merged = out.merged
        session = merged.session
        self.note_moved(session)
        if merged.no_local or is_early(merged, out.records, shard):
            for stretch in stretches(out, shard, self._own_before(out, shard)):
                self._push(session, stretch, shard, now)
        else:
            self._push(session, out, shard, now)
        if session.take_long():
            self.on_long(out)

    def _push(self, session: Session, out: OutgoingRows, shard: int, now: int) -> None:
        while out.start < out.stop:
            data = session.push(out, shard, now, self.released)
            if data:
                self.sinks[session].write(data)

    def pull(self, out: OutgoingRows, shard: int, now: int) -> int:
        """Hand rows of the log to a session that is behind; return the offset at which it stopped, -1 for the end."""
        session = out.merged.session
        self.note_moved(session)
        absent = self.absent.get(session) if self.absent else None
        if absent is not None and not without_qos_0(out, absent[shard]):
            return -1
        for stretch in stretches(out, shard, self._own_before(out, shard)):
            stopped = 0
            while stopped >= 0:
                data, stopped = session.pull(stretch, shard, now)
                if data or session.early_packets:
                    self.sinks[session].write(data)
                if stopped >= 0 and not (data and session.cut):
                    return stopped
        return -1

    def _own_before(self, out: OutgoingRows, shard: int) -> list[tuple[int, int]] | None:
        """Return the offsets that a session published itself by what the log says; None where it knows without."""
        unknown = out.merged.no_local and out.merged.session.unknown_own(shard)[1] > out.offset()
        return own_before(out, self.shards[shard], shard) if unknown else None

    def write(self, session: Session, data: bytes) -> None:
        """Send bytes that were built for a session."""
        self.note_moved(session)
        if data:
            self.sinks[session].write(data)

    def note_moved(self, session: Session) -> None:
        """Have where a session is stored."""
        if self.moved is not None and session.kept:
            self.moved.add(session)

    def _deliver(
        self, records: Records, rows: bytearray | None, start: int, stop: int, number: int, shard: int, now: int
    ) -> None:
        """Hand one part to its audience; a QoS 0 run is written once for all that would get the same bytes."""
        shared: dict[tuple[int, bool], bytes | None] = {}
        audience = self.audiences.by_number[number]
        for merged in audience.subscriptions:
            session = merged.session
            plain = merged.qos == 0 and not (merged.identifiers or merged.no_local or merged.tells)
            if plain and session.shares_runs(shard) and not is_early(merged, records, shard):
                key = (session.version, merged.retain_as_published)
                if key not in shared:
                    shared[key] = _whole_run(session.writer(merged), records, rows, start, stop, now)
                data = shared[key]
                if data is not None:
                    session.count_sent(stop - start)
                    self.sinks[session].write(data)
                    continue
            self.push(OutgoingRows(records, rows, start, stop, merged), shard, now)
        for target in audience.targets:
            target.take(records, rows, start, stop, shard, now)

    def _deliver_mixed(self, records: Records, parts: list[Part], shard: int, now: int) -> None:
        """Hand a batch to several audiences: whoever is in several gets its parts in order."""
        mine: dict[Session, list[Mine]] = {}
        shared: dict[SharedTarget, list[Rows]] = {}
        for number, rows, start, stop in parts:
            audience = self.audiences.by_number[number]
            for merged in audience.subscriptions:
                mine.setdefault(merged.session, []).append((merged, rows, start, stop))
            for target in audience.targets:
                shared.setdefault(target, []).append((rows, start, stop))
        for pieces in mine.values():
            if len(pieces) == 1:
                merged, rows, start, stop = pieces[0]
                self.push(OutgoingRows(records, rows, start, stop, merged), shard, now)
            else:
                for out in in_order(records, pieces, shard):
                    self.push(out, shard, now)
        for target, places in shared.items():
            rows, start, stop = places[0]
            if len(places) > 1:
                chosen = [(rows, start, stop) for rows, start, stop in places if rows is not None]
                rows = merge_rows(chosen, records.count)
                start, stop = 0, len(rows) // 4
            target.take(records, rows, start, stop, shard, now)


def _whole_run(
    writer: PublishWriter, records: Records, rows: bytearray | None, start: int, stop: int, now: int
) -> bytes | None:
    """Return a QoS 0 run as bytes; None if it is too long to be written at once."""
    data = writer.write(records, rows, start, stop, 0, 1, now, False, 0, NOT_KEPT, _SHARED_BYTES)
    return None if writer.is_cut else data
