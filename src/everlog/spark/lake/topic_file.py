"""The topic file beside a data file of the table: which of its rows have which topic, and which pages hold them.

Derived data (`docs/formats/topic-file.md`): written before the data file is committed, and never changed. Every part is
checked before it is used. Whoever finds none, or one that can't be trusted, reads the data file by its statistics.
"""

from collections.abc import Sequence
from functools import lru_cache
from struct import Struct

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from crc32c import crc32c
from pyroaring import BitMap

from everlog.base import StorageError, table_of
from everlog.spark.lake.page_map import LeafPages, Numbers, PageMap, pack_group, unpack_group
from everlog.topics import Filter, SectionCache, TopicIndex, build_index

MAGIC = b"EVLT"
VERSION = 1
STARTS_A_BLOCK = 2048
FEW_BYTES = 17  # of a posting: so few topics are told apart by their names

# magic, version, zero, bytes and rows of the data file, topics, row groups, bytes of the leaves, bytes of the topic
# index, check of the directory, check of the header
_HEADER = Struct("<4sHHQQIIIQII")
_CHECK = Struct("<I")
_GROUP = np.dtype([("rows", "<u4"), ("bytes", "<u4"), ("check", "<u4")])
_NULLS = "\0"  # behind a leaf that has nothing but nulls


def pack_topic_file(
    names: Sequence[str], starts: Numbers, pages: PageMap, nulls: Sequence[str], data_bytes: int
) -> bytes:
    """Return the topic file of topics in the order of their rows.

    `starts` says where the rows of each topic begin, and where the last end; `nulls` are columns without a value.
    """
    leaves = "\n".join(leaf + _NULLS * (_column(leaf) in nulls) for leaf in pages.leaves).encode()
    index = _index_of(tuple(names))
    packed = starts.astype("<u4").tobytes()
    blocks = [packed[at : at + 4 * STARTS_A_BLOCK] for at in range(0, len(packed), 4 * STARTS_A_BLOCK)]
    groups = [pack_group(group) for group in pages.groups]
    table = np.array([(rows, len(one), crc32c(one)) for rows, one in zip(pages.rows, groups, strict=True)], _GROUP)
    checks = np.array([crc32c(block) for block in blocks], "<u4")
    directory = table.tobytes() + checks.tobytes() + leaves
    fields = _HEADER.pack(
        MAGIC,
        VERSION,
        0,
        data_bytes,
        int(starts[-1]),
        len(names),
        len(groups),
        len(leaves),
        len(index),
        crc32c(directory),
        0,
    )[: -_CHECK.size]
    return b"".join((fields, _CHECK.pack(crc32c(fields)), directory, packed, *groups, index))


@lru_cache(1)
def _index_of(names: tuple[str, ...]) -> bytes:
    """Return the index of topics; the files that a worker writes often have the same ones."""
    return build_index(table_of([name.encode() for name in names]))


