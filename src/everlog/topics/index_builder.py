"""Builds the topic index of a segment that is being sealed from the names of its topics."""

from array import array
from collections.abc import Iterator

from crc32c import crc32c
from pyroaring import BitMap

from everlog.base import TopicTable
from everlog.topics.index_format import (
    BATCHES,
    COUNT,
    DEPTH,
    DOLLAR,
    ENTRY,
    HEADER,
    IDS,
    LEVEL,
    NAMES,
    REF,
    ROWS_PER_BLOCK,
    USED_BATCHES,
    Header,
    pack_block,
    pack_column,
    pack_header,
)
from everlog.topics.level_tokens import LevelTokens, TopicTokens

FEW = 16  # topics of a token that stand in its row; those of more are a bitmap
_STEP = 1024  # names


def build_index(names: TopicTable) -> bytes:
    """Return the index of topics, whose ids are those of the table."""
    return b"".join(index_parts(names))


def index_parts(names: TopicTable) -> list[bytes]:
    """Return the index of topics, whose ids are those of the table, in parts."""
    topics = TopicTokens()
    for first in range(0, len(names), _STEP):  # other threads have a turn between two steps
        topics.extend(names, min(first + _STEP, len(names)))
    levels = topics.levels
    depths = [_bitmap(memoryview(level.topics)[: 4 * level.count]) for level in levels]
    for depth in range(len(levels) - 1):  # those with one level more have this one too
        depths[depth] -= depths[depth + 1]
    writer = _Writer(entries=4 + len(levels) + sum(1 for ids in depths if ids))
    writer.add(NAMES, 0, b"".join(writer.blocks(names)))
    writer.add(BATCHES, 0, writer.empty_blocks(len(names)))  # row postings say more than batches
    for number, level in enumerate(levels):
        writer.add_level(number, level)
    for depth, ids in enumerate(depths, 1):
        if ids:
            writer.add_bitmap(DEPTH, depth, ids)
    writer.add_bitmap(DOLLAR, 0, BitMap(topics.dollar))
    writer.add_bitmap(USED_BATCHES, 0, BitMap())
    return writer.finish(topics=len(names), depth=len(levels))


class _Writer:
    """The parts of an index in file order, behind a header and a directory whose sizes are known beforehand."""

    def __init__(self, entries: int) -> None:
        self._entries = entries
        self._directory: list[bytes] = []
        self._parts: list[bytes] = []
        self._position = HEADER.size + entries * ENTRY.size

    def put(self, part: bytes) -> bytes:
        """Write a part and return the packed reference to it."""
        ref = REF.pack(self._position, len(part), crc32c(part))
        self._parts.append(part)
        self._position += len(part)
        return ref

    def add(self, kind: int, number: int, part: bytes) -> None:
        """Write a part that the directory points to."""
        self._directory.append(ENTRY.pack(kind, number, *REF.unpack(self.put(part))))

    def add_bitmap(self, kind: int, number: int, ids: BitMap) -> None:
        """Write a bitmap that the directory points to."""
        self.add(kind, number, _packed(ids))

    def add_level(self, number: int, level: LevelTokens) -> None:
        """Write a level's tokens and postings, sorted by the tokens' UTF-8."""
        level.sort()
        first: list[bytes] = []
        refs: list[bytes] = []
        for start in range(0, len(level), ROWS_PER_BLOCK):
            stop = min(start + ROWS_PER_BLOCK, len(level))
            bitmaps = [self.put(_packed(_bitmap(memoryview(ids)))) for ids in level.many(start, stop, FEW)]
            first.append(level.token(start))
            refs.append(self.put(level.block(start, stop, FEW, b"".join(bitmaps))))
        self.add(LEVEL, number, COUNT.pack(len(first)) + pack_column(first) + b"".join(refs))

    def blocks(self, names: TopicTable) -> Iterator[bytes]:
        """Write names in blocks and yield the references to the blocks."""
        for start in range(0, len(names), ROWS_PER_BLOCK):
            stop = min(start + ROWS_PER_BLOCK, len(names))
            yield self.put(COUNT.pack(stop - start) + names.packed(start, stop))

    def empty_blocks(self, rows: int) -> bytes:
        """Write a block of empty postings and return references to it for so many rows."""
        whole, rest = divmod(rows, ROWS_PER_BLOCK)
        refs = self.put(pack_block([IDS] * ROWS_PER_BLOCK)) * whole if whole else b""
        return refs + self.put(pack_block([IDS] * rest)) if rest else refs

    def finish(self, *, topics: int, depth: int) -> list[bytes]:
        """Return the whole index, in parts."""
        directory = b"".join(self._directory)
        header = Header(ROWS_PER_BLOCK, topics, 0, depth, self._entries, self._position, crc32c(directory))
        return [pack_header(header), directory, *self._parts]


def _bitmap(ids: memoryview) -> BitMap:
    """Return the bitmap of ids that rise, packed as u32s."""
    rising = ids.cast("I")
    if rising and rising[-1] - rising[0] == len(rising) - 1:
        return BitMap(range(rising[0], rising[-1] + 1))
    return BitMap(array("I", ids.tobytes()))


def _packed(ids: BitMap) -> bytes:
    ids.run_optimize()
    return ids.serialize()
