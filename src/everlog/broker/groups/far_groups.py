"""Shared groups of several brokers: those that this one deals for, with members elsewhere, and seats at the others'.

A group has one dealer, which has claimed its row. Whoever has a member and knows no dealer has a seat all the same, and
asks for one (`Dealers.want`): it may turn out to be this broker. Then the seat's members become members of the durable
group here, and what they have is under way from it. Owned by the event loop's thread.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Protocol

from everlog.broker.delivery import Router
from everlog.broker.groups.durable_group import DurableGroup
from everlog.broker.groups.far_members import FarMembers
from everlog.broker.groups.far_ports import Dealers, Dealt, DealTables, Key, Seated, SeatNews
from everlog.broker.groups.group_ports import GroupPorts
from everlog.broker.groups.group_seat import GroupSeat
from everlog.broker.groups.shared_group import Member, SharedGroup
from everlog.sessions import (
    DEAL_BACK,
    GROUP_ORDERED,
    SHARED_PREFIX,
    GroupCursor,
    GroupDeal,
    GroupRow,
    Owed,
    Session,
    Subscribed,
    unpack_offsets,
    unpack_owed,
)
from everlog.topics import parse_filter


class GroupHouse(Protocol):
    """The group registry, as far as it is needed here."""

    ports: GroupPorts
    connected: dict[Key, SharedGroup]

    def add(self, name: str, pattern: str, cursor: GroupCursor) -> DurableGroup: ...

    def attach(self, durable: DurableGroup, group: SharedGroup) -> None: ...

    def enlist(self, group: SharedGroup, session: Session) -> None: ...

    def release_idle(self, member: Member) -> None: ...

    def end(self, durable: DurableGroup) -> None: ...

    def hand_over(self, durable: DurableGroup) -> list[Member]: ...


class FarGroups:
    """What is particular to groups of several brokers; the group registry has the rest."""

    def __init__(
        self,
        house: GroupHouse,
        dealers: Dealers,
        tables: DealTables,
        soon: Callable[[Callable[[], None]], object],
    ) -> None:
        self.seats: dict[Key, GroupSeat] = {}
        self.dealt: dict[Key, FarMembers] = {}  # groups that this broker deals for
        self.leaving: dict[Key, GroupRow] = {}  # those that it is to deal for no more, as they are stored
        self.dealers = dealers
        self.is_halted = False
        self._house = house
        self.router: Router = house.ports.router
        self.when_durable = tables.when_durable
        self._tables = tables
        self._soon = soon
        self._woken: dict[Key, None] = {}
        self._readers: dict[Key, Session] = {}  # that stand for members elsewhere, so that batches are handed to groups

    def start(self) -> None:
        """Begin on the running event loop."""
        self.dealers.start(self)

    # What the registry tells

    def join(self, session: Session, group: SharedGroup, ordered: bool, since: Sequence[int] | None) -> None:
        """Give a connected member of a group that this broker does not deal for its place."""
        seat = self.seats.get(group.key)
        if seat is None:
            begin = tuple(self.router.ends() if since is None else since)
            seat = GroupSeat(group.key, begin, self._house.ports, self._tables, self._wake)
            self.seats[group.key] = seat
            self.dealers.want(group.key)
        seat.ordered = seat.ordered or ordered
        group.deal = seat.take
        self._house.enlist(group, session)
        seat.join(group.members[session])

    def unsubscribed(self, session: Session, key: Key) -> None:
        """Give up the place of a session; what it was sent it may still acknowledge."""
        seat = self.seats.get(key)
        for member in session.memberships if seat is not None else ():
            if member.group == key and seat is not None:
                member.is_leaving = True
                seat.leave(member)
                self._house.release_idle(member)

    def lose(self, member: Member) -> None:
        """Let go of a member without a connection."""
        seat = self.seats.get(member.group or ("", ""))
        if seat is not None:
            seat.lose(member)

    def acked(self, member: Member, positions: list[int]) -> None:
        """Take note of what a member has acknowledged."""
        seat = self.seats.get(member.group or ("", ""))
        if seat is not None:
            seat.acked(member, positions)

    def pump(self, member: Member) -> None:
        """Look again at a member that may have room."""
        seat = self.seats.get(member.group or ("", ""))
        if seat is not None:
            seat.wake(member)

    def sweep(self) -> None:
        """Let no seat wait without need."""
        for key in self.seats:
            self._wake(key)

    def when_seated(self, session: Session, call: Callable[[], None]) -> None:
        """Have `call` called when all groups of a session have a dealer that knows of it."""
        waiting = [seat for one in session.memberships if (seat := self.seats.get(one.group)) and not seat.is_seated]
        left = len(waiting)

        def seated() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                call()

        for seat in waiting:
            seat.on_seated.append(seated)
        if not waiting:
            call()

    # Turns

    def _wake(self, key: Key) -> None:
        if not self._woken:
            self._soon(self._turn)
        self._woken[key] = None

    def _turn(self) -> None:
        woken, self._woken = self._woken, {}
        for key in woken:
            far, seat = self.dealt.get(key), self.seats.get(key)
            if far is not None:
                far.flush()
            if seat is not None:
                self._serve(seat)

    def _serve(self, seat: GroupSeat) -> None:
        """Send members what waits for them, and tell the dealer what has changed."""
        seat.pump()
        news = seat.take_news()
        if news is not None:
            self.dealers.send_news(seat.dealer, seat.key, news)
        if seat.is_empty and not seat.on_seated:
            del self.seats[seat.key]

    # Seats

    def sit(self, key: Key, dealer: int) -> Seated | None:
        """Take a seat anew with a dealer, and return all that is to be said; None if there is none."""
        seat = self.seats.get(key)
        return None if seat is None else seat.sit(dealer)

    def seated(self, key: Key, sitting: int) -> None:
        """Take it that the dealer has heard of a sitting."""
        seat = self.seats.get(key)
        if seat is not None:
            seat.seated(sitting)

    def is_seated(self, key: Key) -> bool:
        """Return whether nobody is to be looked for who deals for a group."""
        seat = self.seats.get(key)
        return seat is None or seat.is_seated

    def deal(self, dealer: int, key: Key, sitting: int, deals: Sequence[Dealt]) -> None:
        """Take what a dealer gives to members here."""
        seat = self.seats.get(key)
        if seat is not None:
            seat.dealt(dealer, sitting, deals)
        else:  # the last member has just left
            back = b"".join(deal.positions for deal in deals)
            self.dealers.send_news(dealer, key, SeatNews(sitting, back=back))

    def dealer_lost(self, dealer: int, keys: Sequence[Key] | None = None) -> None:
        """Look for another who deals for the groups of a broker that there is no link to, or that has let go."""
        for key, seat in self.seats.items():
            if seat.dealer == dealer and (keys is None or key in keys):
                seat.stand()
                self.dealers.want(key)

    # Groups that are dealt for here

    def own(
        self,
        key: Key,
        row: GroupRow | None,
        deals: Sequence[tuple[int, str, int]],
        seats: Mapping[int, Seated],
    ) -> None:
        """Deal for a group from now on: as its row says, which the log here has reached, or from where it was wanted.

        `deals` are the sure messages that no session has yet, each with its client and the broker that may have it, and
        `seats` what the others say.
        """
        seat = self.seats.pop(key, None)
        durable = self._house.add(*key, GroupCursor(self._house.ports.options.inflight_messages))
        cursor = durable.cursor
        if row is not None:
            cursor.ordered = bool(row.options & GROUP_ORDERED) or key[0] in self._house.ports.options.ordered
            cursor.restore(unpack_owed(row.owed))
            durable.lag = dict(enumerate(unpack_offsets(row.positions)))
            durable.doubt = {shard: below for shard, below in enumerate(unpack_offsets(row.doubt)) if below}
        else:
            begins = [one.since for one in seats.values()] + ([] if seat is None else [seat.since])
            durable.begin_at(begins[-1] if begins else self.router.ends())
        durable.detach()  # it stays where it is in the log until it has members
        group, left = partial(self._group, durable), partial(self._left, durable)
        far = self.dealt[key] = FarMembers(
            durable, self._house.ports, self._tables, self.dealers, partial(self._wake, key), group, left
        )
        for position, client_id, taker in deals:
            if taker:
                cursor.dealt(client_id, [position], 0, self._house.ports.time(), True)
                far.unclaimed.setdefault(taker, {})[position] = client_id
            else:
                cursor.restore([(position, Owed(client_id, 0, 1))])
                self._tables.mark_deals([GroupDeal(*key, position, client_id, DEAL_BACK)])
        if seat is not None:
            self._take_in(far, seat)
        for taker, seated in seats.items():
            far.seated(taker, seated)
        self._house.ports.changed(key)
        self._tables.when_durable(partial(self._begin, key, [] if seat is None else seat.on_seated))

    def _begin(self, key: Key, seated: list[Callable[[], None]]) -> None:
        """Deal to the members here of a group that is stored; who waits for a SUBACK gets that first."""
        for call in seated:
            call()
        far, here = self.dealt.get(key), self._house.connected.get(key)
        if far is not None and here is not None:
            self._house.attach(far.durable, here)
            self._house.ports.wake(far.durable)

    def _take_in(self, far: FarMembers, seat: GroupSeat) -> None:
        """Take over the members of the seat here, with what they were sent by the dealer before."""
        durable, me = far.durable, self.dealers.incarnation
        cursor = durable.cursor
        cursor.ordered = cursor.ordered or seat.ordered
        sure = far.unclaimed.pop(me, {})
        given = seat.given.keys()
        cursor.acked([*seat.recent, *(sure.keys() & given)])  # these are stored with their sessions by the next batch
        far.ask(me, {position: client_id for position, client_id in sure.items() if position not in given})
        owed = durable.named_owed()
        for member in dict.fromkeys(seat.plain.values()):
            for packet_id, state, position in member.session.window.tagged(member.tag):
                if state == 1 and position in owed:
                    topic = owed[position].topic
                    names = None if topic is None else [topic]
                    cursor.dealt(
                        member.session.client_id, [position], packet_id, self._house.ports.time(), False, names
                    )

    def idle(self) -> dict[Key, int]:
        """Return the groups without a connected member, each with how often it had a first one."""
        idle = [(key, far) for key, far in self.dealt.items() if far.is_empty and key not in self._house.connected]
        return {key: far.durable.attached for key, far in idle}

    def end(self, key: Key, attached: int) -> bool:
        """Forget a group that this broker deals for, if nobody was a member of it since it was idle."""
        if self.idle().get(key) != attached:
            return False
        self._house.end(self.dealt.pop(key).durable)
        return True

    def let_go(self, key: Key) -> bool:
        """Deal for a group no more, and have its members here find another dealer when its row is let go.

        Return False if that can't be done now.
        """
        far = self.dealt.get(key)
        if far is None or self.is_halted or not far.is_settled:
            return False
        del self.dealt[key]
        far.let_go()
        durable, cursor = far.durable, far.durable.cursor
        durable.detach()
        seat = GroupSeat(key, tuple(durable.reads_on()), self._house.ports, self._tables, self._wake)
        seat.ordered = cursor.ordered
        for member in self._house.hand_over(durable):
            client_id, sent = member.session.client_id, member.session.window.tagged(member.tag)
            seat.take_over(member, [position for _, _, position in sent if cursor.holds(client_id, position)])
        if key in self._house.connected:
            self._house.connected[key].deal = seat.take
        if not seat.is_empty:
            self.seats[key] = seat
        self.leaving[key] = durable.row()
        self._house.ports.changed(key)
        return True

    def joined(self, taker: int, key: Key, seated: Seated) -> bool:
        """Take in a seat of another broker; return False if this one does not deal for the group."""
        far = self.dealt.get(key)
        if far is not None:
            far.seated(taker, seated)
        return far is not None

    def news(self, taker: int, key: Key, news: SeatNews) -> None:
        """Take in what has changed at a seat of another broker."""
        far = self.dealt.get(key)
        if far is not None:
            far.news(taker, news)

    def unlinked(self, other: int) -> None:
        """Take it that there is no link to another broker: neither its seats nor its deals are heard of."""
        for far in self.dealt.values():
            far.unlinked(other)
        self.dealer_lost(other)

    def unsettled(self) -> dict[int, list[Key]]:
        """Return the brokers that may have messages of groups that are dealt here, and do not say so."""
        found: dict[int, list[Key]] = {}
        for key, far in self.dealt.items():
            for taker in far.unsettled():
                found.setdefault(taker, []).append(key)
        return found

    def taker_lost(self, taker: int, key: Key) -> None:
        """Give others what a broker had that is dead, or has no seat any more."""
        far = self.dealt.get(key)
        if far is not None:
            far.lost(taker)

    def settled(self, key: Key, positions: Sequence[int], owed: Collection[int]) -> None:
        """Hear which sure messages nobody has stored with a session."""
        far = self.dealt.get(key)
        if far is not None:
            far.settled(positions, set(owed))

    def halt(self) -> None:
        """Deal nothing more to members elsewhere, since this broker ends."""
        for far in self.dealt.values():
            far.flush()
            for taker in far.seats:
                far.unlinked(taker)
        for seat in list(self.seats.values()):
            self._serve(seat)
        self.is_halted = True

    async def stop(self) -> None:
        """Let go of all groups: everything is stored."""
        await self.dealers.stop()

    def _group(self, durable: DurableGroup) -> SharedGroup:
        """Return the connected members of a group, of which one is elsewhere."""
        group = self._house.connected.get(durable.key)
        if group is None:
            group = self._house.connected[durable.key] = SharedGroup(*durable.key, self.router.fanout.push)
        if durable.key not in self._readers:
            group.has_far = True
            text = f"{SHARED_PREFIX}{durable.name}/{durable.pattern}"
            reader = self._readers[durable.key] = Session("")
            self.router.subscribe(reader, parse_filter(text), Subscribed(text, 0))
            durable.attach(group)
        return group

    def _left(self, durable: DurableGroup) -> None:
        """Look whether a group has members elsewhere, or any at all."""
        group = self._house.connected.get(durable.key)
        if group is None or any(member.far is not None for member in group.members.values()):
            return
        reader = self._readers.pop(durable.key, None)
        if reader is not None:
            group.has_far = False
            self.router.unsubscribe(reader, parse_filter(f"{SHARED_PREFIX}{durable.name}/{durable.pattern}"))
            self.router.audiences.detach(reader)
        if not group.members:
            del self._house.connected[durable.key]
            durable.detach()
