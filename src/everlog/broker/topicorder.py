"""Dealing in a group that keeps the order of each topic: a topic's messages are with one member at a time.

A message whose topic is with a member that has no credit is passed over and owed, so it holds back its topic and
nothing else.
"""

from typing import TYPE_CHECKING

from everlog.base import MAX_OFFSET, Records, pack_position
from everlog.broker.groups import Member, spend
from everlog.sessions import Piece, row_at

if TYPE_CHECKING:
    from everlog.broker.durablegroup import DurableGroup

_MORE_TOPICS = 100  # looked at beyond the credit that there is, where some can't be dealt


def deal_in_order(
    durable: "DurableGroup", piece: Piece, shard: int, now_us: int, members: list[Member], credits: list[int]
) -> bool:
    """Deal rows as far as members have credit; whether that was all. `piece.start` is where it ended."""
    group, cursor, records = durable.group, durable.cursor, piece.records
    assert group is not None
    clients = {member.session.client_id: which for which, member in enumerate(members)}
    plan: dict[int, list[int]] = {}
    pins: dict[bytes, int] = {}
    topics: dict[int, bytes] = {}
    names = _Names(records)
    room, credit = cursor.room, sum(credits)
    for row in piece.row_numbers():
        if room == 0 or credit == 0:
            break
        topic = names.of(row)
        position = pack_position(shard, records.offset(row))
        which = _which(topic, cursor.keeper(topic), pins, clients, credits, group.turn)
        if cursor.is_waiting(topic) or which < 0:
            cursor.skip(position, topic)
        else:
            pins[topic] = which
            group.turn = which + 1
            credits[which] -= 1
            credit -= 1
            topics[position] = topic
            plan.setdefault(which, []).append(row)
        room -= 1
        piece.start += 1
    for which, rows in plan.items():
        chosen = bytearray(b"".join(row.to_bytes(4, "little") for row in rows))
        member = members[which]
        durable.push(member, Piece(records, chosen, 0, len(rows), member.delivery), shard, now_us, topics)
    return piece.start == piece.stop


def _which(
    topic: bytes, keeper: str | None, pins: dict[bytes, int], clients: dict[str, int], credits: list[int], turn: int
) -> int:
    """The member for a message: that which has its topic, else the next with credit; -1 if that one has none."""
    pinned = pins.get(topic, -1)
    if pinned < 0 and keeper is not None:
        pinned = clients.get(keeper, -1)
        if pinned < 0:
            return -1
    if pinned >= 0:
        return pinned if credits[pinned] > 0 else -1
    size = len(credits)
    return next(k % size for k in range(turn, turn + size) if credits[k % size] > 0)


def deal_owed_in_order(durable: "DurableGroup", credits: dict[Member, int], now_us: int) -> None:
    """Give what nobody has to members with credit: of each topic the oldest first, and all to one member."""
    _name_owed(durable)
    cursor = durable.cursor
    clients = {member.session.client_id: member for member in credits}
    plan: dict[Member, list[int]] = {}
    for keeper in (None, *clients):
        if not credits:
            break
        for topic in cursor.waiting(keeper, sum(credits.values()) + _MORE_TOPICS):
            (first,) = cursor.oldest_of(topic, 1)
            member = durable.choose(first, credits) if keeper is None else clients[keeper]
            if member is None or member not in credits:
                continue
            for position in cursor.oldest_of(topic, credits[member]):
                if position in member.taken:
                    break
                plan.setdefault(member, []).append(position)
                spend(credits, member)
    for member, positions in plan.items():
        durable.give(member, sorted(positions), now_us)


def _name_owed(durable: "DurableGroup") -> None:
    """Learn the topics of owed messages where they are not known: those that were stored."""
    cursor = durable.cursor
    batch = None
    for position in sorted(cursor.unnamed()):
        batch = durable.batch_of(position, batch)
        if batch is None:
            durable.drop(position)
            continue
        row = row_at(batch[1], position & MAX_OFFSET)
        cursor.name(position, _Names(batch[1]).of(row))


class _Names:
    """The topic names of a batch, by row."""

    def __init__(self, records: Records) -> None:
        at = records.start + records.layout.topics
        self._records = records
        self._ids = memoryview(records.data)[at : at + 4 * records.count].cast("I")
        self._names: dict[int, bytes] = {}

    def of(self, row: int) -> bytes:
        topic = self._ids[row]
        name = self._names.get(topic)
        if name is None:
            name = self._names[topic] = self._records.table.name(topic)
        return name
