"""From a batch to the live subscribers' bytes: one pass splits it by audience, one call writes a part.

Owns who is connected (`sinks`). A session that can't take all of a piece says so itself, and pulls the rest later.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TypeAlias

from everlog.base import NOT_KEPT, Records, TopicTable
from everlog.broker.audience import Audiences
from everlog.broker.begins import begun
from everlog.broker.groups import Group
from everlog.broker.partition import Partitioner, merge_rows
from everlog.broker.ports import Sink
from everlog.sessions import Delivery, Piece, Session, is_within

_NO_NAME = 0xFFFFFFFF

Part: TypeAlias = tuple[int, bytearray | None, int, int]  # audience, rows (None: every row), start, stop
Rows: TypeAlias = tuple[bytearray | None, int, int]
Mine: TypeAlias = tuple[Delivery, bytearray | None, int, int]


@dataclass(slots=True)
class _Names:
    """The broker's topic ids of a batch table's ids, and which table that is."""

    table: TopicTable
    generation: int
    column: bytearray


class Delivering:
    """Owns the way out; one thread."""

    def __init__(self, table: TopicTable, audiences: Audiences, now_us: Callable[[], int]) -> None:
        self.table = table
        self.audiences = audiences
        self.now_us = now_us
        self.sinks: dict[Session, Sink] = {}
        self.on_over_quota: Callable[[Session], None] = lambda session: None
        self.moved: set[Session] | None = None  # stored sessions that were handed something
        self._names: list[_Names] = []
        self._partitioner = Partitioner()

    def route(self, records: Records, first_row: int, shard: int) -> None:
        """Hand a batch to every live subscriber that is at its place."""
        parts = self.split(records, first_row)
        now = self.now_us()
        if len(parts) == 1:
            number, rows, start, stop = parts[0]
            self._deliver(records, rows, start, stop, number, shard, now)
        elif parts:
            self._deliver_mixed(records, parts, shard, now)

    def split(self, records: Records, first_row: int, stop_row: int = -1) -> list[Part]:
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
                self._share(member, [(rows, start, stop)], records, shard, now)
                continue
            session = member.session
            early = shard != NOT_KEPT and member.until and records.base_offset < member.until[shard]
            plain = not (member.identifiers or member.no_local or member.position)
            alike = member.qos == 0 and plain and not early
            if alike and session.shares_runs(shard):
                key = (session.version, member.retain_as_published)
                data = shared.get(key)
                if data is None:
                    writer = session.writer(member)
                    data = shared[key] = writer.write(records, rows, start, stop, 0, 1, now)
                session.counters.sent += stop - start
                sinks[session].write(data)
            else:
                self.push(Piece(records, rows, start, stop, member), shard, now)

    def push(self, piece: Piece, shard: int, now: int) -> None:
        """Hand rows to a session by those of its subscriptions that had begun when they were published."""
        until = piece.delivery.until
        if until and shard != NOT_KEPT and piece.records.base_offset < until[shard]:
            for stretch in begun(piece, shard):
                self._push(stretch, shard, now)
        else:
            self._push(piece, shard, now)

    def _push(self, piece: Piece, shard: int, now: int) -> None:
        session = piece.delivery.session
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
                self.push(Piece(piece.records, piece.rows, start, stop, delivery), NOT_KEPT, now)

    def topic_of(self, records: Records, row: int) -> int:
        """The broker's id of the topic of one row; -1 if it knows too many to take it in."""
        return self.table.intern(records.table.name(records.row(row)[2]))

    def _deliver_mixed(self, records: Records, parts: list[Part], shard: int, now: int) -> None:
        """Several audiences in one batch: whoever is in one part gets it, whoever is in several gets them in order."""
        mine: dict[Session, list[Mine]] = {}
        shared: dict[Group, list[Rows]] = {}
        members = self.audiences.members
        for number, rows, start, stop in parts:
            for member in members[number]:
                if isinstance(member, Group):
                    shared.setdefault(member, []).append((rows, start, stop))
                else:
                    mine.setdefault(member.session, []).append((member, rows, start, stop))
        for pieces in mine.values():
            if len(pieces) == 1:
                delivery, rows, start, stop = pieces[0]
                self.push(Piece(records, rows, start, stop, delivery), shard, now)
            else:
                self.push_in_order(records, pieces, shard, now)
        for group, places in shared.items():
            self._share(group, places, records, shard, now)

    def _share(self, group: Group, places: list[Rows], records: Records, shard: int, now: int) -> None:
        """Rows of a batch to the members of a group: by its cursor if it has one and they are in the log."""
        rows, start, stop = places[0]
        if len(places) > 1:
            rows = merge_rows([(rows, start, stop) for rows, start, stop in places if rows is not None], records.count)
            start, stop = 0, len(rows) // 4
        if group.durable is not None and shard != NOT_KEPT:
            group.durable.take(records, rows, start, stop, shard, now)
            return
        for delivery, begin, end in group.split(start, stop):
            self.push(Piece(records, rows, begin, end, delivery), shard, now)

    def push_in_order(self, records: Records, pieces: list[Mine], shard: int, now: int) -> None:
        """Rows of one session that came in several parts, merged; alike deliveries as one, others row by row."""
        if len({_manner(delivery, records, shard) for delivery, _, _, _ in pieces}) == 1:
            merged = merge_rows(
                [(rows, start, stop) for _, rows, start, stop in pieces if rows is not None], records.count
            )
            self.push(Piece(records, merged, 0, len(merged) // 4, pieces[0][0]), shard, now)
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
                self.push(Piece(records, stretch, 0, k - begin, pieces[by_row[begin][1]][0]), shard, now)
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


def _manner(delivery: Delivery, records: Records, shard: int) -> tuple[object, ...]:
    """What tells one way to deliver a batch from another."""
    is_early = bool(delivery.until) and shard != NOT_KEPT and records.base_offset < delivery.until[shard]
    alone = delivery if delivery.no_local or is_early else None
    return (delivery.qos, delivery.identifiers, delivery.retain_as_published, delivery.position, alone)
