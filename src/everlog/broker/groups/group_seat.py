"""The members here of a shared group that another broker deals for.

What the dealer gives is a list of positions. They wait here, at most as many as members had credit for, until the log
here has them and the member has room; acks go back in batches, one for each turn of the event loop. A QoS 2 message is
taken off the dealer's list in the batch that stores it with its session, and leaves after that.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count

from everlog.base import MAX_OFFSET, Records, row_column, unpack_position
from everlog.broker.delivery import batch_of
from everlog.broker.groups.far_ports import Dealt, DealTables, Held, Key, Seated, SeatMember, SeatNews
from everlog.broker.groups.group_ports import GroupPorts
from everlog.broker.groups.shared_group import Member
from everlog.sessions import DEAL_TAKEN, GroupDeal, OutgoingRows, pack_positions, row_at, unpack_positions

_RECENT = 4096  # acknowledged messages that are said again at the next sitting
_MOST_QOS_0 = 1024  # given ahead to a member that acknowledges nothing
_sittings = count(1)  # of all seats, since one that is given up may be taken again


@dataclass(slots=True)
class Place:
    """One member: what it was given and has not been sent, and how much it may be given in all."""

    member: Member
    queue: deque[tuple[int, bool, bool]] = field(default_factory=deque)  # position, whether sure, whether again
    got: int = 0
    told: int = -1  # the limit that the dealer knows; -1: it does not know the member


class GroupSeat:
    """The place of this broker in a group; owned by the event loop's thread."""

    def __init__(
        self, key: Key, since: tuple[int, ...], ports: GroupPorts, tables: DealTables, woken: Callable[[Key], None]
    ) -> None:
        self.key = key
        self.since = since
        self.ordered = False
        self.dealer = 0  # an incarnation; 0 if it is not known who deals
        self.sitting = 0
        self.is_seated = False  # the dealer has heard of this sitting
        self.on_seated: list[Callable[[], None]] = []
        self.places: dict[int, Place] = {}  # by the tag of the member
        self._ports = ports
        self._router = ports.router
        self._tables = tables
        self._woken = woken
        self.plain: dict[int, Member] = {}  # positions that members here have and have not acknowledged
        self.given: dict[int, Member] = {}  # positions given to sessions, and not known to be stored
        self.recent: deque[int] = deque(maxlen=_RECENT)
        self._done: list[int] = []
        self._back: list[int] = []
        self._left: list[int] = []

    @property
    def is_empty(self) -> bool:
        """Whether nobody here has or gets anything of the group."""
        return not (self.places or self.plain or self.given or self._done or self._back or self._left)

    # Members

    def join(self, member: Member) -> None:
        """Give a member a place, or take note that its options have changed."""
        if member.tag not in self.places:
            self.places[member.tag] = Place(member)
        else:  # it may have another QoS: told again, it is another to the dealer
            self.places[member.tag].told = -1
        self._woken(self.key)

    def take_over(self, member: Member, positions: Iterable[int]) -> None:
        """Take in a member of a group that was dealt for here, with what it has not acknowledged."""
        self.plain.update(dict.fromkeys(positions, member))
        if not member.is_leaving:
            self.join(member)

    def leave(self, member: Member) -> None:
        """Take its place from a member; what it was sent, it may still acknowledge."""
        place = self.places.pop(member.tag, None)
        if place is not None:
            self._left.append(member.tag)
            self._give_back(position for position, _, _ in place.queue)
            self._woken(self.key)

    def lose(self, member: Member) -> None:
        """Let go of a member without a connection: what it has not acknowledged goes to others, but for QoS 2."""
        self.leave(member)
        member.session.hand_back(member.tag)
        self._give_back([position for position, one in self.plain.items() if one is member])
        self._woken(self.key)

    def _give_back(self, positions: Iterable[int]) -> None:
        for position in positions:
            self.plain.pop(position, None)
            self._back.append(position)

    def acked(self, member: Member, positions: list[int]) -> None:
        """Take note of what a member has acknowledged."""
        self._finish([position for position in positions if self.plain.pop(position, None) is not None])
        self.wake(member)

    def wake(self, member: Member) -> None:
        """Look again at a member that may have room."""
        if member.tag in self.places:
            self._woken(self.key)

    def _finish(self, positions: list[int]) -> None:
        self._done += positions
        self.recent.extend(positions)
        if positions:
            self._woken(self.key)

    # Sitting

    def sit(self, dealer: int) -> Seated:
        """Take the seat anew, with this dealer; return all that is to be said.

        What members may be given follows when the dealer has heard of it: a SUBACK goes before the first message.
        """
        self.dealer, self.is_seated = dealer, False
        self.sitting = next(_sittings)
        self._done, self._back, self._left = [], [], []  # said by all that is held, and by what was done of late
        for place in self.places.values():
            place.got = place.told = 0
        held: dict[int, tuple[Member, list[int], list[int]]] = {}
        for position, member in self.plain.items():
            held.setdefault(member.tag, (member, [], []))[1].append(position)
        for position, member in self.given.items():
            held.setdefault(member.tag, (member, [], []))[2].append(position)
        for tag, place in self.places.items():
            queued = [position for position, is_sure, _ in place.queue if is_sure]
            held.setdefault(tag, (place.member, [], []))[2].extend(queued)
        return Seated(
            self.sitting,
            self.since,
            self.ordered,
            tuple(
                SeatMember(tag, place.member.session.client_id, place.member.merged.qos, 0)
                for tag, place in self.places.items()
            ),
            tuple(
                Held(tag, member.session.client_id, pack_positions(plain), pack_positions(sure))
                for tag, (member, plain, sure) in held.items()
            ),
            pack_positions(self.recent),
        )

    def seated(self, sitting: int) -> None:
        """Take it that the dealer has heard of a sitting."""
        if sitting == self.sitting:
            self.is_seated = True
            calls, self.on_seated = self.on_seated, []
            for call in calls:
                call()
            self._woken(self.key)

    def stand(self) -> None:
        """Have no dealer any more."""
        self.dealer, self.is_seated = 0, False

    def take_news(self) -> SeatNews | None:
        """Return what the dealer is to hear now, if anything."""
        if not self.is_seated:
            return None
        members = tuple(self._changed())
        if not (members or self._left or self._done or self._back):
            return None
        news = SeatNews(
            self.sitting, members, tuple(self._left), pack_positions(self._done), pack_positions(self._back)
        )
        self._left, self._done, self._back = [], [], []
        return news

    def _changed(self) -> Iterable[SeatMember]:
        """Yield the members that the dealer does not know, or that may be given more than it knows."""
        most = self._ports.options.member_messages
        for tag, place in self.places.items():
            member = place.member
            credit = min(member.credit(most), most if member.merged.qos else _MOST_QOS_0) - len(place.queue)
            limit = place.got + max(0, credit)
            is_new = place.told < 0
            if is_new or (limit > place.told and (place.told <= place.got or limit - place.told >= most // 8)):
                place.told = limit
                yield SeatMember(tag, member.session.client_id, member.merged.qos, place.told)

    # Dealing

    def take(self, records: Records, rows: bytearray | None, start: int, stop: int, shard: int, now_us: int) -> None:
        """Look after this turn whether the log has what was dealt: some of the group's messages are being routed."""
        if any(place.queue for place in self.places.values()):
            self._woken(self.key)

    def dealt(self, dealer: int, sitting: int, deals: Iterable[Dealt]) -> None:
        """Take what the dealer gives; of another dealer or an earlier sitting nothing counts."""
        if dealer != self.dealer or sitting != self.sitting:
            return
        for deal in deals:
            positions = unpack_positions(deal.positions)
            sure = deal.sure or bytes(len(positions))
            place = self.places.get(deal.number)
            if place is None or place.member.merged.qos != deal.qos:
                self._back += positions
                continue
            place.got += len(positions)
            for position, is_sure in zip(positions, sure, strict=True):
                if is_sure:
                    place.queue.append((position, True, deal.again))
                elif position not in self.plain:  # else somebody here has it, dealt by the one before
                    if deal.qos:
                        self.plain[position] = place.member
                    place.queue.append((position, False, deal.again))
        self._woken(self.key)

    def pump(self) -> None:
        """Send members what waits for them, as far as they have room and the log here has it."""
        for place in list(self.places.values()):
            if place.queue:
                self._send(place)

    def _send(self, place: Place) -> None:
        member = place.member
        room = member.credit(max(self._ports.options.member_messages, member.held + 1))
        shards, later = self._router.log.shards, deque[tuple[int, bool, bool]]()
        run: list[tuple[int, bool, bool]] = []
        found: tuple[int, Records] | None = None
        while place.queue and room > 0:
            one = place.queue.popleft()
            shard, offset = unpack_position(one[0])
            if offset >= shards[shard].committed:
                later.append(one)
                continue
            records = batch_of(self._router.log, shard, offset, found[1] if found and found[0] == shard else None)
            if records is None:
                self._ports.counters.lost += 1
                self._settle(member, [one], set())
                continue
            if run and (found is None or records is not found[1] or one[2] != run[0][2]):
                self._push(member, found, run)
                run = []
            found = shard, records
            run.append(one)
            room -= 1
        if run:
            self._push(member, found, run)
        place.queue.extendleft(reversed(later))

    def _push(self, member: Member, found: tuple[int, Records] | None, run: list[tuple[int, bool, bool]]) -> None:
        """Send messages of one batch to a member that has room for them."""
        assert found is not None
        shard, records = found
        rows = row_column(row_at(records, position & MAX_OFFSET) for position, _, _ in run)
        out = OutgoingRows(records, rows, 0, len(run), member.merged)
        data, sent = member.session.deal(out, shard, self._router.due_us(), member.tag, run[0][2])
        under_way = {position for _, positions in sent for position in positions}
        member.held += len(under_way)
        self._settle(member, run, under_way)
        self._router.fanout.write(member.session, data)

    def _settle(self, member: Member, run: list[tuple[int, bool, bool]], under_way: set[int]) -> None:
        """Have sure messages stored with the session; what needs no acknowledgement is done."""
        sure = [position for position, is_sure, _ in run if is_sure]
        gone = [position for position, is_sure, _ in run if not is_sure and position not in under_way]
        self._finish([position for position in gone if self.plain.pop(position, None) is not None])
        if sure:
            client_id = member.session.client_id
            self.given.update(dict.fromkeys(sure, member))
            self._tables.mark_deals([GroupDeal(*self.key, one, client_id, DEAL_TAKEN) for one in sure])
            self._tables.when_durable(lambda: self._stored(sure))

    def _stored(self, positions: list[int]) -> None:
        for position in positions:
            self.given.pop(position, None)
        self._finish(positions)
