"""Selects topics by bitmaps: topic ids by token for each level, and by depth; a filter is an AND of a few of them.

`select` is the one algorithm, over any `Source` of postings: `Postings` holds them in memory and grows topic by topic
(for an open segment, the match cache), `TopicIndex` reads them from a sealed segment's side file.
"""

from array import array
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, islice
from typing import Protocol

from pyroaring import BitMap

from everlog.topics.names import Filter

# One id, a few in rising order, or many: most tokens of a deep level have one or a few.
Posting = int | list[int] | BitMap
FEW = 16

# What was measured to be taken by a token besides its characters, by an id in a list, by a bitmap and an id in it.
_TOKEN_BYTES = 90
_ID_BYTES = 40
_BITMAP_BYTES = 400
_BIT_BYTES = 4

_CHUNK = 65_536  # topics split at once when many are added; bounds what the tokens hold meanwhile


class Source(Protocol):
    """A source of bitmaps for `select`, which must not change what it is given."""

    def find(self, level: int, token: str) -> "tuple[int, Callable[[], BitMap]] | None":
        """Return a rough size and a loader of the ids that have `token` at `level`; None if there are none."""

    def at_depth(self, depth: int) -> BitMap:
        """Return the ids of the topics with exactly `depth` levels."""

    def from_depth(self, depth: int) -> BitMap:
        """Return the ids of the topics with `depth` levels or more."""

    def dollar(self) -> BitMap:
        """Return the ids of the topics that begin with `$`."""


def select(flt: Filter, source: Source) -> BitMap:
    """Return the ids of the topics that `flt` matches, as a bitmap that the caller may change."""
    fixed = flt.levels
    if flt.ends_open:
        fixed.pop()
    found = []
    for number, token in enumerate(fixed):
        if token != "+":
            posting = source.find(number, token)
            if posting is None:  # before any bitmap is loaded: a filter that matches nothing is cheap
                return BitMap()
            found.append(posting)
    found.sort(key=lambda posting: posting[0])
    result: BitMap | None = None
    for _, load in found:
        result = load() if result is None else result & load()
        if not result:
            return BitMap()
    if not flt.ends_open:
        depth = source.at_depth(len(fixed))
        result = depth if result is None else result & depth
    elif not fixed or fixed[-1] == "+":  # a literal last level implies that many levels
        depth = source.from_depth(len(fixed))
        result = depth if result is None else result & depth
    if flt.starts_wild:  # [MQTT-4.7.2-1] a leading wildcard does not match $ topics
        return (result if result is not None else BitMap()) - source.dollar()
    return result.copy() if result is not None else BitMap()


def to_bitmap(posting: Posting) -> BitMap:
    """Return the posting's ids as a bitmap, the posting itself if it is one."""
    if isinstance(posting, BitMap):
        return posting
    return BitMap((posting,)) if isinstance(posting, int) else BitMap(array("I", posting))


