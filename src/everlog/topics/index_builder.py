"""Builds the topic index of a segment that is being sealed from the names of its topics."""

from array import array
from collections.abc import Iterator, Sequence

from crc32c import crc32c
from pyroaring import BitMap

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


def build_index(names: Sequence[bytes]) -> bytes:
    """Return the index of the topics `names`, which are in the order of their ids."""
    topics = TopicTokens()
    for first in range(0, len(names), _STEP):  # other threads have a turn between two steps
        topics.extend(names, first, min(first + _STEP, len(names)))
    levels = topics.levels
    depths = [BitMap(array("I", bytes(memoryview(level.topics)[: 4 * level.count]))) for level in levels]
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
            bitmaps = [self.put(_packed(BitMap(array("I", ids)))) for ids in level.many(start, stop, FEW)]
            first.append(level.token(start))
            refs.append(self.put(level.block(start, stop, FEW, b"".join(bitmaps))))
        self.add(LEVEL, number, COUNT.pack(len(first)) + pack_column(first) + b"".join(refs))

    def blocks(self, rows: Sequence[bytes]) -> Iterator[bytes]:
        """Write rows in blocks and yield the references to the blocks."""
        for start in range(0, len(rows), ROWS_PER_BLOCK):
            yield self.put(pack_block(rows[start : start + ROWS_PER_BLOCK]))

    def empty_blocks(self, rows: int) -> bytes:
        """Write blocks of so many empty postings and return the references to them."""
        whole = pack_block([IDS] * ROWS_PER_BLOCK)
        refs = [self.put(whole) for _ in range(rows // ROWS_PER_BLOCK)]
        if rows % ROWS_PER_BLOCK:
            refs.append(self.put(pack_block([IDS] * (rows % ROWS_PER_BLOCK))))
        return b"".join(refs)

    def finish(self, *, topics: int, depth: int) -> bytes:
        """Return the whole index."""
        directory = b"".join(self._directory)
        header = Header(ROWS_PER_BLOCK, topics, 0, depth, self._entries, self._position, crc32c(directory))
        return b"".join((pack_header(header), directory, *self._parts))


def _packed(ids: BitMap) -> bytes:
    ids.run_optimize()
    return ids.serialize()
