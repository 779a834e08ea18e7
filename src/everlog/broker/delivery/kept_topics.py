"""Which messages the log keeps, by the filters of durable sessions and settings: a byte for each topic id and QoS.

The byte at 4 * topic + QoS is the shard that keeps such a message, or NOT_KEPT. The append kernel reads it; adding or
removing a filter changes exactly the topics that it matches. What the settings never keep (`never`) takes topics from
their own filters alone: a durable session gets all it has subscribed to. A topic that the settings keep at every QoS
stays so whoever subscribes, and is not cached.
"""

from collections.abc import Callable, Iterable

import cython

from everlog.base import NOT_KEPT
from everlog.topics import Filter, MatchCache, Subscription, SubscriptionTrie, parse_filter

if not cython.compiled:
    from everlog.base import TopicTable

_NOTHING = bytes((NOT_KEPT,)) * 4
_HIGHEST = 3  # a QoS that no message has
_NEVER = 4  # in place of a lowest QoS: the settings do not keep what matches
_OWED = -1  # in place of a lowest QoS: a durable session is owed what matches, at any QoS


class KeptTopics:
    """The kept filters, each with the number of its users, and the routes that follow from them."""

    def __init__(self, table: TopicTable, shard_of: Callable[[bytes], int], max_topics: int = 200_000) -> None:
        self._table = table
        self._shard_of = shard_of
        self._counts: dict[tuple[str, int], int] = {}
        self._trie: SubscriptionTrie[int, int] = SubscriptionTrie()
        self._cache: MatchCache[int, int, int] = MatchCache(
            self._trie, _lowest, max_topics=max_topics, on_drop=self._refresh
        )
        self._settings: SubscriptionTrie[int, int] = SubscriptionTrie()
        self._generation = table.generation
        self._known = 0
        self._stale: list[int] = []
        self._changed = False  # a filter was added or removed, and `routes` does not reflect it yet
        self.routes = bytearray()

    def configure(self, filters: Iterable[tuple[str, int]], never: Iterable[str] = ()) -> None:
        """Keep what matches filters of the settings, each from a QoS upwards, unless it matches one of `never`."""
        rules = list(filters)
        for text, min_qos in [*rules, *((text, _NEVER) for text in never)] if rules else ():
            self._add(text, min_qos)
            self._settings.insert(_plain(text), min_qos, min_qos)

    def add(self, text: str) -> None:
        """Keep what matches a filter of a durable session from now on."""
        self._add(text, _OWED)

    def _add(self, text: str, min_qos: int) -> None:
        flt = _plain(text)
        count = self._counts.get((flt.pattern, min_qos), 0)
        self._counts[flt.pattern, min_qos] = count + 1
        if count == 0:
            self._cache.insert(flt, min_qos, min_qos)
            self._changed = True
            if len(self._counts) == 1:
                self._stale = list(range(self._known))  # topics that came while nothing was kept were never looked up

    def remove(self, text: str) -> None:
        """Take back one `add` of a filter; with the last it is not kept for a session any more."""
        flt = _plain(text)
        count = self._counts.get((flt.pattern, _OWED), 0)
        if count > 1:
            self._counts[flt.pattern, _OWED] = count - 1
        elif count == 1:
            del self._counts[flt.pattern, _OWED]
            self._cache.remove(flt, _OWED)
            self._changed = True

    def filters(self) -> list[tuple[str, int]]:
        """Return every kept filter with its lowest QoS."""
        return sorted((pattern, max(min_qos, 0)) for pattern, min_qos in self._counts if min_qos != _NEVER)

    def extend(self) -> bool:
        """Bring `routes` up to date with the table and the filters; return whether anything is kept.

        Called before routes are used, so that many filters added or removed together cost this once.
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
        """Look these topics up again after the next change of filters, since the cache does not track them any more."""
        self._stale.extend(topics)

    def _fill(self, topics: Iterable[int]) -> None:
        """Set the routes of these topics."""
        for topic in topics:
            if topic >= self._known:
                continue
            name = self._table.name(topic)
            text = name.decode()
            lowest = _lowest(self._settings.match(text)) if len(self._settings) else _HIGHEST
            if lowest > 0:
                lowest = self._cache.lookup(topic, text)
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
    """Return from which QoS upwards a topic's messages are kept, by all that is said of it."""
    found = {match.value for match in matches}
    if _NEVER in found and _OWED not in found:
        return _HIGHEST
    return min(found, default=_HIGHEST)