class Postings:
    """The postings of topics in memory; each id is added once. Memory follows the number of distinct tokens."""

    __slots__ = ("_all", "_dollar", "depths", "levels", "size_bytes")

    def __init__(self) -> None:
        self.size_bytes = 0  # of the topics that were added one by one
        self.levels: list[dict[str, Posting]] = []
        self.depths: dict[int, BitMap] = {}
        self._dollar = BitMap()
        self._all = BitMap()

    def __len__(self) -> int:
        return len(self._all)

    def __contains__(self, topic_id: int) -> bool:
        return topic_id in self._all

    def add(self, topic_id: int, name: str) -> None:
        """Add one topic under an id that is not there yet."""
        tokens = name.split("/")
        self._grow(len(tokens))
        for table, token in zip(self.levels, tokens, strict=False):
            posting = table.get(token)
            if posting is None:
                table[token] = topic_id
                self.size_bytes += _TOKEN_BYTES + len(token)
            else:
                before = _size(posting)
                table[token] = after = _with(posting, topic_id)
                self.size_bytes += _size(after) - before
        if name.startswith("$"):
            self._dollar.add(topic_id)
        self.depths.setdefault(len(tokens), BitMap()).add(topic_id)
        self._all.add(topic_id)

    def remove(self, topic_id: int, name: str) -> None:
        """Take out a topic that was added under this id and name; nothing happens if the id is not there."""
        if topic_id not in self._all:
            return
        tokens = name.split("/")
        for table, token in zip(self.levels, tokens, strict=False):
            before = _size(table[token])
            posting = _without(table[token], topic_id)
            if posting is None:
                del table[token]
                self.size_bytes -= before + _TOKEN_BYTES + len(token)
            else:
                table[token] = posting
                self.size_bytes += _size(posting) - before
        for ids in (self.depths[len(tokens)], self._dollar, self._all):
            ids.discard(topic_id)

    def extend(self, first_id: int, names: Iterable[str]) -> None:
        """Add many topics under the ids from `first_id` on, none of which is there yet."""
        rest = iter(names)
        while chunk := list(islice(rest, _CHUNK)):
            self._extend(first_id, chunk)
            first_id += len(chunk)

    def may_match(self, flt: Filter) -> bool:
        """Return whether `flt` may match a topic, by its first level alone."""
        if not self._all:
            return False
        first = flt.pattern.partition("/")[0]
        return first == "+" or first == "#" or first in self.levels[0]

    def select(self, flt: Filter) -> BitMap:
        """Return the ids of the topics that `flt` matches."""
        return select(flt, self)

    def find(self, level: int, token: str) -> tuple[int, Callable[[], BitMap]] | None:
        """See Source."""
        posting = self.levels[level].get(token) if level < len(self.levels) else None
        if posting is None:
            return None
        kept = posting
        return 1 if isinstance(kept, int) else len(kept), lambda: to_bitmap(kept)

    def at_depth(self, depth: int) -> BitMap:
        """See Source."""
        return self.depths.get(depth) or BitMap()

    def from_depth(self, depth: int) -> BitMap:
        """See Source."""
        if depth <= 1:
            return self._all
        return BitMap().union(*(ids for levels, ids in self.depths.items() if levels >= depth))

    def dollar(self) -> BitMap:
        """See Source."""
        return self._dollar

    def _grow(self, depth: int) -> None:
        while len(self.levels) < depth:
            self.levels.append({})

    def _extend(self, first_id: int, names: Sequence[str]) -> None:
        groups: dict[int, list[int]] = {}
        for place, slashes in enumerate([name.count("/") for name in names]):
            groups.setdefault(slashes + 1, []).append(place)
        for depth, places in groups.items():
            self._grow(depth)
            # topics of one depth, joined and split in one call each: level n is every depth-th token
            tokens = "/".join([names[place] for place in places]).split("/")
            ids = [first_id + place for place in places]
            for level in range(depth):
                _merge(self.levels[level], tokens[level::depth], ids)
            self.depths[depth] = self.at_depth(depth) | BitMap(array("I", ids))
        self._dollar.update(first_id + place for place, name in enumerate(names) if name.startswith("$"))
        self._all.add_range(first_id, first_id + len(names))


def _size(posting: Posting) -> int:
    """Return the memory of a posting besides its token."""
    if isinstance(posting, int):
        return 0
    return _ID_BYTES * len(posting) if isinstance(posting, list) else _BITMAP_BYTES + _BIT_BYTES * len(posting)


def _with(posting: Posting, topic_id: int) -> Posting:
    if isinstance(posting, int):
        return [posting, topic_id] if posting < topic_id else [topic_id, posting]
    if isinstance(posting, BitMap):
        posting.add(topic_id)
        return posting
    if len(posting) >= FEW:
        return BitMap(chain(posting, (topic_id,)))
    return sorted([*posting, topic_id])


def _without(posting: Posting, topic_id: int) -> Posting | None:
    if isinstance(posting, int):
        return None if posting == topic_id else posting
    if isinstance(posting, BitMap):
        posting.discard(topic_id)
        return posting or None
    return [known for known in posting if known != topic_id] or None


def _merge(table: dict[str, Posting], column: list[str], ids: list[int]) -> None:
    fresh: dict[str, list[int]] = {}
    for token, topic_id in zip(column, ids, strict=True):
        if token in fresh:
            fresh[token].append(topic_id)
        else:
            fresh[token] = [topic_id]
    for token, more in fresh.items():
        posting = table.get(token)
        if posting is None:
            table[token] = more[0] if len(more) == 1 else more if len(more) <= FEW else BitMap(array("I", more))
        elif isinstance(posting, BitMap):
            posting.update(array("I", more))
        else:
            known = [posting] if isinstance(posting, int) else posting
            both = sorted(known + more)
            table[token] = both if len(both) <= FEW else BitMap(array("I", both))
