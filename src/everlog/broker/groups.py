"""The connected members of a shared group: each message goes to one of them, by turns and as far as each has room.

A group that is durable deals what is in the log by its own cursor (`durablegroup`). What is in no log, and all that a
transient group gets, is split here; what members have no room for waits with them, in memory.
"""

from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

from everlog.mqtt import encode_identifiers
from everlog.sessions import Delivery, Session, Subscribed, shares

if TYPE_CHECKING:
    from everlog.broker.durablegroup import DurableGroup

_PLENTY = 1 << 30  # what a member can take of messages that it need not acknowledge
_tags = count(1)


@dataclass(eq=False, slots=True)
class Member:
    """A connected session in a group; `tag` marks in its window what it was dealt from the log."""

    delivery: Delivery
    tag: int = field(default_factory=lambda: next(_tags) & 0xFFFF_FFFF or next(_tags))
    held: int = 0  # messages with the tag that it has not acknowledged
    taken: set[int] = field(default_factory=set)  # of these, positions that are no longer its own
    durable: "DurableGroup | None" = None  # the group that dealt them
    is_leaving: bool = False  # unsubscribed; what it was dealt it may still acknowledge

    @property
    def session(self) -> Session:
        """Whose membership it is."""
        return self.delivery.session

    def credit(self, most: int) -> int:
        """How many messages it can be given now, if it should have at most so many unacknowledged."""
        session = self.delivery.session
        if not session.ready or session.again:
            return 0
        if self.delivery.qos == 0:
            return _PLENTY
        ahead = most - self.held
        return min(ahead, session.window.room()) if ahead > 0 else 0


class Group:
    """The members of one `$share` group on one filter, all of them connected."""

    def __init__(self, name: str, pattern: str) -> None:
        self.name = name
        self.pattern = pattern
        self.members: dict[Session, Member] = {}
        self.durable: DurableGroup | None = None
        self.turn = 0  # the place of the member that is next

    def __len__(self) -> int:
        return len(self.members)

    def join(self, session: Session, subscribed: Subscribed) -> None:
        """A member, new or with other options."""
        identifiers = encode_identifiers([subscribed.identifier] if subscribed.identifier else [])
        delivery = Delivery(
            session,
            subscribed.qos,
            identifiers,
            subscribed.retain_as_published,
            position=subscribed.position,
            group=self,
        )
        member = self.members.get(session)
        if member is None:
            self.members[session] = Member(delivery)
        else:
            member.delivery = delivery

    def leave(self, session: Session) -> bool:
        """A member less; whether none is left."""
        self.members.pop(session, None)
        return not self.members

    def delivery(self, session: Session) -> Delivery | None:
        """How a member gets the group's messages."""
        member = self.members.get(session)
        return None if member is None else member.delivery

    def split(self, start: int, stop: int) -> list[tuple[Delivery, int, int]]:
        """Deal rows `start` to `stop` out in stretches, going round: first what members have room for."""
        members = list(self.members.values())
        credits = [0 if member.session.waiting else member.credit(_PLENTY) for member in members]
        dealt = self.deal_out(stop - start, members, credits)
        rest = stop - start - sum(size for _, size in dealt)
        if rest:
            dealt += self.deal_out(rest, members, [rest] * len(members))
        found = []
        for member, size in dealt:
            found.append((member.delivery, start, start + size))
            start += size
        return found

    def deal_out(self, count: int, members: list[Member], credits: list[int]) -> list[tuple[Member, int]]:
        """How many of so many messages each member gets; whoever is next in turn comes first."""
        dealt = shares(count, credits, self.turn)
        if len(dealt) < len(members):
            self.turn = dealt[-1][0] + 1 if dealt else self.turn
        else:
            self.turn += count  # the odd ones go to others next time
        return [(members[which], size) for which, size in dealt]


def spend(credits: dict[Member, int], member: Member) -> None:
    """A member is given a message."""
    credits[member] -= 1
    if credits[member] == 0:
        del credits[member]
