"""Every shared group: those of connected members, and those that are durable.

A group is durable from when a durable session joins until the last that is subscribed is gone: it has a cursor of its
own in the log and its filter is kept, whether or not a member is connected. A group of clean members alone is
transient, unless one asks for order or for older messages, which only the log can give. When its members are too slow
for what waits in memory it spills: it has a cursor too, in memory alone, until they have caught up.
"""

from collections.abc import Callable, Iterable, Sequence
from logging import WARNING, getLogger

from everlog.base import NOT_KEPT
from everlog.broker.delivery import Router
from everlog.broker.events import event
from everlog.broker.groups.durable_group import DurableGroup
from everlog.broker.groups.far_groups import FarGroups
from everlog.broker.groups.group_numbers import states_of
from everlog.broker.groups.group_options import GroupCounters, GroupOptions, GroupState
from everlog.broker.groups.group_ports import GroupPorts
from everlog.broker.groups.shared_group import Member, SharedGroup
from everlog.broker.groups.spilled_group import SpilledGroup, has_caught_up, is_done
from everlog.broker.turns import Steps
from everlog.sessions import (
    GROUP_ORDERED,
    SHARED_PREFIX,
    GroupCursor,
    GroupRow,
    Owed,
    Session,
    Subscribed,
    settle_group,
    unpack_offsets,
)
from everlog.topics import Filter, parse_filter

_FEW = 64  # messages of one group under way while all of them take too much
_log = getLogger("everlog.broker")


