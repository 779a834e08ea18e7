"""The messages of a shared group that are dealt and not acknowledged, and those that it still owes.

A message is its position (shard in the upper 8 bits, offset below). Below the place where the group reads on, every
message is done except those `inflight` (a member has it) and those `owed` (nobody has it any more, or yet), so one
that is never acknowledged holds back no other. Pure: time is an argument, members are client ids.
Invariants: no position is both in flight and owed; together they are at most `limit`. In an ordered group all messages
of a topic that are in flight are with one member, and none is dealt while an older one of its topic is owed.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import islice

from everlog.base import unpack_position

_IDS = 65_535
_PLACES = 1 << 16  # more than a deal has messages
_PENDING_BYTES = 300  # what was measured to be taken by a message that is not done
_ORDERED_BYTES = 1400  # the same in an ordered group, where each may have a topic of its own


@dataclass(slots=True)
class Deal:
    """Messages that went to a member together, with consecutive packet ids."""

    member: str
    first_id: int
    since: float
    left: int
    stays: bool  # [MQTT-4.8.2-5] sent at QoS 2: no other member gets them


@dataclass(frozen=True, slots=True)
class Owed:
    """A message that waits to be dealt: who had it last, with which packet id, and how often it has been dealt."""

    member: str = ""
    packet_id: int = 0
    deals: int = 0
    topic: bytes | None = None


class GroupCursor:
    """The unfinished messages of one group below the place where it reads on; at most `limit`."""

    def __init__(self, limit: int, ordered: bool = False) -> None:
        self.limit = limit
        self.ordered = ordered
        self.owed: dict[int, Owed] = {}
        self._inflight: dict[int, int] = {}  # position -> number of the deal * _PLACES + place in it
        self._deals: dict[int, Deal] = {}
        self._number = 0
        self._again: dict[int, int] = {}  # position -> how often it was dealt before, for messages dealt again
        self._topics: dict[int, bytes] = {}  # in an ordered group: the topic of each position in flight
        self._pins: dict[
            bytes, tuple[str, int]
        ] = {}  # topic -> the member that has it, and how many of its messages are in flight
        self._queue: list[int] = []  # a heap of owed positions, some of them no longer owed
        self._queued: set[int] = set()  # what the heap contains
        self._waiting: dict[bytes, deque[int]] = {}  # topic -> its owed positions, rising
        self._by_keeper: dict[
            str | None, dict[bytes, None]
        ] = {}  # those topics by the member that they must go to, None for any

    @property
    def inflight(self) -> int:
        """The number of messages that members have."""
        return len(self._inflight)

    @property
    def pending(self) -> int:
        """The number of messages that are not done."""
        return len(self._inflight) + len(self.owed)

    @property
    def size_bytes(self) -> int:
        """The memory of the messages that are not done."""
        return self.pending * (_ORDERED_BYTES if self.ordered else _PENDING_BYTES)

    @property
    def room(self) -> int:
        """The number of messages that may be dealt or owed in addition."""
        return max(0, self.limit - len(self._inflight) - len(self.owed))

    def __contains__(self, position: int) -> bool:
        return position in self._inflight or position in self.owed

    def members(self) -> set[str]:
        """Return the members that have messages."""
        return {deal.member for deal in self._deals.values()}

    def holds(self, member: str, position: int) -> bool:
        """Return whether a member has a message that is owed again when it is lost."""
        deal = self._deal_of(position) if position in self._inflight else None
        return deal is not None and deal.member == member and not deal.stays

    def keeper(self, topic: bytes) -> str | None:
        """Return the member that the next message of a topic must go to, if some of the topic are in flight."""
        pin = self._pins.get(topic)
        return None if pin is None else pin[0]

    def is_waiting(self, topic: bytes) -> bool:
        """Return whether an older message of a topic is owed."""
        return topic in self._waiting

    def waiting(self, keeper: str | None, most: int) -> list[bytes]:
        """Return at most `most` topics with owed messages that must go to a member or, with None, may go to any."""
        return list(islice(self._by_keeper.get(keeper, ()), most))

    def oldest_of(self, topic: bytes, most: int) -> list[int]:
        """Return the oldest owed messages of a topic, at most `most`."""
        return [position for position in islice(self._waiting.get(topic, ()), most) if position in self.owed]

    def each_owed(self) -> Iterator[int]:
        """Yield what is owed, in order; a caller may stop early."""
        aside = []
        try:
            while self._queue:
                position = heappop(self._queue)
                if position in self.owed:
                    aside.append(position)
                    yield position
                else:
                    self._queued.discard(position)
        finally:
            for position in aside:
                heappush(self._queue, position)

    def dealt(
        self,
        member: str,
        positions: Sequence[int],
        first_id: int,
        now: float,
        stays: bool = False,
        topics: Sequence[bytes] | None = None,
    ) -> None:
        """Note messages, new or owed, as dealt to a member, the first with packet id `first_id`."""
        self._number = number = self._number + 1
        self._deals[number] = Deal(member, first_id, now, len(positions), stays)
        if self.owed:
            for position in positions:
                before = self._no_more_owed(position)
                if before is not None and before.deals:
                    self._again[position] = before.deals
        self._inflight.update(zip(positions, range(number * _PLACES, number * _PLACES + len(positions)), strict=True))
        if topics is not None:
            for position, topic in zip(positions, topics, strict=True):
                self._topics[position] = topic
                self._pin(topic, member, 1)

    def acked(self, positions: Iterable[int]) -> int:
        """Note messages as done, acknowledged by whoever or given up; return how many were not done before."""
        inflight, deals = self._inflight, self._deals
        count = 0
        for position in positions:
            value = inflight.pop(position, -1)
            if value >= 0:
                count += 1
                number = value // _PLACES
                deal = deals[number]
                deal.left -= 1
                if deal.left == 0:
                    del deals[number]
                if self._again or self._topics:
                    self._forget(position)
            elif self.owed and self._no_more_owed(position) is not None:
                count += 1
        return count

    def skip(self, position: int, topic: bytes) -> None:
        """Note a new message as owed: it has to wait for its turn within its topic."""
        self._owe(position, Owed(topic=topic))

    def left(self, member: str) -> int:
        """Owe what a lost member had, except for what stays with its session; return how many that is."""
        numbers = {number for number, deal in self._deals.items() if deal.member == member}
        mine = [position for position, value in self._inflight.items() if value // _PLACES in numbers]
        stay = [position for position in mine if self._deal_of(position).stays]
        self.acked(stay)
        return len(self._return(position for position in mine if position in self._inflight))

    def give_back(self, member: str, positions: Iterable[int]) -> int:
        """Owe messages again that a member had and will not have; return how many were its own."""
        mine = [one for one in positions if one in self._inflight and self._deal_of(one).member == member]
        return len(self._return(mine))

    def overdue(self, before: float, members: Iterable[str]) -> dict[str, list[int]]:
        """Take back what these members have had since `before` or longer; in an ordered group, all of a topic."""
        late = {
            number
            for number, deal in self._deals.items()
            if deal.since <= before and not deal.stays and deal.member in members
        }
        if not late:
            return {}
        found = [position for position, value in self._inflight.items() if value // _PLACES in late]
        if self._topics:
            topics = {self._topics[position] for position in found if position in self._topics}
            found += [
                position
                for position, topic in self._topics.items()
                if topic in topics and self._inflight[position] // _PLACES not in late
            ]
            found = [position for position in found if not self._deal_of(position).stays]
        taken: dict[str, list[int]] = {}
        for position in found:
            taken.setdefault(self._deal_of(position).member, []).append(position)
        self._return(found)
        return taken

    def name(self, position: int, topic: bytes) -> None:
        """Set the topic of an owed message, for a group that was made ordered after the message was dealt."""
        owed = self.owed[position]
        if owed.topic is None:
            self._owe(position, Owed(owed.member, owed.packet_id, owed.deals, topic))

    def unnamed(self) -> list[int]:
        """Return the owed messages whose topic is not known."""
        return [position for position, owed in self.owed.items() if owed.topic is None]

    def floors(self, ends: Sequence[int]) -> tuple[int, ...]:
        """Return for each shard the offset below which all is done; `ends` is where the group reads on."""
        lowest = list(ends)
        for position in (*self._inflight, *self.owed):
            shard, offset = unpack_position(position)
            if shard < len(lowest) and offset < lowest[shard]:
                lowest[shard] = offset
        return tuple(lowest)

    def not_done(self) -> list[int]:
        """Return what is owed, and what would be if all members were lost."""
        stays = {number for number, deal in self._deals.items() if deal.stays}
        return [*(one for one, value in self._inflight.items() if value // _PLACES not in stays), *self.owed]

    def unfinished(self) -> Iterator[tuple[int, Owed]]:
        """Yield what the group owes after a restart, by position: all but what stays with a member's session."""
        for position, value in self._inflight.items():
            deal = self._deals[value // _PLACES]
            if not deal.stays:
                yield position, self._owed(position, deal, value)
        yield from self.owed.items()

    def restore(self, owed: Iterable[tuple[int, Owed]]) -> None:
        """Take in what was not finished when the group was stored."""
        for position, one in owed:
            self._owe(position, one)

    def _deal_of(self, position: int) -> Deal:
        return self._deals[self._inflight[position] // _PLACES]

    def _owed(self, position: int, deal: Deal, value: int) -> Owed:
        packet_id = (deal.first_id - 1 + value % _PLACES) % _IDS + 1
        return Owed(deal.member, packet_id, self._again.get(position, 0) + 1, self._topics.get(position))

    def _return(self, positions: Iterable[int]) -> list[int]:
        """Turn messages in flight into owed ones and return them."""
        newest_first = sorted(positions, reverse=True)  # each comes before those of its topic that are owed already
        entries = [(one, self._owed(one, self._deal_of(one), self._inflight[one])) for one in newest_first]
        self.acked(position for position, _ in entries)
        self.restore(entries)
        return [position for position, _ in entries]

    def _owe(self, position: int, owed: Owed) -> None:
        self.owed[position] = owed
        if owed.topic is None:
            if position not in self._queued:
                self._queued.add(position)
                heappush(self._queue, position)
            return
        queue = self._waiting.get(owed.topic)
        if queue is None:
            self._waiting[owed.topic] = deque((position,))
            self._by_keeper.setdefault(self.keeper(owed.topic), {})[owed.topic] = None
        elif position > queue[-1]:
            queue.append(position)
        elif position < queue[0]:
            queue.appendleft(position)
        else:
            self._waiting[owed.topic] = deque(sorted({*queue, position}))

    def _no_more_owed(self, position: int) -> Owed | None:
        owed = self.owed.pop(position, None)
        if owed is not None and owed.topic is not None:
            queue = self._waiting[owed.topic]
            while queue and queue[0] not in self.owed:
                queue.popleft()
            if not queue:
                del self._waiting[owed.topic]
                self._no_more_waiting(owed.topic)
        return owed

    def _forget(self, position: int) -> None:
        """Drop what is known of a message beside its place."""
        self._again.pop(position, None)
        topic = self._topics.pop(position, None)
        if topic is not None:
            self._pin(topic, self._pins[topic][0], -1)

    def _pin(self, topic: bytes, member: str, more: int) -> None:
        """Count a message of a topic in flight to a member, one more or one less."""
        before = self._pins.get(topic)
        count = more if before is None else before[1] + more
        if before is not None and count:
            self._pins[topic] = (member, count)
            return
        if topic in self._waiting:
            self._no_more_waiting(topic)
            self._by_keeper.setdefault(member if count else None, {})[topic] = None
        if count:
            self._pins[topic] = (member, count)
        else:
            del self._pins[topic]

    def _no_more_waiting(self, topic: bytes) -> None:
        keeper = self.keeper(topic)
        topics = self._by_keeper[keeper]
        del topics[topic]
        if not topics:
            del self._by_keeper[keeper]


def shares(count: int, credits: Sequence[int], turn: int) -> list[tuple[int, int]]:
    """Split `count` messages into (member, share), evenly as far as each has credit, the remainder from `turn` on."""
    size = len(credits)
    able = [k % size for k in range(turn, turn + size) if credits[k % size] > 0] if size else []
    got: dict[int, int] = {}
    by_credit = sorted(able, key=credits.__getitem__)
    for place, which in enumerate(by_credit):
        level = count // (len(by_credit) - place)
        if credits[which] > level:  # so have all that follow
            got.update(dict.fromkeys(by_credit[place:], level))
            count -= level * (len(by_credit) - place)
            break
        got[which] = credits[which]
        count -= credits[which]
    dealt = []
    for which in able:
        odd = count > 0 and got[which] < credits[which]
        count -= odd
        if got[which] + odd:
            dealt.append((which, got[which] + odd))
    return dealt
