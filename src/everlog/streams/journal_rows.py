"""Records of a state shard as columns of its log: the stream's name is the topic, the encoded effect the payload."""

from collections.abc import Iterable, Iterator

import cython

if not cython.compiled:
    from everlog.base import MessageColumns, TopicTable
    from everlog.base.memory import Buffer, copy, part, pointer, resize, room, u32s

_FIRST_BYTES, _FIRST_ROWS = 8192, 32


class TurnRecords:
    """The records of one turn, encoded one behind the other; to a journal, a sequence of (stream name, effect).

    There is room at once for about so many, of so many bytes: what the turn before it had.
    """

    def __init__(self, rows: int = 0, size: int = 0) -> None:
        self.names: list[str] = []
        self.data = room(size + size // 4 + _FIRST_BYTES)
        self.ends = room(4 * (rows + rows // 4 + _FIRST_ROWS))
        self.size = 0

    def add(self, name: str, source: "Buffer", size: int) -> int:
        """Add a record: the first bytes of a buffer."""
        count = len(self.names)
        if self.size + size > len(self.data):
            resize(self.data, 2 * (self.size + size))
        if 4 * count == len(self.ends):
            resize(self.ends, 8 * count)
        copy(pointer(self.data), self.size, pointer(source), 0, size)
        self.size += size
        u32s(self.ends)[count] = self.size
        self.names.append(name)
        return 0

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[tuple[str, bytes]]:
        return iter([self[number] for number in range(len(self.names))])

    def __getitem__(self, number: int) -> tuple[str, bytes]:
        if not 0 <= number < len(self.names):
            raise IndexError(number)
        begin = u32s(self.ends)[number - 1] if number else 0
        return self.names[number], part(pointer(self.data), begin, u32s(self.ends)[number])


def fill_columns(
    columns: "MessageColumns",
    records: "Iterable[tuple[str, bytes]]",
    table: "TopicTable",
    numbers: dict[str, int],
) -> int:
    """Fill columns with records of (stream name, effect); `numbers` remembers the names that the table has."""
    if isinstance(records, TurnRecords):
        turn = records
    else:
        turn = TurnRecords()
        for record in records:
            turn.add(record[0], record[1], len(record[1]))
    names = turn.names
    ends_in = u32s(turn.ends)
    count = len(names)
    while columns.capacity < count:
        columns.grow()
    columns.source = turn.data
    topics = u32s(columns.topics)
    sections = u32s(columns.property_starts)
    starts = u32s(columns.payload_starts)
    ends = u32s(columns.payload_ends)
    columns.flags[:count] = bytes(count)
    end = 0
    for row in range(count):
        name = names[row]
        number = numbers.get(name)
        if number is None:
            number = numbers[name] = table.intern(name.encode())
        topics[row] = number
        sections[row] = starts[row] = end
        end = ends_in[row]
        ends[row] = end
    return 0
