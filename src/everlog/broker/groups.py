"""Shared subscriptions of connected clients: each message goes to one member, by turns and as far as it has room."""

from everlog.mqtt import encode_identifiers
from everlog.sessions import Delivery, Session, Subscribed


class Group:
    """The members of one `$share` group on one filter, all of them connected."""

    def __init__(self, name: str, pattern: str) -> None:
        self.name = name
        self.pattern = pattern
        self._members: dict[Session, Delivery] = {}
        self._turn = 0

    def __len__(self) -> int:
        return len(self._members)

    def join(self, session: Session, subscribed: Subscribed) -> None:
        """A member, new or with other options."""
        identifiers = encode_identifiers([subscribed.identifier] if subscribed.identifier else [])
        self._members[session] = Delivery(
            session, subscribed.qos, identifiers, subscribed.retain_as_published, group=self
        )

    def leave(self, session: Session) -> bool:
        """A member less; whether none is left."""
        self._members.pop(session, None)
        return not self._members

    def delivery(self, session: Session) -> Delivery | None:
        """How a member gets the group's messages."""
        return self._members.get(session)

    def split(self, start: int, stop: int) -> list[tuple[Delivery, int, int]]:
        """Deal rows `start` to `stop` out in stretches, to members with room first, going round."""
        members = [one for one in self._members.values() if one.session.ready and not one.session.waiting]
        members = members or list(self._members.values())
        if not members:
            return []
        share = -(-(stop - start) // len(members))
        dealt = []
        while start < stop:
            self._turn += 1
            end = min(start + share, stop)
            dealt.append((members[self._turn % len(members)], start, end))
            start = end
        return dealt
