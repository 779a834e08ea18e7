"""Which messages the log keeps, by filters of settings, durable sessions and spills: four bytes for each topic id.

The byte at 4 * topic + QoS is the shard that keeps such a message, or NOT_KEPT; the append kernel reads it. The fourth
byte tells that kernel what only spilled filters keep, and what only durable sessions do, so that it can be collected
when they have read it; or it says that the topic must be looked up before any of this counts. That happens when a
message of it comes, so that adding or removing a filter costs a bit for each topic whose answer it changes, and for the
others nothing. What the settings never keep takes topics from their own filters alone: a durable session gets all it
has subscribed to. A topic that the settings keep at every QoS stays so whoever subscribes, and nothing more is
remembered of it.
"""

from collections.abc import Callable, Iterable

import cython
from pyroaring import BitMap

from everlog.base import FOR_SPILL, NOT_KEPT
from everlog.topics import Filter, Postings, SubscriptionTrie, known_filter

if not cython.compiled:
    from everlog.base import PublishRun, TopicTable
    from everlog.base.memory import pointer, u32s
    from everlog.topics import TokenWalk

SPILLED = 3  # in place of a filter's lowest QoS: kept from QoS 1 on, as long as someone slow reads the log for it
_NO_QOS = 3  # a lowest QoS that no message has
_NEVER = -1  # in place of a filter's lowest QoS: the settings do not keep what matches
_SPILLED_FROM = 1
_SESSIONS_FROM = 3  # the bit of the fourth byte that tells of QoS 0 what only durable sessions keep
_FEW = 16  # filters of the settings, compared one by one
_UNKNOWN = 0x80  # in the fourth byte: to be looked up
_NEW = bytes((NOT_KEPT, NOT_KEPT, NOT_KEPT, _UNKNOWN))