class GroupRegistry:
    """All groups, and which membership a message in a window was dealt by."""

    def __init__(
        self,
        router: Router,
        options: GroupOptions,
        time: Callable[[], float],
        soon: Callable[[Callable[[], None]], object],
        changed: Callable[[tuple[str, str]], None],
        max_bytes: int = 128 << 20,
    ) -> None:
        self.max_bytes = max_bytes
        self.size_bytes = 0  # of all durable groups, as of the last sweep or later
        self.shortened = 0  # times that groups had to deal less because they take too much
        self.counters = GroupCounters()
        self._router = router
        self._options = options
        self._soon = soon
        self._store = changed
        self.ports = GroupPorts(router, options, self.counters, time, self._changed, self._wake)
        router.spills.spill_group = self.spill
        self.connected: dict[tuple[str, str], SharedGroup] = {}  # by name and pattern, those with connected members
        self._durable: dict[tuple[str, str], DurableGroup] = {}
        self._members: dict[int, Member] = {}  # by tag, those of durable groups
        self._woken: dict[DurableGroup, None] = {}
        self.far: FarGroups | None = None  # where several brokers share groups

    def __len__(self) -> int:
        return sum(not durable.spilled for durable in self._durable.values())

    def _changed(self, key: tuple[str, str]) -> None:
        """Have the state of a group stored, unless it is spilled."""
        durable = self._durable.get(key)
        if durable is None or not durable.spilled:
            self._store(key)

    def target(self, name: str, pattern: str) -> SharedGroup:
        """Return the connected members of a group."""
        return self.connected[name, pattern]

    # Subscribing

    def join(
        self,
        session: Session,
        flt: Filter,
        one: Subscribed,
        *,
        ordered: bool = False,
        since: Sequence[int] | None = None,
    ) -> None:
        """Let a connected session join a group; one that is made durable by that begins at `since`, else at the end."""
        key = _key_of(flt)
        group = self.connected.get(key)
        if group is None:
            group = self.connected[key] = SharedGroup(*key, self._router.fanout.push)
        group.join(session, one)
        durable = self._durable.get(key)
        ordered = ordered or group.name in self._options.ordered
        if durable is None and self.far is not None:
            self.far.join(session, group, ordered, since)
            return
        is_durable = session.kept or ordered or since is not None
        if durable is None:
            if not is_durable:
                return
            durable = self._make(group, since, ordered)
        elif durable.spilled and is_durable:
            self._router.kept.add(durable.pattern)
            self._router.spills.forget_group(key)
            durable.spilled = False
        durable.cursor.ordered = durable.cursor.ordered or ordered
        durable.subscribers[session.client_id] = None
        self.attach(durable, group)
        self._wake(durable)
        self._changed(key)

    def leave(self, session: Session, flt: Filter) -> None:
        """Take a session out of the connected members of a group."""
        group = self.connected.get(_key_of(flt))
        if group is not None and group.leave(session):
            del self.connected[group.key]

    def unsubscribed(self, session: Session, flt: Filter) -> None:
        """Give up a session's place; what it was dealt it may still acknowledge while it is connected."""
        durable = self._durable.get(_key_of(flt))
        if durable is None:
            if self.far is not None:
                self.far.unsubscribed(session, _key_of(flt))
            return
        durable.subscribers.pop(session.client_id, None)
        for member in session.memberships:
            if member.group == durable.key:
                member.is_leaving = True
                self.release_idle(member)
        if not durable.subscribers and self.far is None:  # else others may be subscribed elsewhere
            self.end(durable)
        elif durable.group is not None and not durable.group.members:
            durable.detach()
            self._changed(durable.key)

    def hand_on(self, session: Session, flt: Filter) -> None:
        """Give what waits in memory for a session that is no member any more to the others."""
        group = self.connected.get(_key_of(flt))
        if group is not None:
            for out in session.give_up_shared(group.key):
                group.split(out.records, out.rows, out.start, out.stop, NOT_KEPT, self._router.now_us())

    def left(self, session: Session) -> Steps:
        """Give others what a session that has no connection any more, and is in no audience, was dealt at QoS 1."""
        for member in session.leave_groups():
            self._members.pop(member.tag, None)
            durable = self._durable.get(member.group)
            if durable is not None:
                durable.lose(member)
                self._wake(durable)
            elif self.far is not None:
                self.far.lose(member)
            yield
        now_us = self._router.due_us()
        for out in session.give_up_shared():
            group = self.connected.get(out.merged.group or ("", ""))
            if group is not None:
                group.split(out.records, out.rows, out.start, out.stop, NOT_KEPT, now_us)

    def ended(self, session: Session) -> Steps:
        """Give up all places of a session that is forgotten, in steps."""
        for text in session.shared_filters():
            self.unsubscribed(session, parse_filter(text))
            yield

    def _make(self, group: SharedGroup, since: Sequence[int] | None, ordered: bool) -> DurableGroup:
        """Make a group durable. One with other members goes on where it is; a new one begins where the log ends."""
        durable = self.add(*group.key, GroupCursor(self._options.inflight_messages, ordered))
        if since is None:
            since = self._router.routed if len(group) > 1 else self._router.ends()
        durable.begin_at(since)
        return durable

    def add(self, name: str, pattern: str, cursor: GroupCursor) -> DurableGroup:
        """Make a durable group with a cursor."""
        durable = self._durable[name, pattern] = DurableGroup(name, pattern, cursor, self.ports)
        self.size_bytes += durable.size_bytes
        self._router.kept.add(pattern)
        return durable

    # Spilling

    def spill(self, key: tuple[str, str]) -> bool:
        """Have a transient group go on from the log; return whether it did not do so before."""
        group, durable = self.connected.get(key), self._durable.get(key)
        if group is None or self.far is not None:
            return False
        if durable is None:
            durable = self._durable[key] = DurableGroup(*key, GroupCursor(self._options.inflight_messages), self.ports)
            durable.spilled = True
            self.attach(durable, group)
        return durable.spilled and self._router.spills.add_group(key, SpilledGroup(durable))

    def _end_spills(self) -> None:
        """Let filters go of groups that have caught up, and forget groups that are done with what was dealt so."""
        spills = self._router.spills
        for key, durable in [(key, one) for key, one in self._durable.items() if one.spilled]:
            if has_caught_up(durable):
                spills.release_group(key)
            if is_done(durable) and not spills.keeps(durable.pattern):
                spills.forget_group(key)
                del self._durable[key]
                self._woken.pop(durable, None)
                for member in self.connected[key].withdraw():
                    self._members.pop(member.tag, None)
                    member.session.leave_group(member)

    def attach(self, durable: DurableGroup, group: SharedGroup) -> None:
        """Have a durable group deal to connected members."""
        durable.attach(group)
        for session, member in list(group.members.items()):
            if member.far is None:
                durable.subscribers[session.client_id] = None
                self.enlist(group, session)

    def enlist(self, group: SharedGroup, session: Session) -> None:
        """Have what a member is dealt from the log marked as such in its window."""
        member = group.members[session]
        if member.group is not None:
            return
        before = next((one for one in session.memberships if one.group == group.key), None)
        if before is not None:  # it is back before it was done with what it had
            before.merged, before.is_leaving = member.merged, False
            group.members[session] = before
        else:
            member.group = group.key
            self._members[member.tag] = member
            session.join(member)

    def end(self, durable: DurableGroup) -> None:
        """Forget a group that nobody is subscribed to: what is under way is its receivers' own from now on."""
        for member in self.hand_over(durable):
            member.session.keep_dealt(member.tag)
            member.held = 0
            self.release_idle(member)
        self._changed(durable.key)

    def hand_over(self, durable: DurableGroup) -> list[Member]:
        """Deal for a group no more; return those here that are its members, or have something of it."""
        del self._durable[durable.key]
        self.size_bytes -= durable.size_bytes
        if durable.spilled:
            self._router.spills.forget_group(durable.key)
        else:
            self._router.kept.remove(durable.pattern)
        self._woken.pop(durable, None)
        return [one for one in self._members.values() if one.group == durable.key]

    def release_idle(self, member: Member) -> None:
        """Let go of a member that has left and is done with what it was dealt."""
        if member.is_leaving and member.held == 0:
            self._members.pop(member.tag, None)
            member.session.leave_group(member)

    # Dealing

    def acked(self, session: Session) -> None:
        """Be done with what a member has acknowledged, and deal what waited for that."""
        for tag, positions in session.take_finished().items():
            member = self._members.get(tag)
            durable = None if member is None or member.group is None else self._durable.get(member.group)
            if member is None or (durable is None and self.far is None):
                continue
            member.held -= len(positions)
            member.taken.difference_update(positions)
            if durable is not None:
                durable.cursor.acked(positions)
                self._changed(durable.key)
            elif self.far is not None:
                self.far.acked(member, positions)
            self.release_idle(member)
        self.pump(session)

    def pump(self, session: Session) -> None:
        """Deal what waits for a member that may have room."""
        for member in session.memberships:
            durable = self._durable.get(member.group)
            if durable is not None and durable.is_waiting:
                durable.pump()
            elif durable is None and self.far is not None:
                self.far.pump(member)

    def sweep(self, now: float) -> None:
        """Give what was not acknowledged in time to others, and let no group wait without need or take too much."""
        self._limit_memory()
        for durable in list(self._durable.values()):
            for client_id, positions in durable.take_overdue(now):
                self.counters.timeouts += len(positions)
                group = durable.group
                for member in (*self._members.values(), *(group.members.values() if group is not None else ())):
                    if member.group == durable.key and member.session.client_id == client_id:
                        member.taken.update(positions)
            durable.pump()
        self._end_spills()
        if self.far is not None:
            self.far.sweep()

    def _limit_memory(self) -> None:
        """Let each group have only a few messages under way while all of them together take too much."""
        groups = self._durable.values()
        self.size_bytes = sum([durable.size_bytes for durable in groups])
        is_over = self.size_bytes > self.max_bytes
        most = min(_FEW, self._options.inflight_messages) if is_over else self._options.inflight_messages
        if is_over:
            self.shortened += 1
            event(_log, "limit", WARNING, limit="groups_bytes", groups=len(groups))
        for durable in groups:
            durable.cursor.limit = most
            if is_over:
                durable.drop_ahead()

    def _wake(self, durable: DurableGroup) -> None:
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
        """Return a group as it is stored, or None if there is none."""
        durable = self._durable.get(key)
        if durable is None:
            return None if self.far is None else self.far.leaving.get(key)
        return None if durable.spilled else durable.row()

    def restore(
        self, rows: Iterable[GroupRow], subscribers: dict[str, list[str]], routed: Sequence[int], ends: Sequence[int]
    ) -> tuple[list[GroupRow], list[tuple[str, str]]]:
        """Take in the groups that were stored; `subscribers` has the client ids by `$share` filter.

        Return what is to be written: groups as they are now, and those that nobody is subscribed to any more.
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
            durable = self.add(name, pattern, GroupCursor(self._options.inflight_messages))
            durable.subscribers = dict.fromkeys(ids)
            durable.lag = dict(enumerate(ends))
            settled.append(durable.row())
        return settled, gone

    def _restore(self, row: GroupRow, owed: list[tuple[int, Owed]], client_ids: list[str]) -> None:
        ordered = bool(row.options & GROUP_ORDERED) or row.name in self._options.ordered
        durable = self.add(row.name, row.filter, GroupCursor(self._options.inflight_messages, ordered))
        durable.cursor.restore(owed)
        durable.subscribers = dict.fromkeys(client_ids)
        durable.lag = dict(enumerate(unpack_offsets(row.positions)))
        durable.doubt = {shard: below for shard, below in enumerate(unpack_offsets(row.doubt)) if below}

    # What others see

    def states(self) -> list[GroupState]:
        """Return every group in numbers, the transient ones too, by name and filter."""
        ends = [shard.committed for shard in self._router.log.shards]
        return states_of(self._durable.values(), self.connected.values(), ends)

    def is_durable(self, flt: Filter) -> bool:
        """Return whether the group of a shared filter is durable already."""
        return _key_of(flt) in self._durable

    def is_ordered(self, flt: Filter) -> bool:
        """Return whether the settings ask a shared filter's group to keep the order of topics."""
        return flt.group in self._options.ordered

    def place_of(self, flt: Filter) -> tuple[int, ...] | None:
        """Return where the durable group of a shared filter reads on in each shard, if there is one."""
        durable = self._durable.get(_key_of(flt))
        return None if durable is None else tuple(durable.reads_on())

    def unread(self) -> list[tuple[str, list[int], list[int]]]:
        """Return of each durable group its filter, where it reads on in each shard, and what below is not done."""
        return [
            (f"{SHARED_PREFIX}{name}/{pattern}", durable.reads_on(), durable.cursor.not_done())
            for (name, pattern), durable in self._durable.items()
        ]


def _key_of(flt: Filter) -> tuple[str, str]:
    return flt.group or "", flt.pattern
