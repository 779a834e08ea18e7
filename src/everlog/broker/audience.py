"""Who gets a topic's messages: topics become audiences, numbers that stand for a tuple of deliveries.

Topics with the same subscribers share an audience, so a batch splits into as many parts as there are different ones.
The audience of each topic id is kept in one column that the partition kernel reads; when a filter comes or goes,
exactly the topics that it matches become unknown again. Audience 0 is nobody.
"""

from collections.abc import Iterable
from typing import TypeAlias

from everlog.base import TopicTable
from everlog.broker.groups import Group
from everlog.mqtt import encode_identifiers
from everlog.sessions import Delivery, Session, Subscribed
from everlog.topics import Filter, MatchCache, SubscriptionTrie
from everlog.topics import Subscription as Match

UNKNOWN = b"\xff\xff\xff\xff"
_MAX_AUDIENCES = 1 << 16  # beyond, all are forgotten and made anew as topics come by
_MAX_GONE = 4096  # so too when more subscriptions than this have gone: audiences hold on to the sessions they had

Member = Delivery | Group
# The fields of a Delivery, but for the session.
Combined: TypeAlias = tuple[int, bytes, bool, bool, tuple[int, ...], bool, tuple[int, ...], tuple[Subscribed, ...]]


class Audiences:
    """The live subscriptions, and for every topic id of `table` the audience they make."""

    def __init__(self, table: TopicTable, max_topics: int = 200_000) -> None:
        self._table = table
        self._trie: SubscriptionTrie[Session, Subscribed] = SubscriptionTrie()
        self._cache: MatchCache[Session, Subscribed, int] = MatchCache(
            self._trie, self._make, max_topics=max_topics, on_drop=self._unknow
        )
        self._groups: dict[tuple[str, str], Group] = {}
        self.column = bytearray()
        self.members: list[tuple[Member, ...]] = [()]
        self._numbers: dict[tuple[object, ...], int] = {(): 0}
        self._by_session: dict[int, dict[Session, Delivery]] = {}
        self._gone = 0  # subscriptions that audiences may still hold the sessions of
        self._generation = table.generation

    def __len__(self) -> int:
        return len(self._trie)

    def subscribe(self, session: Session, flt: Filter, subscribed: Subscribed) -> None:
        """A filter of a connected session, new or with other options."""
        if flt.group is not None:
            self._groups.setdefault((flt.group, flt.pattern), Group(flt.group, flt.pattern)).join(session, subscribed)
        self._cache.insert(flt, session, subscribed)

    def unsubscribe(self, session: Session, flt: Filter) -> bool:
        """The filter is given up, or its session has no connection any more; whether it was there."""
        if flt.group is not None:
            group = self._groups.get((flt.group, flt.pattern))
            if group is not None and group.leave(session):
                del self._groups[flt.group, flt.pattern]
        self._gone += 1
        return self._cache.remove(flt, session) is not None

    def group(self, flt: Filter) -> Group | None:
        """The connected members of a shared filter."""
        return self._groups.get((flt.group or "", flt.pattern))

    def groups(self) -> list[Group]:
        """Every group that has a connected member."""
        return list(self._groups.values())

    def resolve(self, topics: Iterable[int]) -> None:
        """Find the audiences of these topic ids."""
        if len(self.members) > _MAX_AUDIENCES or self._gone > max(_MAX_GONE, 2 * len(self._trie)):
            self.forget()
        self.extend()
        for topic in topics:
            number = self._cache.lookup(topic, self._table.name(topic).decode())
            self.column[4 * topic : 4 * topic + 4] = number.to_bytes(4, "little")

    def number_of(self, topic: str) -> int:
        """The audience of a topic that has no id."""
        return self._make(self._trie.match(topic))

    def delivery(self, number: int, session: Session) -> Delivery | None:
        """How a session that pulls gets the messages of an audience, if it is in it by itself."""
        by_session = self._by_session.get(number)
        if by_session is None:
            alone = (member for member in self.members[number] if isinstance(member, Delivery))
            by_session = self._by_session[number] = {member.session: member for member in alone}
        return by_session.get(session)

    def delivery_of(self, topic: int, session: Session) -> Delivery | None:
        """How a session gets the messages of one topic, by itself or else as a member of a group."""
        self.extend()
        if self.column[4 * topic : 4 * topic + 4] == UNKNOWN:
            self.resolve((topic,))
        number = int.from_bytes(self.column[4 * topic : 4 * topic + 4], "little")
        alone = self.delivery(number, session)
        if alone is not None:
            return alone
        groups = (member for member in self.members[number] if isinstance(member, Group))
        return next((found for group in groups if (found := group.delivery(session)) is not None), None)

    def extend(self) -> None:
        """Make the column as long as the table, new topics unknown."""
        if self._generation != self._table.generation:
            self._generation = self._table.generation
            self.forget()
        missing = 4 * self._table.count - len(self.column)
        if missing > 0:
            self.column.extend(UNKNOWN * (missing // 4))

    def forget(self) -> None:
        """Begin anew: every topic is unknown."""
        self._cache.clear()
        self.column = bytearray()
        self.members = [()]
        self._numbers = {(): 0}
        self._by_session = {}
        self._gone = 0
        self.extend()

    def _unknow(self, topics: Iterable[int]) -> None:
        for topic in topics:
            self.column[4 * topic : 4 * topic + 4] = UNKNOWN

    def _make(self, matches: list[Match[Session, Subscribed]]) -> int:
        """The number of the audience that these subscriptions are."""
        by_session: dict[Session, list[Subscribed]] = {}
        groups: set[tuple[str, str]] = set()
        for match in matches:
            if match.filter.group is not None:
                groups.add((match.filter.group, match.filter.pattern))
            else:
                by_session.setdefault(match.key, []).append(match.value)
        # sessions and groups that an audience holds live as long as it, so their ids are theirs alone
        key: tuple[object, ...] = (
            *((id(session), *combine(subscribed), *_of_own(subscribed)) for session, subscribed in by_session.items()),
            *(id(self._groups[group]) for group in groups),
        )
        number = self._numbers.get(key)
        if number is None:
            members: list[Member] = [deliver(session, subscribed) for session, subscribed in by_session.items()]
            members.extend(self._groups[group] for group in groups)
            number = len(self.members)
            self._numbers[key] = number
            self.members.append(tuple(members))
        return number


def deliver(session: Session, subscribed: list[Subscribed]) -> Delivery:
    """How a session gets what matches all of these, and the session's own messages among it."""
    delivery = Delivery(session, *combine(subscribed))
    if delivery.no_local and (own := _of_own(subscribed)):
        delivery.own = Delivery(session, *own)
    return delivery


def _of_own(subscribed: list[Subscribed]) -> Combined | tuple[()]:
    """[MQTT-3.8.3-3] what the session published itself goes to it by the subscriptions without No Local alone."""
    others = [one for one in subscribed if not one.no_local]
    return combine(others) if others and len(others) < len(subscribed) else ()


def combine(subscribed: list[Subscribed]) -> Combined:
    """[MQTT-3.3.4-3] [MQTT-3.3.4-4] overlapping subscriptions as one: highest QoS, every identifier, first begin."""
    identifiers = sorted({one.identifier for one in subscribed if one.identifier})
    begins = [one.since for one in subscribed if one.since]
    since = tuple(map(min, zip(*begins, strict=True))) if len(begins) == len(subscribed) else ()
    until = tuple(map(max, zip(*begins, strict=True)))
    return (
        max(one.qos for one in subscribed),
        encode_identifiers(identifiers),
        any(one.retain_as_published for one in subscribed),
        any(one.no_local for one in subscribed),
        since,
        any(one.position for one in subscribed),
        until,
        tuple(subscribed) if since != until else (),
    )
