"""The members of a shared group that are connected to other brokers, as the broker sees them that deals for it.

What they are dealt leaves at the end of a turn of the event loop, one frame for a seat. A frame with QoS 2 messages
leaves only when it is stored who gets them, and nothing overtakes it. What a seat has not said to be done is under
way: it is owed again when the seat says that nobody has it, or when its broker is dead; of a QoS 2 message the session
tables decide whether the seat has it.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from everlog.base import QOS_BITS, QOS_SHIFT, pack_position
from everlog.broker.groups.durable_group import DurableGroup
from everlog.broker.groups.far_ports import Dealers, Dealt, DealTables, Seated, SeatMember, SeatNews
from everlog.broker.groups.group_ports import GroupPorts
from everlog.broker.groups.shared_group import Member, SharedGroup
from everlog.sessions import (
    DEAL_BACK,
    GroupDeal,
    MergedSubscription,
    OutgoingRows,
    Owed,
    Session,
    pack_positions,
    unpack_positions,
)

_SURE = bytes(flags & QOS_BITS == 2 << QOS_SHIFT for flags in range(256))


@dataclass(eq=False, slots=True)
class FarMember(Member):
    """A member at another broker; its session here is a name."""

    taker: int = 0
    number: int = 0
    limit: int = 0
    given: int = 0
    is_away: bool = False  # there is no link to its broker

    def credit(self, most: int) -> int:
        """Return how many messages its broker takes for it now."""
        return 0 if self.is_away else max(0, self.limit - self.given)


@dataclass(eq=False, slots=True)
class Frame:
    """What is said to a seat at once."""

    deals: list[Dealt] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)  # that are to be acknowledged
    has_sure: bool = False
    is_stored: bool = False


@dataclass(eq=False, slots=True)
class FarSeat:
    """The seat of one broker."""

    taker: int
    sitting: int = 0
    is_away: bool = False
    members: dict[int, FarMember] = field(default_factory=dict)  # by number
    open: Frame | None = None  # of this turn
    unsent: deque[Frame] = field(default_factory=deque)


class FarMembers:
    """All seats of one group that this broker deals for; `group` connects its members, `left` looks if any is there."""

    def __init__(
        self,
        durable: DurableGroup,
        ports: GroupPorts,
        tables: DealTables,
        dealers: Dealers,
        woken: Callable[[], None],
        group: Callable[[], SharedGroup],
        left: Callable[[], None],
    ) -> None:
        self.durable = durable
        self.seats: dict[int, FarSeat] = {}  # by incarnation
        self.unclaimed: dict[int, dict[int, str]] = {}  # sure ones of an earlier dealer: taker -> position -> client id
        self._under_way: dict[int, tuple[FarSeat, str]] = {}  # position -> who has it
        self._sure: set[int] = set()  # of these, what is sure
        self._settling: dict[int, str] = {}  # sure messages that the tables are asked about, and whose they were
        self._ports = ports
        self._tables = tables
        self._dealers = dealers
        self._woken = woken
        self._group = group
        self._on_left = left

    @property
    def is_empty(self) -> bool:
        """Whether no other broker has or gets anything of the group."""
        members = any(seat.members for seat in self.seats.values())
        return not (members or self._under_way or self._settling or self.unclaimed)

    def unsettled(self) -> list[int]:
        """Return the brokers that may have messages, and have said nothing since their link was lost, or at all."""
        away = {seat.taker for seat in self.seats.values() if seat.is_away}
        return sorted(away | self.unclaimed.keys())

    @property
    def is_settled(self) -> bool:
        """Whether it is known of every sure message who has it."""
        return not (self._settling or self.unclaimed)

    # Dealing

    def deal(
        self, member: Member, out: OutgoingRows, shard: int, topics: dict[int, bytes] | None, now: float, again: bool
    ) -> None:
        """Give rows to a member of a seat that has credit for them."""
        assert isinstance(member, FarMember)
        seat = self.seats[member.taker]
        client_id, qos = member.session.client_id, member.merged.qos
        offset, flags = out.records.offset, out.flags()
        positions = [pack_position(shard, offset(row)) for row in out.row_numbers()]
        sure: list[int] = []
        plain: list[int] = []
        for position, flag in zip(positions, flags, strict=True) if qos else ():
            if flag & QOS_BITS:
                (sure if qos == 2 and _SURE[flag] else plain).append(position)
        frame = seat.open
        if frame is None:
            frame = seat.open = Frame()
        for some, stays in ((plain, False), (sure, True)):
            if some:
                names = None if topics is None else [topics[position] for position in some]
                self.durable.cursor.dealt(client_id, some, 0, now, stays, names)
                self._under_way.update(dict.fromkeys(some, (seat, client_id)))
                frame.positions += some
        if sure:
            frame.has_sure = True
            self._sure.update(sure)
            self._tables.mark_deals([GroupDeal(*self.durable.key, one, client_id, seat.taker) for one in sure])
        member.given += len(positions)
        column = flags.translate(_SURE) if sure else b""
        frame.deals.append(Dealt(member.number, qos, pack_positions(positions), column, again))
        self._woken()

    def flush(self) -> None:
        """Send what was dealt in this turn, or have it wait until it is stored."""
        for seat in self.seats.values():
            frame, seat.open = seat.open, None
            if frame is not None:
                seat.unsent.append(frame)
                if frame.has_sure:  # the group's row, with whom it gave these to, before their packets can leave
                    self._tables.when_durable(partial(self._stored, seat, frame))
                else:
                    frame.is_stored = True
                self._send(seat)

    def _stored(self, seat: FarSeat, frame: Frame) -> None:
        frame.is_stored = True
        self._send(seat)

    def _send(self, seat: FarSeat) -> None:
        while seat.unsent and seat.unsent[0].is_stored and self.seats.get(seat.taker) is seat and not seat.is_away:
            frame = seat.unsent.popleft()
            self._dealers.send_deals(seat.taker, self.durable.key, seat.sitting, tuple(frame.deals))

    # Seats

    def seated(self, taker: int, seated: Seated) -> None:
        """Take in all that another broker says of its members; what it does not say to have, it has not."""
        old = self.seats.get(taker)
        if old is not None and seated.sitting <= old.sitting:
            return
        self._done(unpack_positions(seated.done))
        plain = {position: one.client_id for one in seated.held for position in unpack_positions(one.plain)}
        sure = {position: one.client_id for one in seated.held for position in unpack_positions(one.sure)}
        seat = self.seats[taker] = FarSeat(taker, seated.sitting)
        kept = self._end(taker, old, plain.keys() | sure.keys())
        self._under_way.update({position: (seat, client_id) for position, client_id in kept.items()})
        self._claim(seat, {position: one for position, one in plain.items() if position not in kept})
        self._join(seat, seated.members)
        if seated.ordered:
            self.durable.cursor.ordered = True
        self._on_left()
        self._moved()

    def _claim(self, seat: FarSeat, plain: dict[int, str]) -> None:
        """Note what members have of an earlier dealer as under way, as far as that one has stored that it was dealt."""
        owed = self.durable.named_owed()
        for position in sorted(plain.keys() & owed.keys()):
            client_id, topic = plain[position], owed[position].topic
            now = self._ports.time()
            self.durable.cursor.dealt(client_id, [position], 0, now, False, None if topic is None else [topic])
            self._under_way[position] = (seat, client_id)

    def news(self, taker: int, news: SeatNews) -> None:
        """Take in what has changed at a seat."""
        seat = self.seats.get(taker)
        if seat is None or seat.sitting != news.sitting:
            return
        self._done(unpack_positions(news.done))
        self._back(seat, unpack_positions(news.back))
        for number in news.left:
            self._leave(seat.members.pop(number, None))
        self._join(seat, news.members)
        self._on_left()
        self._moved()

    def _moved(self) -> None:
        self._ports.wake(self.durable)
        self._ports.changed(self.durable.key)

    def _done(self, positions: list[int]) -> None:
        self.durable.cursor.acked(positions)
        for position in positions:
            self._under_way.pop(position, None)
            self._sure.discard(position)

    def _back(self, seat: FarSeat, positions: Iterable[int]) -> None:
        """Owe what a seat says that nobody has or will have there."""
        for position in positions:
            holder = self._under_way.get(position)
            if holder is not None and holder[0] is seat:
                self._owe(position, holder[1])

    def _owe(self, position: int, client_id: str) -> None:
        self._under_way.pop(position, None)
        if position not in self._sure:
            self.durable.cursor.give_back(client_id, (position,))
            return
        self._sure.discard(position)
        self._tables.mark_deals([GroupDeal(*self.durable.key, position, client_id, DEAL_BACK)])
        self.durable.cursor.acked((position,))
        self.durable.cursor.restore([(position, Owed(client_id, 0, 1))])

    def _join(self, seat: FarSeat, members: Iterable[SeatMember]) -> None:
        for one in members:
            member = seat.members.get(one.number)
            if member is None:
                session = Session(one.client_id)
                merged = MergedSubscription(session, one.qos, group=self.durable.key)
                member = FarMember(merged, group=self.durable.key, far=self, taker=seat.taker, number=one.number)
                seat.members[one.number] = member
                self._group().members[session] = member
            elif member.merged.qos != one.qos:
                member.merged = MergedSubscription(member.session, one.qos, group=self.durable.key)
            member.limit = max(member.limit, one.limit)

    def _leave(self, member: FarMember | None) -> None:
        if member is not None and self.durable.group is not None:
            self.durable.group.members.pop(member.session, None)

    # Brokers that are gone

    def unlinked(self, taker: int) -> None:
        """Deal nothing to a broker that there is no link to: it takes its seat anew, or is dead."""
        seat = self.seats.get(taker)
        if seat is not None:
            seat.is_away = True
            for member in seat.members.values():
                member.is_away = True

    def lost(self, taker: int) -> None:
        """Give others what a broker had that is dead, or has no seat any more."""
        self._end(taker, self.seats.pop(taker, None), set())
        self._on_left()
        self._moved()

    def _end(self, taker: int, seat: FarSeat | None, held: set[int]) -> dict[int, str]:
        """End a sitting; return what of it is held still. Of sure messages the tables say whether it has them."""
        asked = self.unclaimed.pop(taker, {})
        kept = {position: asked.pop(position) for position in held & asked.keys()}
        self._sure.update(kept)
        if seat is not None:
            self._recall(seat)
            under_way = [(position, client_id) for position, (one, client_id) in self._under_way.items() if one is seat]
            for position, client_id in under_way:
                if position in held:
                    kept[position] = client_id
                elif position in self._sure:
                    asked[position] = client_id
                else:
                    self._owe(position, client_id)
            for member in seat.members.values():
                self._leave(member)
        self.ask(taker, asked)
        return kept

    def _recall(self, seat: FarSeat) -> None:
        """Owe what was dealt to a seat that has not heard of it."""
        frames = [*seat.unsent, *([] if seat.open is None else [seat.open])]
        self._back(seat, [position for frame in frames for position in frame.positions])
        seat.open = None
        seat.unsent.clear()

    def let_go(self) -> None:
        """Deal to nobody any more: the next dealer asks all seats what they have."""
        for seat in self.seats.values():
            self._recall(seat)
            for member in seat.members.values():
                self._leave(member)
        self.seats.clear()
        self._on_left()

    def ask(self, taker: int, sure: dict[int, str]) -> None:
        """Find out what a broker has stored of sure messages, which it does not say to have."""
        for position in sure:
            self._under_way.pop(position, None)
            self._sure.discard(position)
        self._settling.update(sure)
        if sure:
            self._dealers.settle(self.durable.key, taker, sorted(sure))

    def settled(self, positions: Iterable[int], owed: set[int]) -> None:
        """Hear from the tables which sure messages nobody has stored; the others are with their sessions."""
        for position in positions:
            client_id = self._settling.pop(position, None)
            if client_id is None:
                continue
            if position in owed:
                self._sure.add(position)
                self._owe(position, client_id)
            else:
                self.durable.cursor.acked((position,))
        self._moved()