class TopicFile:
    """An open topic file. Never changed, so any thread may ask; what was read is kept in the cache."""

    def __init__(self, source: pa.NativeFile, label: str, cache: SectionCache) -> None:
        self._source = source
        self._label = label
        self._cache = cache
        self._owner = cache.new_owner()
        head = self._read(0, _HEADER.size)
        if len(head) < _HEADER.size or _CHECK.unpack(head[-_CHECK.size :])[0] != crc32c(head[: -_CHECK.size]):
            raise self._damaged("header")
        magic, version, _, *counts = _HEADER.unpack(head)
        if magic != MAGIC or version != VERSION:
            raise self._damaged(f"version {version}")
        self.data_bytes, self.rows, self._topics, groups, leaf_bytes, index_bytes, check, _ = counts
        blocks = -(-(self._topics + 1) // STARTS_A_BLOCK)
        length = groups * _GROUP.itemsize + 4 * blocks + leaf_bytes
        directory = self._checked(_HEADER.size, length, check)
        self._groups = np.frombuffer(directory, _GROUP, groups)
        self._checks = np.frombuffer(directory, "<u4", blocks, self._groups.nbytes)
        leaves = directory[length - leaf_bytes :].decode().split("\n")
        self._leaves = [leaf.removesuffix(_NULLS) for leaf in leaves]
        self.nulls = frozenset(_column(leaf.removesuffix(_NULLS)) for leaf in leaves if leaf.endswith(_NULLS))
        self._starts_at = _HEADER.size + length
        groups_at = self._starts_at + 4 * (self._topics + 1)
        ends = np.cumsum(self._groups["bytes"], dtype=np.int64)
        self._group_at = [groups_at, *(groups_at + ends).tolist()]
        self.group_rows = np.cumsum(np.concatenate(([0], self._groups["rows"])), dtype=np.int64)
        if self.group_rows[-1] != self.rows:
            raise self._damaged("number of rows")
        index_at = self._group_at[-1]
        self._index = TopicIndex(
            lambda position, length: self._read(index_at + position, min(length, index_bytes - position)),
            label=label,
            cache=cache,
        )

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the data file."""
        return tuple(dict.fromkeys(map(_column, self._leaves)))

    def match(self, filters: Sequence[Filter]) -> BitMap:
        """Return the ids of the topics that any of the filters matches, which are in the order of their rows."""
        return BitMap().union(*(self._exact(flt) if flt.is_exact else self._index.match(flt) for flt in filters))

    def _exact(self, flt: Filter) -> BitMap:
        """Return the id of one topic: the last levels tell most topics apart, and then their names do."""
        for level in reversed(range(len(flt.levels))):
            found = self._index.find(level, flt.levels[level])
            if found is None:
                return BitMap()
            if found[0] <= FEW_BYTES:
                candidates = found[1]()
                return BitMap(topic for topic, name in self._index.names(candidates) if name == flt.pattern)
        return self._index.match(flt)

    def count(self, filters: Sequence[Filter]) -> int:
        """Return how many rows have a topic that any of the filters matches."""
        topics = self.match(filters)
        if not topics:
            return 0
        starts, stops = self.rows_of(topics)
        return int((stops - starts).sum())

    def names(self, topics: BitMap) -> list[str]:
        """Return the names of topics."""
        return [name for _, name in self._index.names(topics)]

    def rows_of(self, topics: BitMap) -> tuple[Numbers, Numbers]:
        """Return where the rows of each topic begin and end in the file."""
        ids = np.array(topics.to_array(), np.int64)
        wanted = np.concatenate((ids, ids + 1))
        blocks = np.unique(wanted // STARTS_A_BLOCK)
        known = np.concatenate([self._starts(number) for number in blocks.tolist()])
        places = np.searchsorted(blocks, wanted // STARTS_A_BLOCK) * STARTS_A_BLOCK + wanted % STARTS_A_BLOCK
        found = known[places].astype(np.int64)
        return found[: len(ids)], found[len(ids) :]

    def group(self, number: int) -> dict[str, list[LeafPages]]:
        """Return the pages of a row group, by column."""
        position = self._group_at[number]
        held: dict[str, list[LeafPages]] | None = self._cache.get(self._owner, position)
        if held is None:
            rows, length, check = self._groups[number].tolist()
            held = {}
            leaves = unpack_group(self._checked(position, length, check), len(self._leaves), rows)
            for leaf, pages in zip(self._leaves, leaves, strict=True):
                held.setdefault(_column(leaf), []).append(pages)
            self._cache.put(self._owner, position, held, 2 * length)
        return held

    def drop_cache(self) -> None:
        """Let go of what was read."""
        self._index.drop_cache()
        self._cache.drop(self._owner)

    def _starts(self, block: int) -> npt.NDArray[np.uint32]:
        """Return where the rows of a block of topics begin."""
        first = block * STARTS_A_BLOCK
        position = self._starts_at + 4 * first
        held: npt.NDArray[np.uint32] | None = self._cache.get(self._owner, position)
        if held is None:
            length = 4 * min(STARTS_A_BLOCK, self._topics + 1 - first)
            held = np.frombuffer(self._checked(position, length, int(self._checks[block])), "<u4")
            self._cache.put(self._owner, position, held, length)
        return held

    def _checked(self, position: int, length: int, check: int) -> bytes:
        data = self._read(position, length)
        if len(data) < length or crc32c(data) != check:
            raise self._damaged("part")
        return data

    def _read(self, position: int, length: int) -> bytes:
        return bytes(self._source.read_at(length, position))

    def _damaged(self, what: str) -> StorageError:
        return StorageError(f"{self._label}: the {what} can't be trusted", hint="it is derived data, and not needed")


def _column(leaf: str) -> str:
    """Return the column that a leaf belongs to."""
    return leaf.partition(".")[0]
