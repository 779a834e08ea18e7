"""Builds the topic index of a segment that is being sealed from the names of its topics."""

from array import array
from collections.abc import Iterable, Iterator, Sequence

from crc32c import crc32c
from pyroaring import BitMap

from everlog.topics.index_format import (
    BATCHES,
    BLOB,
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
from everlog.topics.postings import FEW, Posting, Postings


def build_index(names: Sequence[str]) -> bytes:
    """Return the index of the topics `names`, which are in the order of their ids."""
    postings = Postings()
    postings.extend(0, names)
    writer = _Writer(entries=4 + len(postings.levels) + len(postings.depths))
    writer.add(NAMES, 0, b"".join(writer.blocks(name.encode() for name in names)))
    writer.add(BATCHES, 0, b"".join(writer.blocks(IDS for _ in names)))  # empty: row postings say more than batches
    for number, table in enumerate(postings.levels):
        writer.add_level(number, table)
    for depth, ids in sorted(postings.depths.items()):
        writer.add_bitmap(DEPTH, depth, ids)
    writer.add_bitmap(DOLLAR, 0, postings.dollar())
    writer.add_bitmap(USED_BATCHES, 0, BitMap())
    return writer.finish(topics=len(names), depth=len(postings.levels))


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

    def add_level(self, number: int, table: dict[str, Posting]) -> None:
        """Write a level's tokens and postings, sorted by the tokens' UTF-8, which is the order of their code points."""
        first: list[bytes] = []
        refs: list[bytes] = []
        tokens = sorted(table)
        for start in range(0, len(tokens), ROWS_PER_BLOCK):
            rows = tokens[start : start + ROWS_PER_BLOCK]
            keys = [token.encode() for token in rows]
            first.append(keys[0])
            refs.append(self.put(pack_block(keys, [self.posting(table[token]) for token in rows])))
        self.add(LEVEL, number, COUNT.pack(len(first)) + pack_column(first) + b"".join(refs))

    def posting(self, posting: Posting) -> bytes:
        """Return a row of a few ids, or of a reference to the bitmap of many, which is written now."""
        if isinstance(posting, int):
            return IDS + posting.to_bytes(4, "little")
        if len(posting) <= FEW:
            return IDS + array("I", posting).tobytes()
        return BLOB + self.put(_packed(posting if isinstance(posting, BitMap) else BitMap(posting)))

    def blocks(self, rows: Iterable[bytes]) -> Iterator[bytes]:
        """Write rows in blocks and yield the references to the blocks."""
        block: list[bytes] = []
        for row in rows:
            block.append(row)
            if len(block) == ROWS_PER_BLOCK:
                yield self.put(pack_block(block))
                block = []
        if block:
            yield self.put(pack_block(block))

    def finish(self, *, topics: int, depth: int) -> bytes:
        """Return the whole index."""
        directory = b"".join(self._directory)
        header = Header(ROWS_PER_BLOCK, topics, 0, depth, self._entries, self._position, crc32c(directory))
        return b"".join((pack_header(header), directory, *self._parts))


def _packed(ids: BitMap) -> bytes:
    ids.run_optimize()
    return ids.serialize()
