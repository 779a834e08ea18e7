"""Build the topic index of a segment that is being sealed, from its dictionary and its batches' topic ids."""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from crc32c import crc32c
from pyroaring import BitMap

from everlog.base import UsageError
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
    from_u32,
    pack_block,
    pack_column,
    pack_header,
)
from everlog.topics.postings import FEW, Posting, Postings

FEW_BATCHES = 64  # in a topic's row itself; a topic with more has a bitmap, so that a block stays small


def build_index(names: Sequence[str], batches: Sequence[Iterable[int]]) -> bytes:
    """The index of the topics `names` (by id, from 0) and of the topic ids that each batch holds, repeats allowed."""
    postings = Postings()
    postings.extend(0, names)
    used = [ids if isinstance(ids, BitMap) else BitMap(ids) for ids in batches]
    if any(ids and ids.max() >= len(names) for ids in used):
        raise UsageError("a batch holds a topic id that the dictionary does not")
    writer = _Writer(entries=4 + len(postings.levels) + len(postings.depths))
    writer.add(NAMES, 0, b"".join(writer.blocks(_encoded(names))))
    writer.add(BATCHES, 0, b"".join(writer.blocks(_batch_rows(len(names), used, writer))))
    for number, table in enumerate(postings.levels):
        writer.add_level(number, table)
    for depth, ids in sorted(postings.depths.items()):
        writer.add_bitmap(DEPTH, depth, ids)
    writer.add_bitmap(DOLLAR, 0, postings.dollar())
    writer.add_bitmap(USED_BATCHES, 0, BitMap(number for number, ids in enumerate(used) if ids))
    return writer.finish(topics=len(names), batches=len(used), depth=len(postings.levels))


class _Writer:
    """Parts in file order behind a header and a directory whose sizes are known before."""

    def __init__(self, entries: int) -> None:
        self._entries = entries
        self._directory: list[bytes] = []
        self._parts: list[bytes] = []
        self._position = HEADER.size + entries * ENTRY.size

    def put(self, part: bytes) -> bytes:
        """Write a part; gives back the packed reference to it."""
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
        """A row with a few ids, or with a reference to the bitmap of many, written before the row's block."""
        if isinstance(posting, int):
            return IDS + posting.to_bytes(4, "little")
        if len(posting) <= FEW:
            return IDS + from_u32(posting)
        return BLOB + self.put(_packed(posting if isinstance(posting, BitMap) else BitMap(posting)))

    def blocks(self, rows: Iterable[bytes]) -> Iterator[bytes]:
        """Write rows in blocks; gives the references to them."""
        block: list[bytes] = []
        for row in rows:
            block.append(row)
            if len(block) == ROWS_PER_BLOCK:
                yield self.put(pack_block(block))
                block = []
        if block:
            yield self.put(pack_block(block))

    def finish(self, *, topics: int, batches: int, depth: int) -> bytes:
        """The whole index."""
        directory = b"".join(self._directory)
        header = Header(ROWS_PER_BLOCK, topics, batches, depth, self._entries, self._position, crc32c(directory))
        return b"".join((pack_header(header), directory, *self._parts))


def _encoded(names: Sequence[str]) -> Iterator[bytes]:
    return (name.encode() for name in names)


def _packed(ids: BitMap) -> bytes:
    ids.run_optimize()
    return ids.serialize()


def _batch_rows(topics: int, batches: Sequence[BitMap], writer: _Writer) -> Iterator[bytes]:
    # a counting sort of (topic, batch), so that memory is 4 bytes a pair
    counts = array("I", bytes(4 * topics))
    for ids in batches:
        for topic_id in ids:
            counts[topic_id] += 1
    ends = array("Q", accumulate(counts))
    places = array("Q", [0]) + ends
    pairs = array("I", bytes(4 * (ends[-1] if topics else 0)))
    for number, ids in enumerate(batches):
        for topic_id in ids:
            place = places[topic_id]
            pairs[place] = number
            places[topic_id] = place + 1
    begin = 0
    for end in ends:
        if end - begin <= FEW_BATCHES:
            yield IDS + from_u32(pairs[begin:end])
        else:
            yield writer.posting(BitMap(pairs[begin:end]))
        begin = end
