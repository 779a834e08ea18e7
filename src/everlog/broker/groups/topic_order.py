"""Planning for a group that keeps the order of each topic: a topic's messages are with one member at a time.

A message whose topic is with a member that has no credit is passed over and owed, so it holds back its topic and
nothing else. Pure: who gets what is returned, and the durable group gives it to them.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from everlog.base import MAX_OFFSET, Records, pack_position
from everlog.broker.groups.shared_group import Member, spend
from everlog.sessions import GroupCursor, OutgoingRows, row_at

Batch: TypeAlias = tuple[int, Records]  # with its shard
BatchOf: TypeAlias = Callable[[int, Batch | None], Batch | None]  # that has a position; it may be the last one
_MORE_TOPICS = 100  # looked at beyond the credit that there is, where some can't be dealt


@dataclass(slots=True)
class OrderedPlan:
    """What to do with rows: for each member the rows to deal, with their topics by position."""

    rows: dict[Member, list[int]] = field(default_factory=dict)
    topics: dict[int, bytes] = field(default_factory=dict)
    skipped: list[tuple[int, bytes]] = field(default_factory=list)  # owed from now on: position and topic
    looked_at: int = 0  # rows of the piece that the plan covers
    turn: int = 0  # who is next


def plan_rows(
    cursor: GroupCursor, out: OutgoingRows, shard: int, members: list[Member], credits: list[int], turn: int
) -> OrderedPlan:
    """Plan the next rows as far as members have credit."""
    clients = {member.session.client_id: which for which, member in enumerate(members)}
    plan = OrderedPlan(turn=turn)
    pins: dict[bytes, int] = {}
    passed_over: set[bytes] = set()
    names = TopicNames(out.records)
    room, credit = cursor.room, sum(credits)
    for row in out.row_numbers():
        if room == 0 or credit == 0:
            break
        topic = names.of(row)
        position = pack_position(shard, out.records.offset(row))
        which = _which(topic, cursor.keeper(topic), pins, clients, credits, plan.turn)
        if topic in passed_over or cursor.is_waiting(topic) or which < 0:
            passed_over.add(topic)
            plan.skipped.append((position, topic))
        else:
            pins[topic] = which
            plan.turn = which + 1
            credits[which] -= 1
            credit -= 1
            plan.topics[position] = topic
            plan.rows.setdefault(members[which], []).append(row)
        room -= 1
        plan.looked_at += 1
    return plan


def _which(
    topic: bytes, keeper: str | None, pins: dict[bytes, int], clients: dict[str, int], credits: list[int], turn: int
) -> int:
    """Return the member for a message: that which has its topic, else the next with credit; -1 if that has none."""
    pinned = pins.get(topic, -1)
    if pinned < 0 and keeper is not None:
        pinned = clients.get(keeper, -1)
        if pinned < 0:
            return -1
    if pinned >= 0:
        return pinned if credits[pinned] > 0 else -1
    size = len(credits)
    return next(k % size for k in range(turn, turn + size) if credits[k % size] > 0)


def plan_owed(
    cursor: GroupCursor, credits: dict[Member, int], choose: Callable[[int, dict[Member, int]], Member | None]
) -> dict[Member, list[int]]:
    """Plan what nobody has for members with credit: of each topic the oldest first, and all to one member."""
    clients = {member.session.client_id: member for member in credits}
    plan: dict[Member, list[int]] = {}
    for keeper in (None, *clients):
        if not credits:
            break
        for topic in cursor.waiting(keeper, sum(credits.values()) + _MORE_TOPICS):
            (first,) = cursor.oldest_of(topic, 1)
            member = choose(first, credits) if keeper is None else clients[keeper]
            if member is None or member not in credits:
                continue
            for position in cursor.oldest_of(topic, credits[member]):
                if position in member.taken:
                    break
                plan.setdefault(member, []).append(position)
                spend(credits, member)
    return {member: sorted(positions) for member, positions in plan.items()}


def name_owed(cursor: GroupCursor, batch_of: BatchOf, drop: Callable[[int], None]) -> None:
    """Look up the topics of owed messages that were stored without them; `drop` those that are gone."""
    batch = None
    for position in sorted(cursor.unnamed()):
        batch = batch_of(position, batch)
        if batch is None:
            drop(position)
        else:
            cursor.name(position, TopicNames(batch[1]).of(row_at(batch[1], position & MAX_OFFSET)))


class TopicNames:
    """The topic names of a batch, by row."""

    def __init__(self, records: Records) -> None:
        at = records.start + records.layout.topics
        self._records = records
        self._ids = memoryview(records.data)[at : at + 4 * records.count].cast("I")
        self._names: dict[int, bytes] = {}

    def of(self, row: int) -> bytes:
        """Return the topic of a row."""
        topic = self._ids[row]
        name = self._names.get(topic)
        if name is None:
            name = self._names[topic] = self._records.table.name(topic)
        return name
