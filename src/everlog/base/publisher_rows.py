"""The columns of an open batch that say who has published each row, and with which packet id.

Owned by a `RecordBuilder`, which says how many rows there are. The names of the publishers are those of the segment, in
`table.publishers`: None until a message of the segment names its publisher. From then on every row has a publisher,
or NO_PUBLISHER. Packet ids are those of QoS 2 messages of durable sessions, 0 for all others.
"""

from itertools import count

import cython

from everlog.base.errors import UsageError
from everlog.base.records import VERSION

if not cython.compiled:
    from everlog.base.columns import DROPPED, MessageColumns
    from everlog.base.memory import copy, pointer, put32, u16s, u32s
    from everlog.base.publisher_name import PublisherColumn, PublisherName
    from everlog.base.records import NO_PUBLISHER, WITH_PACKET_IDS, WITH_PUBLISHERS, Layout, pad
    from everlog.base.topic_table import TopicTable

_SEGMENTS = count(1)  # no two segments of this process have the same number


class PublisherRows:
    """Both columns, and which publishers of the segment have been named."""

    def __init__(self) -> None:
        self.publishers = bytearray()
        self.packet_ids = bytearray()  # all zero while `with_ids` is not set
        self.start_segment()

    def start_segment(self) -> int:
        """Start a segment, in which nobody is named yet."""
        self.segment = next(_SEGMENTS)
        self.named = 0
        return self.clear()

    def continue_segment(self, table: TopicTable, names: list[bytes]) -> None:
        """Go on in a segment whose batches already named these publishers."""
        table.publishers = TopicTable(0, 1 << 30, 1 << 31)
        for name in names:
            table.publishers.intern(name)
        self.named = table.publishers.count

    def kind(self, table: TopicTable) -> int:
        """Return the header's flags of the columns that a batch has."""
        return (WITH_PUBLISHERS if table.publishers is not None else 0) | (WITH_PACKET_IDS if self.with_ids else 0)

    def width(self, table: TopicTable) -> int:
        """Return how many bytes a row takes in the columns."""
        return (4 if table.publishers is not None else 0) + (2 if self.with_ids else 0)

    def clear(self) -> int:
        """Begin another batch."""
        self.with_ids = False
        if len(self.packet_ids):
            self.packet_ids = bytearray()
        return 0

    def drop(self, rows: int) -> int:
        """Drop the first rows."""
        del self.publishers[: 4 * rows], self.packet_ids[: 2 * rows]
        return 0

    def note(
        self,
        table: TopicTable,
        first: int,
        end: int,
        columns: MessageColumns,
        start: int,
        stop: int,
        routes: bytearray | None,
        wanted: int,
        publisher: PublisherName | PublisherColumn | None,
    ) -> int:
        """Note who has published rows `first` to before `end`, which were taken from these messages by these routes."""
        if table.publishers is None:
            table.publishers = TopicTable(0, 1 << 30, 1 << 31)
            self.publishers = bytearray(b"\xff" * (4 * end))
        if len(self.publishers) < 4 * end:
            self.publishers.extend(bytes(4 * end))
        if isinstance(publisher, PublisherColumn):
            column = publisher
            return self._note_each(table.publishers, first, columns, start, stop, routes, wanted, column)
        number = NO_PUBLISHER
        if publisher is not None:
            one = publisher
            number = one.number_in(table.publishers, self.segment)
            if one.keeps_ids:
                self._note_ids(first, columns, start, stop, routes, wanted, None)
        who = u32s(self.publishers)
        for i in range(first, end):
            who[i] = number
        return 0

    def _note_each(
        self,
        publishers: TopicTable,
        first: int,
        columns: MessageColumns,
        start: int,
        stop: int,
        routes: bytearray | None,
        wanted: int,
        column: PublisherColumn,
    ) -> int:
        """Note the publisher of each row by a column."""
        known = len(column.names)
        if len(column.places) < 4 * stop:
            raise UsageError(f"publishers for {len(column.places) // 4} of {stop} messages")
        places = u32s(column.places)
        who = u32s(self.publishers)
        keeps_ids = False
        at = first
        for i in range(start, stop):
            if not _is_taken(columns, i, routes, wanted):
                continue
            if places[i] >= known:
                raise UsageError(f"message {i} is of publisher {places[i]} of {known}")
            one = column.names[places[i]]
            who[at] = NO_PUBLISHER
            if one is not None:
                who[at] = one.number_in(publishers, self.segment)
                keeps_ids = keeps_ids or one.keeps_ids
            at += 1
        if keeps_ids:
            self._note_ids(first, columns, start, stop, routes, wanted, column)
        return 0

    def _note_ids(
        self,
        first: int,
        columns: MessageColumns,
        start: int,
        stop: int,
        routes: bytearray | None,
        wanted: int,
        column: PublisherColumn | None,
    ) -> int:
        """Note the packet ids of QoS 2 messages: of all, or by a column of those whose publishers keep them."""
        flags = pointer(columns.flags)
        ids = u16s(columns.packet_ids)
        at = first
        for i in range(start, stop):
            if not _is_taken(columns, i, routes, wanted):
                continue
            if flags[i] >> 1 & 3 == 2:
                keeps_ids = True
                if column is not None:
                    one = column.names[u32s(column.places)[i]]
                    keeps_ids = one is not None and one.keeps_ids
                if keeps_ids:
                    self.with_ids = True
                    if len(self.packet_ids) < 2 * (at + 1):
                        self.packet_ids.extend(bytes(2 * (at + stop - i)))
                    u16s(self.packet_ids)[at] = ids[i]
            at += 1
        return 0

    def layout(
        self,
        table: TopicTable,
        rows: int,
        new: int,
        name_bytes: int,
        property_bytes: int,
        payload_bytes: int,
        kind: int,
    ) -> Layout:
        """Return the layout of a batch of the first rows, whose other columns are as given."""
        publishers = table.publishers
        if publishers is None:
            return Layout(rows, new, name_bytes, property_bytes, payload_bytes, kind | self.kind(table))
        begin = u32s(publishers.ends)[self.named]
        return Layout(
            rows, new, name_bytes, property_bytes, payload_bytes, kind | self.kind(table), VERSION,
            publishers.count - self.named, publishers.name_bytes - begin, self.named,
        )  # fmt: skip

    def write(self, out: bytearray, plan: Layout, table: TopicTable) -> int:
        """Write the columns of a batch, and the names that are new in it."""
        rows = plan.count
        if plan.packet_ids:
            if len(self.packet_ids) < 2 * rows:
                self.packet_ids.extend(bytes(2 * rows))
            copy(out, plan.packet_ids, pointer(self.packet_ids), 0, 2 * rows)
            pad(out, plan.packet_ids + 2 * rows)
        publishers = table.publishers
        if publishers is not None:
            copy(out, plan.publishers, pointer(self.publishers), 0, 4 * rows)
            pad(out, plan.publishers + 4 * rows)
            if plan.new_publishers:
                write_names(out, plan.publisher_ends(), plan.publisher_names(), publishers, self.named)
            self.named = publishers.count
        return 0


def write_names(out: bytearray, ends_at: int, names_at: int, table: TopicTable, first: int) -> int:
    """Write the names of a table from an id on: where each ends, and their bytes."""
    ends = u32s(table.ends)
    begin = ends[first]
    new = table.count - first
    size = table.name_bytes - begin
    for i in range(new + 1):
        put32(out, ends_at + 4 * i, ends[first + i] - begin)
    pad(out, ends_at + 4 * (new + 1))
    copy(out, names_at, pointer(table.names), begin, size)
    return pad(out, names_at + size)


def _is_taken(columns: MessageColumns, i: int, routes: bytearray | None, wanted: int) -> bool:
    """Return whether a message was taken by a builder with these routes."""
    flag = pointer(columns.flags)[i]
    if flag & DROPPED:
        return False
    return routes is None or pointer(routes)[4 * u32s(columns.topics)[i] + (flag >> 1 & 3)] == wanted
