"""From a run of arriving PUBLISHes to the log, to the acks and to the subscribers, batch by batch.

A run is appended (what is kept) or gathered for this turn of the event loop (what is not). Answers leave when the
log says that their messages are committed: `Held` carries the positions, and nothing else releases it. Committed
batches, and the gathered ones, are split by audience in one pass and written to each live subscriber in one call.
Invariant: everything below `routed[shard]` has been handed to every live subscriber of that shard.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TypeAlias

from everlog.base import MessageColumns, PublishRun, RecordBuilder, Records, TopicTable, gather
from everlog.broker.audience import Audiences
from everlog.broker.groups import Group
from everlog.broker.keep import Keep
from everlog.broker.partition import Partitioner, merge_rows
from everlog.broker.persistence import Persistence
from everlog.broker.ports import Log, Sink
from everlog.broker.redelivery import begin, send_again
from everlog.sessions import NOT_KEPT, Delivery, Piece, Session, is_within
from everlog.store import Found, Reader
from everlog.topics import parse_filter

_READ_BYTES = 4 << 20
_PULL_BYTES = 256 << 10  # read at a time for one session that is behind
_PULL_RECORDS = 8192
_GATHERED_BYTES = 1 << 20  # gathered messages are routed at once beyond this
_NO_NAME = 0xFFFFFFFF
_GATHERED_TOPICS = 100_000  # the gathered batches' own names are forgotten beyond this


Part: TypeAlias = tuple[int, bytearray | None, int, int]  # audience, rows (None: every row), start, stop
Mine: TypeAlias = tuple[Delivery, bytearray | None, int, int]


# Answers, and how many of them are PUBACKs, that wait until the shards have committed up to these offsets.
Held: TypeAlias = tuple[Sink, bytes, int, list[tuple[int, int]]]


@dataclass(slots=True)
class _Names:
    """The broker's topic ids of a batch table's ids, and which table that is."""

    table: TopicTable
    generation: int
    column: bytearray


class Router:
    """Owns the way of a message through the broker; one thread."""

    def __init__(
        self,
        log: Log,
        table: TopicTable,
        audiences: Audiences,
        keep: Keep,
        soon: Callable[[Callable[[], None]], object],
        now_us: Callable[[], int],
    ) -> None:
        self.log = log
        self.table = table
        self.audiences = audiences
        self.keep = keep
        self.now_us = now_us
        self.routed = [shard.committed for shard in log.shards]
        self.held_bytes = 0
        self.max_unwritten_bytes = 64 << 20
        self.committing = False  # the router will look by itself: nobody need tell it of a commit
        self.behind = False  # more waits to be written than should
        self.messages_in = 0
        self.messages_kept = 0
        self.sinks: dict[Session, Sink] = {}
        self.readers: dict[Session, tuple[tuple[str, ...], Reader]] = {}  # of sessions that are behind
        self.on_over_quota: Callable[[Session], None] = lambda session: None
        self._soon = soon
        self._shards = list(enumerate(log.shards))
        self._held: deque[Held] = deque()
        self._gathered = RecordBuilder()
        self._gathered_offset = 0
        self._turn_asked = False
        self._names: list[_Names] = []
        self._partitioner = Partitioner()
        self._saving: Persistence | None = None
        self._saves = 0  # how often commits wait for packet ids to be stored
        self.ids_ahead = False  # QoS 2 messages were appended whose ids are to be stored before them
        self.moved: set[Session] | None = None

    # The way in

    def publish(
        self,
        run: PublishRun,
        sink: Sink | None = None,
        answers: bytes = b"",
        count: int = 0,
        publisher: Session | None = None,
        known: int = 0,
    ) -> list[tuple[int, int]]:
        """Take a run in; `answers`, `count` of them PUBACKs, go to `sink` when all that is kept is committed.

        For each shard that keeps some of it: its number, and the offset that it ends at now. A `publisher` must not
        get its own messages back. Of the run, `known` came before and may still wait for their commit.
        """
        self.messages_in += len(run)
        now = self.now_us()
        columns, start, stop = run.columns, run.start, run.stop
        positions: list[tuple[int, int]] = []
        if self.keep.extend():
            routes = self.keep.routes
            kept = 0
            for number, shard in self._shards:
                taken = shard.append(columns, start, stop, now, self.table, routes, number)
                if taken:
                    kept += taken
                    positions.append((number, shard.end))
                    if publisher is not None:
                        floor = publisher.lag.get(number, self.routed[number])
                        publisher.published(number, shard.end - taken, shard.end, floor)
            self.messages_kept += kept
            if kept < stop - start:
                self._gather(columns, start, stop, now, routes, publisher)
        else:
            self._gather(columns, start, stop, now, None, publisher)
        if sink is not None and answers:
            awaited = positions
            if known:
                awaited = [(number, shard.end) for number, shard in self._shards if shard.end > shard.committed]
            if awaited or sink.held:  # [MQTT-4.6.0-2] answers of one client leave in the order of its PUBLISHes
                self._held.append((sink, answers, count, awaited))
                self.held_bytes += len(answers)
                sink.held += 1
            else:
                sink.answer(answers, count)
        self._ask_for_turn()
        return positions

    def _gather(
        self,
        columns: MessageColumns,
        start: int,
        stop: int,
        now: int,
        routes: bytearray | None,
        publisher: Session | None,
    ) -> None:
        builder = self._gathered
        taken = builder.append(columns, start, stop, now, self.table, routes, NOT_KEPT)
        if publisher is not None and taken:
            end = self._gathered_offset + len(builder)
            publisher.published(NOT_KEPT, end - taken, end, self._gathered_offset)
        if builder.size > _GATHERED_BYTES:
            self._route_gathered()

    def _ask_for_turn(self) -> None:
        """Once in each turn of the event loop: commit what was appended, route what was gathered."""
        if not self._turn_asked:
            self._turn_asked = True
            self._soon(self._turn)

    def _turn(self) -> None:
        self._turn_asked = False
        self.behind = self.is_behind()
        if self.ids_ahead and self._saving is not None:
            self.ids_ahead = False
            self._saves += 1
            self._saving.when_durable(self._ids_saved)
        elif self._saves == 0:
            self._commit()
        self._route_gathered()

    def _ids_saved(self) -> None:
        """QoS 2 packet ids are stored: now their messages may be committed."""
        self._saves -= 1
        if self._saves == 0:
            self._commit()

    def _commit(self) -> None:
        self.committing = True
        for _, shard in self._shards:
            if shard.end > shard.committed:
                shard.commit_here()
        self.committing = False  # before the look at what is committed, so that no commit goes unseen
        self.committed()

    def log_failed(self) -> list[Sink]:
        """A shard can't be written any more: who waits for an answer will not get it, and must not."""
        waiting = [held[0] for held in self._held]
        self._held.clear()
        self.held_bytes = 0
        return waiting

    def is_behind(self) -> bool:
        """Whether more was appended than a shard should have before it."""
        return any(shard.pending_bytes > self.max_unwritten_bytes for _, shard in self._shards)

    def attach(self, persistence: Persistence) -> None:
        """From now on say there which stored sessions have moved."""
        self._saving = persistence
        self.moved = persistence.moved

    def _route_gathered(self) -> None:
        builder = self._gathered
        if len(builder) == 0:
            return
        records = builder.take(self._gathered_offset)
        self._gathered_offset += len(records)
        if builder.table.count > _GATHERED_TOPICS:
            builder.start_segment()
        self.route(records, 0, NOT_KEPT)

    def resume(self, session: Session) -> None:
        """A session is back: what is under way goes out again, then what it missed."""
        begin(session)
        self.pump(session)

    def pump(self, session: Session) -> None:
        """A session has room again: hand over what waited, first from the queue, then from the log."""
        sink = self.sinks.get(session)
        if sink is None:
            return
        if self.moved is not None and session.kept:
            self.moved.add(session)
        if session.again and not send_again(self, session, sink):
            return
        data = session.drain(self.now_us())
        if data:
            sink.write(data)
        while session.feeds and (data := session.take_feed(self.now_us())):
            sink.write(data)
        if not session.queued:
            for shard in tuple(session.lag):
                self._catch_up(session, sink, shard)

    def ends(self) -> tuple[int, ...]:
        """Where a subscription that is made now begins in each shard."""
        return tuple(shard.end for _, shard in self._shards)

    def _catch_up(self, session: Session, sink: Sink, shard: int) -> None:
        """Read on from where the session left the log; it is live again when it has reached what is routed."""
        while session.ready and shard in session.lag:
            at = session.lag[shard]
            if at >= self.routed[shard]:
                del session.lag[shard]  # nothing was routed between this line and the last read: no gap, no repeat
                if not session.lag:
                    self.readers.pop(session, None)
                return
            result = self._reader_of(session).read_shard(shard, at, _PULL_RECORDS, _PULL_BYTES)
            session.counters.lost += sum(lost.to_offset - lost.from_offset for lost in result.lost)
            if not all(self._hand_over(session, found, shard) for found in result.batches):
                return  # the session is full, and has said where it stopped
            session.lag[shard] = min(result.positions[0], self.routed[shard])
            if session.lag[shard] == at:
                return

    def _reader_of(self, session: Session) -> Reader:
        """The session's reader of what its own filters match, kept while it is behind."""
        texts = tuple(session.subscriptions)
        known = self.readers.get(session)
        if known is None or known[0] != texts:
            filters = [flt for flt in map(parse_filter, texts) if flt.group is None]
            known = self.readers[session] = (texts, self.log.reader(filters))
        return known[1]

    def _hand_over(self, session: Session, found: Found, shard: int) -> bool:
        """Give a session rows of the log; False when it could not take all, and has noted where it stopped."""
        records, first, stop = found.records, found.start, found.stop
        if found.rows is not None:
            records = gather([(records, found.rows[4 * first : 4 * stop])], True)
            first, stop = 0, records.count
        routed = self.routed[shard]  # a batch may go on behind it, where live subscribers are handed it later
        if records.end_offset > routed:
            stop = bisect_left(range(stop), routed, first, key=records.offset)
        parts = self._split(records, first, stop)
        now = self.now_us()
        session.lag.pop(shard, None)  # so that the session takes them; it sets it again where it stops
        mine = [
            (delivery, rows, start, stop)
            for number, rows, start, stop in parts
            if (delivery := self.audiences.delivery(number, session)) is not None
        ]
        if len(mine) == 1:
            delivery, rows, start, stop = mine[0]
            self._push(Piece(records, rows, start, stop, delivery), shard, now)
        elif mine:
            self._push_in_order(records, mine, shard, now)
        return shard not in session.lag

    # The way out

    def committed(self) -> None:
        """Something may have been committed: release answers, route the new batches."""
        for number, shard in enumerate(self.log.shards):
            end = shard.committed
            while self.routed[number] < end:
                at = self.routed[number]
                if len(self.audiences) == 0:
                    self.routed[number] = end
                    break
                for records in shard.read(at, _READ_BYTES):
                    self.route(records, max(0, at - records.base_offset), number)
                    self.routed[number] = at = records.end_offset
                    if at >= end:
                        break
                else:
                    if self.routed[number] == at:  # what was committed can't be read: nobody waits for it for ever
                        self.routed[number] = end
        held = self._held
        shards = self.log.shards
        committed = [shard.committed for shard in shards]
        while held:
            sink, answers, count, positions = held[0]
            for number, end in positions:
                if committed[number] < end:
                    return
            held.popleft()
            self.held_bytes -= len(answers)
            sink.held -= 1
            sink.answer(answers, count)

    def route(self, records: Records, first_row: int, shard: int) -> None:
        """Hand a batch to every live subscriber that is at its place."""
        parts = self._split(records, first_row)
        now = self.now_us()
        if len(parts) == 1:
            number, rows, start, stop = parts[0]
            self._deliver(records, rows, start, stop, number, shard, now)
        elif parts:
            self._deliver_mixed(records, parts, shard, now)

    def _split(self, records: Records, first_row: int, stop_row: int = -1) -> list[Part]:
        """The parts of a batch by audience, once every topic in it has one."""
        audiences = self.audiences
        audiences.extend()
        names = self._names_of(records.table)
        while True:
            parts = self._partitioner.split(
                records, first_row, names.column, audiences.column, len(audiences.members), stop_row
            )
            if not isinstance(parts, set):
                return parts
            if not self._resolve(names, parts):
                return self._split_apart(records, first_row, stop_row)

    def _resolve(self, names: _Names, topics: set[int]) -> bool:
        """Find the broker's ids and the audiences of these topics of a batch; False if the broker's table is full."""
        found = []
        for topic in topics:
            known = int.from_bytes(names.column[4 * topic : 4 * topic + 4], "little")
            if known == _NO_NAME:
                known = self.table.intern(names.table.name(topic))
                if known < 0:
                    return False
                names.column[4 * topic : 4 * topic + 4] = known.to_bytes(4, "little")
            found.append(known)
        self.audiences.resolve(found)
        return True

    def _split_apart(self, records: Records, first_row: int, stop_row: int) -> list[Part]:
        """As `_split` when the broker knows too many topics to take in these: nothing is remembered of them."""
        at = records.start + records.layout.topics
        rows = memoryview(records.data)[at : at + 4 * records.count].cast("I")
        names = bytearray(b"\xff" * (4 * records.table.count))
        column = bytearray()
        for place, topic in enumerate(sorted(set(rows[first_row : stop_row if stop_row >= 0 else records.count]))):
            names[4 * topic : 4 * topic + 4] = place.to_bytes(4, "little")
            number = self.audiences.number_of(records.table.name(topic).decode())
            column += number.to_bytes(4, "little")
        count = len(self.audiences.members)
        parts = self._partitioner.split(records, first_row, names, column, count, stop_row)
        assert not isinstance(parts, set)
        return parts

    def _deliver(
        self, records: Records, rows: bytearray | None, start: int, stop: int, number: int, shard: int, now: int
    ) -> None:
        """One part to its audience; a QoS 0 run is written once for all that would get the same bytes."""
        shared: dict[tuple[int, bool], bytes] = {}
        sinks = self.sinks
        for member in self.audiences.members[number]:
            if isinstance(member, Group):
                for delivery, begin, end in member.split(start, stop):
                    self._push(Piece(records, rows, begin, end, delivery), shard, now)
                continue
            session = member.session
            early = shard != NOT_KEPT and member.since and records.base_offset < member.since[shard]
            alike = member.qos == 0 and not member.identifiers and not member.no_local and not early
            if alike and session.shares_runs(shard):
                key = (session.version, member.retain_as_published)
                data = shared.get(key)
                if data is None:
                    writer = session.writer(member)
                    data = shared[key] = writer.write(records, rows, start, stop, 0, 1, now)
                session.counters.sent += stop - start
                sinks[session].write(data)
            else:
                self._push(Piece(records, rows, start, stop, member), shard, now)

    def _push(self, piece: Piece, shard: int, now: int) -> None:
        session = piece.delivery.session
        since = piece.delivery.since
        if since and shard != NOT_KEPT and piece.records.base_offset < since[shard]:
            piece.skip_below(since[shard])  # what was published before the subscription
            if piece.start == piece.stop:
                return
        if self.moved is not None and session.kept:
            self.moved.add(session)
        if piece.delivery.no_local and (own := session.own(shard)):
            self._push_without(piece, own, shard, now)
            return
        data = session.push(piece, shard, now)
        if data:
            self.sinks[session].write(data)
        if session.over_quota:
            session.over_quota = False
            self.on_over_quota(session)

    def _push_without(self, piece: Piece, own: list[tuple[int, int]], shard: int, now: int) -> None:
        """[MQTT-3.8.3-3] with No Local, what the session published itself goes by its other subscriptions, if any."""
        records, theirs = piece.records, piece.delivery
        for is_own, stretch in groupby(piece.row_numbers(), lambda row: is_within(records.offset(row), own)):
            delivery = theirs.own if is_own else replace(theirs, no_local=False)
            if delivery is not None:
                chosen = bytearray(b"".join(row.to_bytes(4, "little") for row in stretch))
                self._push(Piece(records, chosen, 0, len(chosen) // 4, delivery), shard, now)

    def hand_on(self, pieces: list[Piece]) -> None:
        """What a lost member of a shared group did not get goes to the others."""
        now = self.now_us()
        for piece in pieces:
            group = piece.delivery.group
            assert isinstance(group, Group)
            for delivery, start, stop in group.split(piece.start, piece.stop):
                self._push(Piece(piece.records, piece.rows, start, stop, delivery), NOT_KEPT, now)

    def topic_of(self, records: Records, row: int) -> int:
        """The broker's id of the topic of one row; -1 if it knows too many to take it in."""
        return self.table.intern(records.table.name(records.row(row)[2]))

    def _deliver_mixed(self, records: Records, parts: list[Part], shard: int, now: int) -> None:
        """Several audiences in one batch: whoever is in one part gets it, whoever is in several gets them in order."""
        mine: dict[Session, list[Mine]] = {}
        members = self.audiences.members
        for number, rows, start, stop in parts:
            for member in members[number]:
                if isinstance(member, Group):
                    for delivery, begin, end in member.split(start, stop):
                        mine.setdefault(delivery.session, []).append((delivery, rows, begin, end))
                else:
                    mine.setdefault(member.session, []).append((member, rows, start, stop))
        for pieces in mine.values():
            if len(pieces) == 1:
                delivery, rows, start, stop = pieces[0]
                self._push(Piece(records, rows, start, stop, delivery), shard, now)
            else:
                self._push_in_order(records, pieces, shard, now)

    def _push_in_order(self, records: Records, pieces: list[Mine], shard: int, now: int) -> None:
        """Rows of one session that came in several parts, merged; alike deliveries as one, others row by row."""
        if (
            len(
                {
                    (d.qos, d.identifiers, d.retain_as_published, d.since, d if d.no_local else None)
                    for d, _, _, _ in pieces
                }
            )
            == 1
        ):
            merged = merge_rows(
                [(rows, start, stop) for _, rows, start, stop in pieces if rows is not None], records.count
            )
            self._push(Piece(records, merged, 0, len(merged) // 4, pieces[0][0]), shard, now)
            return
        by_row: list[tuple[int, int]] = sorted(
            (k if rows is None else int.from_bytes(rows[4 * k : 4 * k + 4], "little"), which)
            for which, (_, rows, start, stop) in enumerate(pieces)
            for k in range(start, stop)
        )
        begin = 0
        for k in range(1, len(by_row) + 1):
            if k == len(by_row) or by_row[k][1] != by_row[begin][1]:
                stretch = bytearray(b"".join(row.to_bytes(4, "little") for row, _ in by_row[begin:k]))
                self._push(Piece(records, stretch, 0, k - begin, pieces[by_row[begin][1]][0]), shard, now)
                begin = k

    def _names_of(self, table: TopicTable) -> _Names:
        """The map from a batch table's topic ids to the broker's, kept for the few tables in use."""
        names = self._names[0] if self._names else None
        if names is None or names.table is not table:
            names = next((one for one in self._names if one.table is table), None) or _Names(table, -1, bytearray())
            self._names = [names, *(one for one in self._names if one is not names)][:8]
        if names.generation != self.table.generation:
            names.generation = self.table.generation
            names.column = bytearray()
        missing = table.count - len(names.column) // 4
        if missing > 0:
            names.column.extend(b"\xff" * (4 * missing))
        return names
