"""A shared group that reads the log: it deals messages to its connected members and knows which are not done.

Like a session it is handed every committed batch while it is live; when no member has credit it notes the offset
(`lag`) and reads the log itself as credit comes back. Both happen on the loop's thread, so nothing is missed or dealt
to two at a time. What lost members had, or did not acknowledge in time, goes to others first, in the log's order.
"""

from collections import deque
from collections.abc import Sequence
from itertools import groupby
from logging import WARNING, getLogger

from everlog.base import MAX_OFFSET, EverlogError, Records, row_column, unpack_position
from everlog.broker.delivery import batch_of
from everlog.broker.events import event
from everlog.broker.groups.group_ports import GroupPorts
from everlog.broker.groups.shared_group import Member, SharedGroup, spend
from everlog.broker.groups.topic_order import OrderedPlan, name_owed, plan_owed, plan_rows
from everlog.mqtt import TELL_PUBLISHER
from everlog.sessions import LIVE, GroupCursor, GroupRow, MergedSubscription, OutgoingRows, Owed, group_row, row_at
from everlog.store import Reader
from everlog.topics import parse_filter

_PULL_BYTES = 256 << 10  # read at a time for a group that is behind, and held until it is dealt
_PULL_RECORDS = 8192
_GROUP_BYTES = 3000  # what a group was measured to take besides what it deals
_TURN_BYTES = 1 << 20  # read in one turn of the event loop; then others are heard
_log = getLogger("everlog.broker")


