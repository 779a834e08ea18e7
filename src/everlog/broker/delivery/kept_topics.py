"""What is kept: the filters of durable sessions and those configured, as one byte for each topic id and QoS.

The byte at 4 * topic + QoS is the shard that keeps such a message, or NOT_KEPT. The append kernel reads it; a filter
that comes or goes changes exactly the topics that it matches.
"""

from collections.abc import Callable, Iterable

import cython

from everlog.base import NOT_KEPT
from everlog.topics import Filter, MatchCache, Subscription, SubscriptionTrie, parse_filter

if not cython.compiled:
    from everlog.base import TopicTable

_NOTHING = bytes((NOT_KEPT,)) * 4
_HIGHEST = 3  # a QoS that no message has


class KeptTopics:
    """The kept filters with how many ask for each, and the routes that follow from them."""

    def __init__(self, table: TopicTable, shard_of: Callable[[bytes], int], max_topics: int = 200_000) -> None:
        self._table = table
        self._shard_of = shard_of
        self._counts: dict[tuple[str, int], int] = {}
        self._trie: SubscriptionTrie[int, int] = SubscriptionTrie()
        self._cache: MatchCache[int, int, int] = MatchCache(
            self._trie, _lowest, max_topics=max_topics, on_drop=self._refresh
        )
        self._generation = table.generation
        self._known = 0
        self._stale: list[int] = []
        self._changed = False  # a filter came or went, and routes do not follow from it yet
        self.routes = bytearray()

    def add(self, text: str, min_qos: int = 0) -> None:
        """Keep what matches this filter from now on."""
        flt = _plain(text)
        count = self._counts.get((flt.pattern, min_qos), 0)
        self._counts[flt.pattern, min_qos] = count + 1
        if count == 0:
            self._cache.insert(flt, min_qos, min_qos)
            self._changed = True
            if len(self._counts) == 1:
                self._stale = list(range(self._known))  # what came while nothing was kept has never been looked up

    def remove(self, text: str, min_qos: int = 0) -> None:
        """One less asks for this filter."""
        flt = _plain(text)
        count = self._counts.get((flt.pattern, min_qos), 0)
        if count > 1:
            self._counts[flt.pattern, min_qos] = count - 1
        elif count == 1:
            del self._counts[flt.pattern, min_qos]
            self._cache.remove(flt, min_qos)
            self._changed = True

    def filters(self) -> list[tuple[str, int]]:
        """Every kept filter with its lowest QoS."""
        return sorted(self._counts)

    def extend(self) -> bool:
        """Find the routes of topics that came or changed since; whether any of all is kept.

        Called before routes are used, so any number of filters that come or go together cost this once.
        """
        if self._generation != self._table.generation:
            self._generation = self._table.generation
            self._cache.clear()
            self._stale = []
            self._known = 0
            self.routes = bytearray()
        if self._changed:
            self._changed = False
            stale, self._stale = self._stale, []
            self._fill(stale)
        if self._known < self._table.count:
            first, self._known = self._known, self._table.count
            self.routes.extend(_NOTHING * (self._known - first))
            if self._counts:
                self._fill(range(first, self._known))
        return len(self._counts) > 0

    def _refresh(self, topics: Iterable[int]) -> None:
        """The cache tells no more when these change, so they are worked out anew when a filter has come or gone."""
        self._stale.extend(topics)

    def _fill(self, topics: Iterable[int]) -> None:
        """Work the routes of these topics out."""
        for topic in topics:
            if topic >= self._known:
                continue
            name = self._table.name(topic)
            lowest = self._cache.lookup(topic, name.decode())
            if lowest < _HIGHEST:
                shard = self._shard_of(name)
                route = bytes(shard if qos >= lowest else NOT_KEPT for qos in range(4))
            else:
                route = _NOTHING
            self.routes[4 * topic : 4 * topic + 4] = route


def _plain(text: str) -> Filter:
    flt = parse_filter(text)
    return parse_filter(flt.pattern) if flt.group is not None else flt


def _lowest(matches: list[Subscription[int, int]]) -> int:
    return min((match.value for match in matches), default=_HIGHEST)