class KeptTopics:
    """The kept filters, each with the number of its users, and the routes that follow from them."""

    def __init__(self, table: TopicTable, shard_of: Callable[[bytes], int], shards: int = 0) -> None:
        self.routes = bytearray()
        self.began = False  # a topic is kept that was not before; whoever acts on that resets it
        self.looked_up = 0  # topics, since the start
        self._table = table
        self._shard_of = shard_of
        self._shards = shards  # 0: not known
        self._counts: dict[tuple[str, int], int] = {}
        self._trie: SubscriptionTrie[int, int] = SubscriptionTrie()
        self._settings: SubscriptionTrie[int, int] = SubscriptionTrie()
        self._configured: list[tuple[str, int]] = []
        self._patterns: list[TokenWalk] = []  # those of the settings
        self._lowest: list[int] = []  # and the QoS of each
        self._aged: SubscriptionTrie[int, int] = SubscriptionTrie()
        self._generation = table.generation
        self._clear()

    def _clear(self) -> None:
        self.routes = bytearray()
        self._count = 0  # topics that have a route
        self._unknown = 0  # of them, those to be looked up
        self._postings = Postings()  # of those that were looked up once
        self._by_lowest = [BitMap() for _ in range(4)]  # of those that are known, by the QoS that they are kept from
        self._spilled = BitMap()  # of those, the ones that spilled filters keep from a lower QoS than others do

    def configure(
        self, filters: Iterable[tuple[str, int]], never: Iterable[str] = (), aged: Iterable[str] = ()
    ) -> None:
        """Keep what matches filters of the settings, each from a QoS upwards, unless it matches one of `never`.

        What matches one of `aged` is not kept for that, but if it is, then for as long as the settings say. Called
        once, before anything is published.
        """
        for text in aged:
            self._aged.insert(_plain(text), 0, 0)
        self._configured = sorted(filters)
        for text, min_qos in [*self._configured, *((text, _NEVER) for text in never)] if self._configured else ():
            self._settings.insert(_plain(text), min_qos, min_qos)
            self._patterns.append(TokenWalk(_plain(text).pattern.encode()))
            self._lowest.append(min_qos)

    def shards_of(self, run: PublishRun, dropped: int) -> bytearray:
        """Return for each shard whether it keeps some of a run: of what is dropped (0x80), or of all else (0)."""
        topics = u32s(run.columns.topics)
        flags = pointer(run.columns.flags)
        routes = pointer(self.routes)
        marks = bytearray(256)
        mark = pointer(marks)
        for row in range(run.start, run.stop):
            if flags[row] & 0x80 == dropped:
                mark[routes[4 * topics[row] + (flags[row] >> 1 & 3)]] = 1
        return marks

    def add(self, text: str, min_qos: int = 0) -> None:
        """Keep what matches a filter from now on, from `min_qos` upwards, or as SPILLED."""
        flt = _plain(text)
        count = self._counts.get((flt.pattern, min_qos), 0)
        self._counts[flt.pattern, min_qos] = count + 1
        if count == 0:
            self._trie.insert(flt, min_qos, min_qos)
            if not self._postings.may_match(flt):
                return
            found = self._postings.select(flt)
            if min_qos == SPILLED:
                found -= self._spilled
            highest = _SPILLED_FROM if min_qos == SPILLED else min_qos
            self._forget(found & BitMap().union(*self._by_lowest[highest + 1 :]))

    def remove(self, text: str, min_qos: int = 0) -> int:
        """Take back one `add` of a filter, which is not kept any more with the last; return how many topics it made
        to be looked up again."""
        flt = _plain(text)
        count = self._counts.get((flt.pattern, min_qos), 0)
        if count > 1:
            self._counts[flt.pattern, min_qos] = count - 1
        elif count == 1:
            del self._counts[flt.pattern, min_qos]
            self._trie.remove(flt, min_qos)
            if not self._postings.may_match(flt):
                return 0
            changed = self._spilled if min_qos == SPILLED else self._by_lowest[min_qos]
            return self._forget(self._postings.select(flt) & changed)
        return 0

    def filters(self) -> list[tuple[str, int]]:
        """Return every kept filter with its lowest QoS, or SPILLED."""
        return sorted({*self._configured, *self._counts})

    def extend(self, run: PublishRun | None = None) -> bool:
        """Bring `routes` up to date for the topics of a run; return whether anything is kept."""
        if self._generation != self._table.generation:
            self._generation = self._table.generation
            self._clear()
        if self._count < self._table.count:
            more = self._table.count - self._count
            self._count += more
            self._unknown += more
            self.routes.extend(_NEW * more)
        if len(self._counts) == 0 and len(self._configured) == 0:
            return False
        if self._unknown and run is not None:
            topics = u32s(run.columns.topics)
            route = pointer(self.routes)
            for row in range(run.start, run.stop):
                topic = topics[row]
                if topic < self._count and route[4 * topic + 3] & _UNKNOWN:
                    self._look_up(topic)
        return True

    def _forget(self, topics: BitMap) -> int:
        """Have these topics, which are known, looked up again when they are needed."""
        if topics:
            for known in self._by_lowest:
                known.difference_update(topics)
            self._spilled.difference_update(topics)
            self._unknown += len(topics)
            route = pointer(self.routes)
            for topic in topics:
                route[4 * topic + 3] = _UNKNOWN
        return len(topics)

    def _look_up(self, topic: int) -> int:
        """Set the route of a topic."""
        by_settings = self._lowest_by_settings(topic)
        if by_settings == 0:
            return self._keep_all(topic, 0 if self._shards == 1 else self._shard_of(self._table.name(topic)))
        name = self._table.name(topic)
        text = name.decode()
        found = [match.value for match in self._trie.match(text)]
        ordinary = min([lowest for lowest in found if lowest != SPILLED] + [by_settings])
        lowest = min(ordinary, _SPILLED_FROM) if SPILLED in found else ordinary
        shard = self._shard_of(name) if lowest < _NO_QOS else NOT_KEPT
        marks = 0
        collects = by_settings > ordinary and not any(self._aged.match(text))
        for qos in range(3):
            if lowest <= qos < ordinary:
                marks |= FOR_SPILL | 1 << qos
            elif collects and ordinary <= qos < by_settings:
                marks |= 1 << _SESSIONS_FROM + qos
            to = shard if qos >= lowest else NOT_KEPT
            if to != NOT_KEPT and self.routes[4 * topic + qos] == NOT_KEPT:
                self.began = True
            self.routes[4 * topic + qos] = to
        self.routes[4 * topic + 3] = marks
        self._unknown -= 1
        self.looked_up += 1
        self._by_lowest[ordinary].add(topic)
        if lowest < ordinary:
            self._spilled.add(topic)
        if topic not in self._postings:
            self._postings.add(topic, text)
        return 0

    def _keep_all(self, topic: int, shard: int) -> int:
        """Set the route of a topic that is kept at every QoS, whoever subscribes."""
        route = pointer(self.routes)
        for qos in range(3):
            if route[4 * topic + qos] == NOT_KEPT:
                self.began = True
            route[4 * topic + qos] = shard
        route[4 * topic + 3] = 0
        self._unknown -= 1
        self.looked_up += 1
        return 0

    def _lowest_by_settings(self, topic: int) -> int:
        """Return from which QoS upwards the settings keep a topic's messages."""
        if len(self._patterns) > _FEW:
            found = [match.value for match in self._settings.match(self._table.name(topic).decode())]
            return _NO_QOS if not found or _NEVER in found else min(found)
        lowest = _NO_QOS
        for k in range(len(self._patterns)):
            pattern = self._patterns[k]
            if pattern.matches(self._table, topic):
                lowest = min(lowest, self._lowest[k])
        return _NO_QOS if lowest == _NEVER else lowest


def _plain(text: str) -> Filter:
    flt = known_filter(text)
    return known_filter(flt.pattern) if flt.group is not None else flt
