"""The topic index of a sealed segment, read a section at a time.

Opening reads the header and the directory and nothing else; a query reads the sections it needs, checks the CRC of each
and leaves them in a bounded cache. Nothing is written: a damaged index is rebuilt from the log by whoever owns the
segment. Any number of threads may ask at once if `read_at` allows it.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import TypeVar, cast

from pyroaring import BitMap

from everlog.base import UsageError
from everlog.topics import index_format as fmt
from everlog.topics.index_format import ReadAt, Ref, Refs
from everlog.topics.names import Filter
from everlog.topics.postings import select
from everlog.topics.sections import SectionCache

T = TypeVar("T")

OWN_CACHE_BYTES = 1 << 20


class TopicIndex:
    """The topics of a segment: their names, and which of them a filter matches.

    `read_at(position, length)` returns the index's bytes, fewer only at its end. `cache` bounds what queries keep in
    memory and is best shared by all indexes of a store; without it the index has a small one of its own.
    """

    __slots__ = ("_cache", "_directory", "_header", "_label", "_owner", "_read_at")

    def __init__(self, read_at: ReadAt, *, label: str = "", cache: SectionCache | None = None) -> None:
        self._read_at = read_at
        self._label = label
        self._cache = cache if cache is not None else SectionCache(OWN_CACHE_BYTES)
        self._owner = self._cache.new_owner()
        self._header, self._directory = fmt.open_directory(read_at, label)

    @classmethod
    def from_buffer(
        cls, data: bytes | bytearray | memoryview, *, label: str = "", cache: SectionCache | None = None
    ) -> "TopicIndex":
        """Open an index whose bytes are in memory or mapped."""
        view = memoryview(data)
        return cls(lambda position, length: bytes(view[position : position + length]), label=label, cache=cache)

    @property
    def topic_count(self) -> int:
        """The number of topics; their ids count from 0."""
        return self._header.topics

    def match(self, flt: Filter) -> BitMap:
        """Return the ids of the topics that `flt` matches."""
        return select(flt, self)

    def names(self, topic_ids: BitMap) -> Iterator[tuple[int, str]]:
        """Yield the ids and names of these topics, by rising id."""
        if topic_ids and topic_ids.max() >= self.topic_count:
            raise UsageError(f"topic id {topic_ids.max()} is not in the index of {self.topic_count} topics")
        table = self._load(self._directory[fmt.NAMES, 0], Refs, "block table")
        size = self._header.rows_per_block
        for number, ids in groupby(topic_ids, key=lambda topic_id: topic_id // size):
            block = self._load(table[number], fmt.unpack_rows, "block")
            for topic_id in ids:
                yield topic_id, block[topic_id % size].decode()

    def drop_cache(self) -> None:
        """Let go of what queries of this index loaded, as when its segment is closed or removed."""
        self._cache.drop(self._owner)

    def find(self, level: int, token: str) -> tuple[int, Callable[[], BitMap]] | None:
        """See postings.Source."""
        ref = self._directory.get((fmt.LEVEL, level))
        if ref is None:
            return None
        key = token.encode()
        fence = self._load(ref, fmt.unpack_fence, "token table")
        place = bisect_right(fence.first, key) - 1
        if place < 0:
            return None
        block = self._load(fence.refs[place], fmt.unpack_tokens, "token block")
        row = bisect_left(block.tokens, key)
        if row == len(block.tokens) or block.tokens[row] != key:
            return None
        posting = block.postings[row]
        if posting[:1] == fmt.IDS:
            return len(posting), lambda: BitMap(array("I", posting[1:]))
        blob = fmt.unpack_ref(posting, 1)
        return blob.length, lambda: self._load(blob, fmt.unpack_bitmap, "bitmap of a token")

    def at_depth(self, depth: int) -> BitMap:
        """See postings.Source."""
        return self._bitmap(fmt.DEPTH, depth)

    def from_depth(self, depth: int) -> BitMap:
        """See postings.Source."""
        if depth <= 1:
            return BitMap(range(self.topic_count))
        depths = [number for kind, number in self._directory if kind == fmt.DEPTH and number >= depth]
        return BitMap().union(*(self.at_depth(number) for number in depths))

    def dollar(self) -> BitMap:
        """See postings.Source."""
        return self._bitmap(fmt.DOLLAR, 0)

    def _bitmap(self, kind: int, number: int) -> BitMap:
        ref = self._directory.get((kind, number))
        return BitMap() if ref is None else self._load(ref, fmt.unpack_bitmap, "bitmap")

    def _load(self, ref: Ref, decode: Callable[[bytes], T], what: str) -> T:
        """Return a decoded section, from the cache or read and checked."""
        held = self._cache.get(self._owner, ref.position)
        if held is not None:
            return cast(T, held)
        section = decode(fmt.read_part(self._read_at, ref, what, self._label))
        if ref.length:  # an empty part shares its position with the next
            self._cache.put(self._owner, ref.position, section, ref.length)
        return section
