"""Every shared group that is durable: made when a durable session joins, gone with the last that is subscribed.

Such a group has a cursor of its own in the log and its filter is kept, whether or not a member is connected. A group of
clean members alone is transient, unless one asks for order or for older messages, which only the log can give.
Owned by the event loop's thread.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from everlog.broker.durablegroup import DurableGroup, GroupState
from everlog.broker.groups import Group, Member
from everlog.broker.router import Router
from everlog.sessions import GROUP_ORDERED, GroupCursor, GroupRow, Owed, Session, settle_group, unpack_offsets
from everlog.topics import Filter, parse_filter

if TYPE_CHECKING:
    from everlog.broker.persistence import Persistence

_PREFIX = "$share/"


@dataclass(frozen=True, slots=True)
class GroupOptions:
    """What a group may use."""

    inflight_messages: int = 10_000  # dealt by a group and not acknowledged, or passed over; at it, no more are dealt
    member_messages: int = 256  # dealt to a member and not acknowledged; at it, others get the next
    ack_timeout_s: float = 60.0  # a QoS 1 message not acknowledged for so long goes to another member; 0 never
    ordered: tuple[str, ...] = ()  # names of groups whose messages of one topic go to one member at a time


class SharedGroups:
    """The durable groups, and which membership a message in a window was dealt by."""

    def __init__(
        self,
        router: Router,
        options: GroupOptions,
        time: Callable[[], float],
        soon: Callable[[Callable[[], None]], object],
    ) -> None:
        self.log = router.log
        self.delivering = router.delivering
        self.routed = router.routed
        self.options = options
        self.time = time
        self.redelivered = 0
        self.timeouts = 0
        self.lost = 0  # messages that the log did not have any more
        self.persistence: Persistence | None = None
        self._keep = router.keep
        self._soon = soon
        self._groups: dict[tuple[str, str], DurableGroup] = {}
        self._members: dict[int, Member] = {}
        self._woken: dict[DurableGroup, None] = {}

    def __len__(self) -> int:
        return len(self._groups)

    # Subscribing

    def subscribed(
        self, session: Session, flt: Filter, *, ordered: bool = False, since: Sequence[int] | None = None
    ) -> None:
        """A connected session has joined a group; one that is made by that begins at `since`, by default at the end."""
        group = self.delivering.audiences.group(flt)
        if group is None or flt.group is None:
            return
        durable = self._groups.get((group.name, group.pattern))
        ordered = ordered or group.name in self.options.ordered
        if durable is None:
            if not (session.kept or ordered or since is not None):
                return
            durable = self._make(group, since, ordered)
        durable.cursor.ordered = durable.cursor.ordered or ordered
        durable.subscribers[session.client_id] = None
        self._attach(durable, group)
        self.wake(durable)
        self.mark(durable)

    def unsubscribed(self, session: Session, flt: Filter) -> None:
        """A session has given up its place; what it was dealt it may still acknowledge while it is connected."""
        durable = self._groups.get(_key_of(flt))
        if durable is None:
            return
        durable.subscribers.pop(session.client_id, None)
        for member in session.memberships or ():
            if member.durable is durable:
                member.is_leaving = True
                self._release_idle(member)
        if not durable.subscribers:
            self._end(durable)
        elif durable.group is not None and not durable.group.members:
            durable.detach()
            self.mark(durable)

    def resumed(self, session: Session) -> None:
        """A session is connected again: what its groups have waiting goes out after what it is owed itself."""
        for text in session.subscriptions:
            if text.startswith(_PREFIX):
                self.subscribed(session, parse_filter(text))

    def left(self, session: Session) -> None:
        """A session has no connection any more, and is in no audience: others get what it was dealt at QoS 1."""
        memberships, session.memberships = session.memberships, None
        for member in memberships or ():
            self._members.pop(member.tag, None)
            durable: DurableGroup | None = member.durable
            if durable is not None and self._groups.get(_key(durable)) is durable:
                durable.lose(member)
                self.wake(durable)

    def ended(self, session: Session) -> None:
        """A session is forgotten, with all its places."""
        for text in session.subscriptions:
            if text.startswith(_PREFIX):
                self.unsubscribed(session, parse_filter(text))

    def _make(self, group: Group, since: Sequence[int] | None, ordered: bool) -> DurableGroup:
        """A group becomes durable. One with other members goes on where it is; a new one begins where the log ends."""
        durable = self._add(group.name, group.pattern, GroupCursor(self.options.inflight_messages, ordered))
        if since is None:
            since = self.routed if len(group) > 1 else [shard.end for shard in self.log.shards]
        for shard, (at, routed) in enumerate(zip(since, self.routed, strict=True)):
            if at < routed:
                durable.lag[shard] = at
            elif at > routed:
                durable.since[shard] = at
        return durable

    def _add(self, name: str, pattern: str, cursor: GroupCursor) -> DurableGroup:
        durable = self._groups[name, pattern] = DurableGroup(self, name, pattern, cursor)
        self._keep.add(pattern)
        return durable

    def _attach(self, durable: DurableGroup, group: Group) -> None:
        durable.attach(group)
        for session, member in list(group.members.items()):
            durable.subscribers[session.client_id] = None
            if member.durable is durable:
                continue
            before = next((one for one in session.memberships or () if one.durable is durable), None)
            if before is not None:  # it is back before it was done with what it had
                before.delivery, before.is_leaving = member.delivery, False
                group.members[session] = before
            else:
                member.durable = durable
                self._members[member.tag] = member
                session.memberships = [*(session.memberships or ()), member]

    def _end(self, durable: DurableGroup) -> None:
        """Nobody is subscribed: what is under way is its receivers' own from now on."""
        del self._groups[_key(durable)]
        self._keep.remove(durable.pattern)
        self._woken.pop(durable, None)
        for member in [one for one in self._members.values() if one.durable is durable]:
            for packet_id, _, _ in member.session.window.tagged(member.tag):
                member.session.window.untag(packet_id)
            member.held = 0
            self._release_idle(member)
        if self.persistence is not None:
            self.persistence.mark_group(_key(durable))

    def _release_idle(self, member: Member) -> None:
        if member.is_leaving and member.held == 0:
            self._members.pop(member.tag, None)
            others = [one for one in member.session.memberships or () if one is not member]
            member.session.memberships = others or None

    # Dealing

    def hand(self, session: Session, data: bytes) -> None:
        """Bytes to a member."""
        moved = self.delivering.moved
        if moved is not None and session.kept:
            moved.add(session)
        if data:
            self.delivering.sinks[session].write(data)

    def acked(self, session: Session) -> None:
        """A member has acknowledged something: its groups are done with that, and have room for more."""
        window = session.window
        finished = window.finished
        if finished:
            window.finished = {}
            for tag, positions in finished.items():
                member = self._members.get(tag)
                if member is None or member.durable is None:
                    continue
                member.held -= len(positions)
                if member.taken:
                    member.taken.difference_update(positions)
                member.durable.cursor.acked(positions)
                self.mark(member.durable)
                if member.is_leaving:
                    self._release_idle(member)
        self.pump(session)

    def pump(self, session: Session) -> None:
        """A member may have room: deal what waits."""
        for member in session.memberships or ():
            if member.durable is not None and member.durable.is_waiting:
                member.durable.pump()

    def sweep(self, now: float) -> None:
        """Once a second: what was not acknowledged in time goes to others, and no group waits without need."""
        for durable in list(self._groups.values()):
            for client_id, positions in durable.take_overdue(now):
                self.timeouts += len(positions)
                for member in self._members.values():
                    if member.durable is durable and member.session.client_id == client_id:
                        member.taken.update(positions)
            durable.pump()

    def mark(self, durable: DurableGroup) -> None:
        """What is stored of a group has changed."""
        if self.persistence is not None:
            self.persistence.mark_group(_key(durable))

    def wake(self, durable: DurableGroup) -> None:
        """Deal what waits at the end of this turn of the loop, when answers are written and all have left or joined."""
        if not self._woken:
            self._soon(self._pump_woken)
        self._woken[durable] = None

    def _pump_woken(self) -> None:
        woken, self._woken = self._woken, {}
        for durable in woken:
            durable.pump()

    # Storing

    def row(self, key: tuple[str, str]) -> GroupRow | None:
        """A group as it is stored, or None if there is none."""
        durable = self._groups.get(key)
        return None if durable is None else durable.row()

    def restore(
        self, rows: Iterable[GroupRow], subscribers: dict[str, list[str]], routed: Sequence[int], ends: Sequence[int]
    ) -> tuple[list[GroupRow], list[tuple[str, str]]]:
        """Take in the groups that were stored; `subscribers` has the client ids by `$share` filter.

        What is to be written: groups as they are now, and those that nobody is subscribed to any more.
        """
        waiting = {_key_of(parse_filter(text)): ids for text, ids in subscribers.items()}
        settled, gone = [], []
        for found in rows:
            ids = waiting.pop((found.name, found.filter), None)
            if ids is None:
                gone.append((found.name, found.filter))
                continue
            row, owed = settle_group(found, routed, ends)
            self._restore(row, owed, ids)
            settled.append(row)
        for (name, pattern), ids in waiting.items():  # subscribed when groups were not stored yet
            durable = self._add(name, pattern, GroupCursor(self.options.inflight_messages))
            durable.subscribers = dict.fromkeys(ids)
            durable.lag = dict(enumerate(ends))
            settled.append(durable.row())
        return settled, gone

    def _restore(self, row: GroupRow, owed: list[tuple[int, Owed]], client_ids: list[str]) -> None:
        ordered = bool(row.options & GROUP_ORDERED) or row.name in self.options.ordered
        durable = self._add(row.name, row.filter, GroupCursor(self.options.inflight_messages, ordered))
        durable.cursor.restore(owed)
        durable.subscribers = dict.fromkeys(client_ids)
        durable.lag = dict(enumerate(unpack_offsets(row.positions)))
        durable.doubt = {shard: below for shard, below in enumerate(unpack_offsets(row.doubt)) if below}

    # What others see

    def states(self) -> list[GroupState]:
        """Every group, the transient ones too, by name and filter."""
        transient = [
            GroupState(group.name, group.pattern, False, members=len(group), subscribers=len(group))
            for group in self.delivering.audiences.groups()
            if group.durable is None
        ]
        found = [*(durable.state() for durable in self._groups.values()), *transient]
        return sorted(found, key=lambda one: (one.name, one.filter))

    def place_of(self, flt: Filter) -> tuple[int, ...] | None:
        """Where the durable group of a shared filter reads on in each shard, if there is one."""
        durable = self._groups.get(_key_of(flt))
        return None if durable is None else tuple(durable.reads_on())

    def positions(self) -> dict[tuple[str, str], tuple[int, ...]]:
        """For each durable group (name, filter) the offset in each shard below which it needs nothing."""
        return {key: durable.cursor.floors(durable.reads_on()) for key, durable in self._groups.items()}

    def unread(self) -> list[tuple[str, list[int], list[int]]]:
        """For each durable group its filter, where it reads on in each shard, and what below may have to be dealt."""
        return [
            (f"{_PREFIX}{name}/{pattern}", durable.reads_on(), durable.cursor.not_done())
            for (name, pattern), durable in self._groups.items()
        ]


def _key_of(flt: Filter) -> tuple[str, str]:
    return flt.group or "", flt.pattern


def _key(durable: DurableGroup) -> tuple[str, str]:
    return durable.name, durable.pattern
