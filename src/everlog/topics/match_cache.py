"""Match results kept per topic id, dropped exactly when a filter that matches the topic comes or goes.

The cached topics have postings of their own (see `postings`), so that a changed filter finds the results to drop by a
few bitmap operations, whatever the number of cached topics. Two generations bound the size without a cost per hit: new
results go to the young one; when that is full, the old one is dropped whole and the young one becomes old. A result
that is used again moves to the young one and stays the same object. Owned by one thread.
"""

from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

from pyroaring import BitMap

from everlog.base import UsageError
from everlog.topics.names import Filter, known_filter
from everlog.topics.postings import Postings
from everlog.topics.trie import Subscription, SubscriptionTrie

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
R = TypeVar("R")

MAX_TOPICS = 200_000


class _Generation(Generic[R]):
    """Half of the cache; a dropped result's topic stays in the postings, which makes the next lookup cheaper."""

    __slots__ = ("cached", "postings", "results")

    def __init__(self) -> None:
        self.results: dict[int, R] = {}
        self.cached = BitMap()  # the ids of results, so that one is dropped once however many filters come
        self.postings = Postings()

    def drop(self, topic_id: int) -> bool:
        """Forget the result of one topic and return whether there was one."""
        if topic_id not in self.results:
            return False
        del self.results[topic_id]
        self.cached.discard(topic_id)
        return True


class MatchCache(Generic[K, V, R]):
    """A cache of the trie's matches: `make` turns a topic's subscriptions into the result that is kept.

    At most `max_topics` results are kept; at the limit the half used longest ago is dropped. While the cache is in use,
    filters are changed through it and not in the trie itself. An id stands for one name until `forget`. `on_drop` is
    told the ids of dropped results, so that a copy elsewhere can follow. If `id_of` returns the one id of a name, -1 if
    it has none, filters without wildcards look for no other.
    """

    def __init__(
        self,
        trie: SubscriptionTrie[K, V],
        make: Callable[[list[Subscription[K, V]]], R],
        *,
        max_topics: int = MAX_TOPICS,
        on_drop: Callable[[Iterable[int]], None] | None = None,
        id_of: Callable[[str], int] | None = None,
    ) -> None:
        if max_topics < 2:
            raise UsageError("a match cache holds at least 2 topics")
        self.version = 0  # goes up with every change of the subscriptions
        self._trie = trie
        self._make = make
        self._on_drop = on_drop
        self._id_of = id_of
        self._half_topics = max_topics // 2
        self._young: _Generation[R] = _Generation()
        self._old: _Generation[R] = _Generation()

    def __len__(self) -> int:
        return len(self._young.results) + len(self._old.results)

    def __contains__(self, topic_id: int) -> bool:
        return topic_id in self._young.results or topic_id in self._old.results

    def lookup(self, topic_id: int, name: str) -> R:
        """Return the result for a topic: the same object until it is dropped."""
        try:
            return self._young.results[topic_id]
        except KeyError:
            return self._miss(topic_id, name)

    def insert(self, flt: Filter, key: K, value: V) -> Subscription[K, V] | None:
        """Subscribe in the trie, drop the results that this changes and return the replaced subscription."""
        old = self._trie.insert(flt, key, value)
        self.invalidate(flt)
        return old

    def remove(self, flt: Filter, key: K) -> Subscription[K, V] | None:
        """Unsubscribe in the trie, drop the results that this changes and return what was removed."""
        old = self._trie.remove(flt, key)
        if old is not None:
            self.invalidate(flt)
        return old

    def insert_exact(self, filters: list[Filter], key: K, values: list[V]) -> None:
        """Do what `insert` does with filters without wildcards that are no groups', each with its value."""
        self._trie.insert_exact(filters, key, values)
        self.version += 1
        if self._young.results or self._old.results:
            for flt in filters:
                self._invalidate_exact(flt.pattern)

    def remove_exact(self, texts: list[str], key: K) -> list[str]:
        """Do what `remove` does with those filters that have no wildcards and are no groups'; return the others."""
        others = self._trie.remove_exact(texts, key)
        self.version += 1
        if len(others) < len(texts) and (self._young.results or self._old.results):
            for text in texts:
                self._invalidate_exact(text)
        return others

    def invalidate(self, flt: Filter) -> int:
        """Drop exactly the results of the topics that `flt` matches and return how many there were."""
        self.version += 1
        if not (self._young.results or self._old.results):
            return 0
        return self._invalidate_exact(flt.pattern) if flt.is_exact else self._invalidate(flt)

    def _invalidate_exact(self, name: str) -> int:
        """Drop the results of the topic with a name."""
        if self._id_of is None:
            return self._invalidate(known_filter(name))
        topic_id = self._id_of(name)
        dropped = 0
        for generation in (self._young, self._old):
            if topic_id in generation.results:
                dropped += self._drop(generation, BitMap((topic_id,)))
        return dropped

    def _invalidate(self, flt: Filter) -> int:
        dropped = 0
        for generation in (self._young, self._old):
            if generation.results and generation.postings.may_match(flt):
                dropped += self._drop(generation, generation.postings.select(flt) & generation.cached)
        return dropped

    def clear(self) -> None:
        """Drop every result and every id, which will stand for other names from now on."""
        self.version += 1
        self._young, self._old = _Generation(), _Generation()

    def forget(self, topic_id: int, name: str) -> None:
        """Drop all that is known of an id that stood for `name` and may stand for another name from now on."""
        for generation in (self._young, self._old):
            generation.drop(topic_id)
            generation.postings.remove(topic_id, name)

    def _drop(self, generation: _Generation[R], topic_ids: BitMap) -> int:
        if self._on_drop is not None and topic_ids:
            self._on_drop(topic_ids)
        return sum(map(generation.drop, topic_ids))

    def _miss(self, topic_id: int, name: str) -> R:
        old = self._old
        if topic_id in old.results:
            result = old.results[topic_id]
            old.drop(topic_id)
        else:
            result = self._make(self._trie.match(name))
        young = self._young
        is_known = topic_id in young.postings
        if not is_known and len(young.postings) >= self._half_topics:
            if self._on_drop is not None:
                self._on_drop(old.results)
            self._old, self._young = young, _Generation()
            young = self._young
        if not is_known:
            young.postings.add(topic_id, name)
        young.results[topic_id] = result
        young.cached.add(topic_id)
        return result
