"""The connected members of a shared group: each message goes to one of them, by turns and as far as each has room.

A group that is durable deals what is in the log by its own cursor (`deal`). What is in no log, and all that a transient
group gets, is split here; what members have no room for waits with them, in memory.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any, TypeAlias

from everlog.base import NOT_KEPT, Records
from everlog.mqtt import encode_identifiers
from everlog.sessions import MergedSubscription, OutgoingRows, Session, Subscribed, shares

_PLENTY = 1 << 30  # what a member can take of messages that it need not acknowledge
_tags = count(1)

Deal: TypeAlias = Callable[[Records, bytearray | None, int, int, int, int], None]  # as `SharedTarget.take`
Push: TypeAlias = Callable[[OutgoingRows, int, int], None]  # to a session: rows, shard, time


@dataclass(eq=False, slots=True)
class Member:
    """A connected session in a group; `tag` marks in its window what it was dealt from the log."""

    merged: MergedSubscription
    tag: int = field(default_factory=lambda: next(_tags) & 0xFFFF_FFFF or next(_tags))
    held: int = 0  # messages with the tag that it has not acknowledged
    taken: set[int] = field(default_factory=set)  # of these, positions that are no longer its own
    group: tuple[str, str] | None = None  # the durable group that dealt them
    is_leaving: bool = False  # unsubscribed; what it was dealt it may still acknowledge
    far: Any = None  # by what it is dealt messages, if it is connected to another broker

    @property
    def session(self) -> Session:
        """Whose membership it is."""
        return self.merged.session

    def credit(self, most: int) -> int:
        """Return how many messages it can be given now, if it should have at most so many unacknowledged."""
        session = self.merged.session
        if not session.ready or session.is_redelivering:
            return 0
        if self.merged.qos == 0:
            return _PLENTY
        ahead = most - self.held
        return min(ahead, session.window.room()) if ahead > 0 else 0


class SharedGroup:
    """The members of one `$share` group on one filter, all of them connected."""

    def __init__(self, name: str, pattern: str, push: Push) -> None:
        self.name = name
        self.pattern = pattern
        self.members: dict[Session, Member] = {}
        self.deal: Deal | None = None  # how a durable group deals what is in the log
        self.has_far = False  # some are connected to another broker: only what is in the log reaches them
        self.turn = 0  # the place of the member that is next
        self._push = push

    def __len__(self) -> int:
        return len(self.members)

    @property
    def key(self) -> tuple[str, str]:
        """Name and pattern."""
        return self.name, self.pattern

    def join(self, session: Session, subscribed: Subscribed) -> None:
        """Take in a member, new or with other options."""
        identifiers = encode_identifiers([subscribed.identifier] if subscribed.identifier else [])
        merged = MergedSubscription(
            session,
            subscribed.qos,
            identifiers,
            subscribed.retain_as_published,
            tells=subscribed.tells,
            group=self.key,
        )
        member = self.members.get(session)
        if member is None:
            self.members[session] = Member(merged)
        else:
            member.merged = merged

    def leave(self, session: Session) -> bool:
        """Let a member go; return whether none is left."""
        self.members.pop(session, None)
        return not self.members

    def withdraw(self) -> list[Member]:
        """Deal by a cursor no more; return the members, none of which has anything that was dealt so."""
        self.deal = None
        for member in self.members.values():
            member.group = None
        return list(self.members.values())

    def merged(self, session: Session) -> MergedSubscription | None:
        """Return how a member gets the group's messages."""
        member = self.members.get(session)
        return None if member is None else member.merged

    def take(self, records: Records, rows: bytearray | None, start: int, stop: int, shard: int, now_us: int) -> None:
        """Give rows of a batch to members: by the cursor if there is one and they are in the log."""
        if self.deal is not None and shard != NOT_KEPT:
            self.deal(records, rows, start, stop, shard, now_us)
        else:
            self.split(records, rows, start, stop, shard, now_us)

    def split(self, records: Records, rows: bytearray | None, start: int, stop: int, shard: int, now_us: int) -> None:
        """Deal rows out in stretches, going round: first what members have room for."""
        members = list(self.members.values())
        if self.has_far:
            members = [member for member in members if member.far is None]
        credits = [0 if member.session.waiting else member.credit(_PLENTY) for member in members]
        dealt = self.deal_out(stop - start, members, credits)
        rest = stop - start - sum(size for _, size in dealt)
        if rest and members:
            dealt += self.deal_out(rest, members, [rest] * len(members))
        for member, size in dealt:
            self._push(OutgoingRows(records, rows, start, start + size, member.merged), shard, now_us)
            start += size

    def deal_out(self, count: int, members: list[Member], credits: list[int]) -> list[tuple[Member, int]]:
        """Return how many of so many messages each member gets; whoever is next in turn comes first."""
        dealt = shares(count, credits, self.turn)
        if len(dealt) < len(members):
            self.turn = dealt[-1][0] + 1 if dealt else self.turn
        else:
            self.turn += count  # the odd ones go to others next time
        return [(members[which], size) for which, size in dealt]


def spend(credits: dict[Member, int], member: Member) -> None:
    """Take the credit for one message from a member."""
    credits[member] -= 1
    if credits[member] == 0:
        del credits[member]