class DurableGroup:
    """A group and its cursor, owned by the group registry; `group` has the connected members, if any."""

    def __init__(self, name: str, pattern: str, cursor: GroupCursor, ports: GroupPorts) -> None:
        self.name = name
        self.pattern = pattern
        self.cursor = cursor
        self.group: SharedGroup | None = None
        self.subscribers: dict[str, None] = {}  # client ids, connected or not
        self.attached = 0  # how often members came
        self.spilled = False  # a transient group that reads the log while its members are too slow
        self.lag: dict[int, int] = {}  # shard -> first offset not dealt; a shard without one is live
        self.since: dict[int, int] = {}  # shard -> where the group begins, until that is reached
        self.doubt: dict[int, int] = {}  # shard -> below it, messages may have been dealt before a crash
        self._ports = ports
        self._router = ports.router
        self._names = False  # the reader reads who has published, since a member has asked for that
        self._reader = self._new_reader()
        self._ahead: dict[int, deque[OutgoingRows]] = {}  # shard -> what was read and is not dealt
        self._read_to: dict[int, int] = {}  # shard -> where that ends

    @property
    def key(self) -> tuple[str, str]:
        """The name and pattern of the group."""
        return self.name, self.pattern

    @property
    def is_waiting(self) -> bool:
        """Whether anything is left to deal when there is credit again."""
        return bool(self.lag) or bool(self.cursor.owed)

    # Dealing

    def deal(self, records: Records, rows: bytearray | None, start: int, stop: int, shard: int, now_us: int) -> None:
        """Deal rows of a batch that is being routed, or leave them in the log."""
        if shard in self.lag:
            return
        out = OutgoingRows(records, rows, start, stop, self._any_merged())
        if self.since and shard in self.since:
            if records.base_offset < self.since[shard]:
                out.skip_below(self.since[shard])
            else:
                del self.since[shard]
        if self.cursor.owed:
            self._deal_owed(now_us)
        if not self._deal(out, shard, now_us):
            self.lag[shard] = out.offset()
        self._ports.changed(self.key)

    def pump(self) -> None:
        """Deal what waits, as far as members have credit; owed messages first."""
        if self.group is None or not self.is_waiting:
            return
        now_us = self._router.due_us()
        if self.cursor.owed:
            self._deal_owed(now_us)
        try:
            for shard in tuple(self.lag):
                self._catch_up(shard, now_us)
        except EverlogError as error:
            self._read_failed(error)
        self._ports.changed(self.key)

    def begin_at(self, since: Sequence[int]) -> None:
        """Begin at an offset in each shard."""
        for shard, (at, routed) in enumerate(zip(since, self._router.routed, strict=True)):
            if at != routed:
                (self.lag if at < routed else self.since)[shard] = at

    def named_owed(self) -> dict[int, Owed]:
        """Return what is owed, in an ordered group with topics."""
        if self.cursor.ordered:
            name_owed(self.cursor, self._batch_of, self._drop)
        return self.cursor.owed

    def _read_failed(self, error: EverlogError) -> None:
        """Report a failed read; the next sweep tries again."""
        event(_log, "read_failed", WARNING, group=f"$share/{self.name}/{self.pattern}", reason=error)

    def _deal(self, out: OutgoingRows, shard: int, now_us: int) -> bool:
        """Deal rows as far as members have credit, up to `out.start`; return whether that was all."""
        group = self.group
        if group is None:
            return out.start == out.stop
        members = list(group.members.values())
        credits = [member.credit(self._ports.options.member_messages) for member in members]
        if self.cursor.ordered:
            plan = plan_rows(self.cursor, out, shard, members, credits, group.turn)
            group.turn = plan.turn
            self._carry_out(plan, out, shard, now_us)
            return out.start == out.stop
        count = min(out.stop - out.start, self.cursor.room)
        for member, size in group.deal_out(count, members, credits):
            stretch = OutgoingRows(out.records, out.rows, out.start, out.start + size, member.merged)
            self._push(member, stretch, shard, now_us)
            out.start += size
        return out.start == out.stop

    def _carry_out(self, plan: OrderedPlan, out: OutgoingRows, shard: int, now_us: int) -> None:
        """Deal rows by a plan that keeps the order of topics."""
        for position, topic in plan.skipped:
            self.cursor.skip(position, topic)
        out.start += plan.looked_at
        for member, rows in plan.rows.items():
            dealt = OutgoingRows(out.records, row_column(rows), 0, len(rows), member.merged)
            self._push(member, dealt, shard, now_us, plan.topics)

    def _push(
        self, member: Member, out: OutgoingRows, shard: int, now_us: int, topics: dict[int, bytes] | None = None
    ) -> None:
        """Send rows to a member that has credit for them; what is sent without a packet id is done."""
        session, again = member.session, bool(self.doubt) and self._in_doubt(out, shard)
        if member.far is not None:
            member.far.deal(member, out, shard, topics, self._ports.time(), again)
            return
        data, sent = session.deal(out, shard, now_us, member.tag, again)
        for first_id, positions in sent:
            member.held += len(positions)
            self._note(member, first_id, positions, topics)
        self._router.fanout.write(session, data)

    def _note(self, member: Member, first_id: int, positions: list[int], topics: dict[int, bytes] | None) -> None:
        """Note positions as under way to a member; those at QoS 2 stay with it."""
        client_id, now = member.session.client_id, self._ports.time()
        if member.merged.qos < 2:
            names = None if topics is None else [topics[position] for position in positions]
            self.cursor.dealt(client_id, positions, first_id, now, False, names)
            return
        window = member.session.window
        ids = [(first_id - 1 + k) % 65_535 + 1 for k in range(len(positions))]
        for state, run in groupby(zip(ids, positions, strict=True), lambda one: window.state(one[0])):
            pairs = list(run)
            some = [position for _, position in pairs]
            names = None if topics is None else [topics[position] for position in some]
            self.cursor.dealt(client_id, some, pairs[0][0], now, state != 1, names)

    def _in_doubt(self, out: OutgoingRows, shard: int) -> bool:
        """Return whether a crashed broker may have sent rows [MQTT-3.3.1-1]; batches end where the log ended then."""
        is_below = out.offset() < self.doubt.get(shard, 0)
        if not is_below:
            self.doubt.pop(shard, None)
        return is_below

    # Owed messages

    def _deal_owed(self, now_us: int) -> None:
        """Give what nobody has to members with credit, in the log's order."""
        if self.group is None:
            return
        most = self._ports.options.member_messages
        credits = {member: credit for member in self.group.members.values() if (credit := member.credit(most)) > 0}
        if not credits:
            return
        try:
            if self.cursor.ordered:
                name_owed(self.cursor, self._batch_of, self._drop)
                plan = plan_owed(self.cursor, credits, self._choose)
            else:
                plan = self._owed_in_turn(credits)
            for member, positions in plan.items():
                self._deal_positions(member, positions, now_us)
        except EverlogError as error:
            self._read_failed(error)

    def _owed_in_turn(self, credits: dict[Member, int]) -> dict[Member, list[int]]:
        plan: dict[Member, list[int]] = {}
        for position in self.cursor.each_owed():
            member = self._choose(position, credits)
            if member is not None:
                plan.setdefault(member, []).append(position)
                spend(credits, member)
            if not credits:
                break
        return plan

    def _choose(self, position: int, credits: dict[Member, int]) -> Member | None:
        """Return who gets an owed message: who had it last, else the next in turn, but nobody who still has it."""
        owed = self.cursor.owed[position]
        able = [member for member in credits if position not in member.taken]
        for member in able:
            if member.session.client_id == owed.member:
                return member
        if not able or self.group is None:
            return None
        self.group.turn += 1
        return able[self.group.turn % len(able)]

    def _deal_positions(self, member: Member, positions: list[int], now_us: int) -> None:
        """Give owed messages, in order, to a member that has credit for them."""
        batch: tuple[int, Records] | None = None
        some: list[int] = []
        for position in positions:
            found = self._batch_of(position, batch)
            if some and found is not batch:
                self._deal_rows(member, batch, some, now_us)
                some = []
            batch = found
            owed = self.cursor.owed[position]
            if batch is None:
                self._drop(position)
            elif owed.member == member.session.client_id and self._deal_again(member, batch[1], position, now_us):
                continue
            else:
                some.append(position)
        if some:
            self._deal_rows(member, batch, some, now_us)

    def _deal_rows(self, member: Member, batch: tuple[int, Records] | None, positions: list[int], now_us: int) -> None:
        """Give messages of one batch with packet ids of their own."""
        assert batch is not None
        shard, records = batch
        owed = [self.cursor.owed[position] for position in positions]
        rows = row_column(row_at(records, position & MAX_OFFSET) for position in positions)
        topics = None
        if self.cursor.ordered:
            topics = {position: one.topic for position, one in zip(positions, owed, strict=True) if one.topic}
        self._ports.counters.redelivered += sum(one.deals > 0 for one in owed)
        self._push(member, OutgoingRows(records, rows, 0, len(positions), member.merged), shard, now_us, topics)
        self._drop_unsent(positions)

    def _deal_again(self, member: Member, records: Records, position: int, now_us: int) -> bool:
        """Send a message again with DUP and its packet id [MQTT-4.4.0-1]; return False if that is not possible."""
        session, owed = member.session, self.cursor.owed[position]
        if member.far is not None or not (owed.packet_id and member.merged.qos):
            return False
        if session.window.state(owed.packet_id):
            return False
        row = row_at(records, position & MAX_OFFSET)
        out = OutgoingRows(records, None, row, row + 1, member.merged)
        data = session.deal_again(out, owed.packet_id, position, now_us, member.tag)
        if data:
            member.held += 1
            names = None if owed.topic is None else [owed.topic]
            self.cursor.dealt(session.client_id, [position], owed.packet_id, self._ports.time(), False, names)
        self._ports.counters.redelivered += 1
        self._router.fanout.write(session, data)
        self._drop_unsent([position])
        return True

    def _drop_unsent(self, positions: list[int]) -> None:
        """Forget what was given and is still owed: it has expired, or needs no acknowledgement."""
        self.cursor.acked(position for position in positions if position in self.cursor.owed)

    def _drop(self, position: int) -> None:
        """Give up a message that is no longer in the log."""
        self._ports.counters.lost += 1
        self.cursor.acked((position,))

    def _batch_of(self, position: int, last: tuple[int, Records] | None = None) -> tuple[int, Records] | None:
        """Return the shard and the batch of a message, which may be the last one looked at; None if it is gone."""
        shard, offset = unpack_position(position)
        records = last[1] if last is not None and last[0] == shard else None
        found = batch_of(self._router.log, shard, offset, records)
        if found is None:
            return None
        return last if found is records else (shard, found)

    # Reading the log

    def _catch_up(self, shard: int, now_us: int) -> None:
        """Read on and deal; the group is live again when it has reached what is routed."""
        routed = self._router.routed
        spent = 0
        while shard in self.lag:
            ahead = self._ahead.setdefault(shard, deque())
            while ahead:
                if not self._deal(ahead[0], shard, now_us):
                    self.lag[shard] = ahead[0].offset()
                    return
                ahead.popleft()
                self.lag[shard] = self._read_to[shard] if not ahead else ahead[0].offset()
            at = self.lag[shard]
            if at >= routed[shard]:
                del self.lag[shard]  # nothing was routed between this line and the last read: no gap, no repeat
                if at > routed[shard]:
                    self.since[shard] = at
                return
            if not self._has_credit():
                return
            if spent > _TURN_BYTES:
                self._ports.wake(self)
                return
            result = self._reader.read_shard(shard, at, _PULL_RECORDS, _PULL_BYTES)
            self._ports.counters.lost += sum(lost.to_offset - lost.from_offset for lost in result.lost)
            spent += 1 + sum(found.records.size for found in result.batches)
            for found in result.batches:
                out = OutgoingRows(found.records, found.rows, found.start, found.stop, self._any_merged())
                out.cut_at(routed[shard])  # what follows in the batch is handed to the group later
                if out.start < out.stop:
                    ahead.append(out if out.rows is None else out.alone())
            self._read_to[shard] = self.lag[shard] = min(result.positions[0], routed[shard])
            if self.lag[shard] == at and not ahead:
                return

    def _has_credit(self) -> bool:
        if self.group is None or self.cursor.room == 0:
            return False
        return any(one.credit(self._ports.options.member_messages) for one in self.group.members.values())

    def _any_merged(self) -> MergedSubscription:
        assert self.group is not None
        return next(iter(self.group.members.values())).merged

    # Members

    def attach(self, group: SharedGroup) -> None:
        """Deal to connected members."""
        self.attached += 1
        self.group = group
        group.deal = self.deal
        if not self._names and any(one.merged.tells & TELL_PUBLISHER for one in group.members.values()):
            self._names = True
            self._reader = self._new_reader()

    def _new_reader(self) -> Reader:
        return self._router.log.reader([parse_filter(self.pattern)], publishers=self._names)

    def lose(self, member: Member) -> None:
        """Let go of a member without a connection: its QoS 1 messages go to others, those at QoS 2 stay with it."""
        member.session.hand_back(member.tag)
        self.cursor.left(member.session.client_id)
        if self.group is not None and not self.group.members:
            self.detach()
        self._ports.changed(self.key)

    def detach(self) -> None:
        """Stay where the group is in the log, since no member is connected."""
        self.group = None
        self._ahead.clear()
        self._reader.release()
        for shard, at in enumerate(self._router.routed):
            self.lag.setdefault(shard, max(at, self.since.pop(shard, 0)))

    def take_overdue(self, now: float) -> list[tuple[str, list[int]]]:
        """Take back what members have had for too long, if there are others; return it by client id."""
        timeout = self._ports.options.ack_timeout_s
        if not timeout or self.spilled or self.group is None or not self.cursor.inflight:
            return []
        connected = {session.client_id for session in self.group.members}
        late = [one for one in self.cursor.members() if len(connected - {one}) > 0]
        taken = self.cursor.overdue(now - timeout, late)
        if taken:
            self._ports.changed(self.key)
        return list(taken.items())

    def drop_ahead(self) -> None:
        """Forget what was read and is not dealt: it is read again when there is credit."""
        self._ahead.clear()

    # What others see

    @property
    def size_bytes(self) -> int:
        """Its memory."""
        ahead = sum(out.records.size for read in self._ahead.values() for out in read)
        return _GROUP_BYTES + 2 * (len(self.name) + len(self.pattern)) + self.cursor.size_bytes + ahead

    def reads_on(self) -> list[int]:
        """Return for each shard the first offset not looked at."""
        return [self.lag.get(shard, max(at, self.since.get(shard, 0))) for shard, at in enumerate(self._router.routed)]

    def row(self) -> GroupRow:
        """Return the group as it is stored."""
        shards, since = self._router.log.shards, self.since
        positions = [  # none above the committed end: a crash cuts what lies there
            self.lag.get(shard, min(since[shard], shards[shard].committed) if since.get(shard, 0) > at else LIVE)
            for shard, at in enumerate(self._router.routed)
        ]
        doubt = [self.doubt.get(shard, 0) for shard in range(len(positions))] if self.doubt else ()
        return group_row(self.name, self.pattern, self.cursor, positions, doubt, self.group is not None)
