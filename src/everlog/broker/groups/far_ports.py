"""What several brokers say to each other of one shared group, and the port by which they do.

One broker deals for the group (its dealer); each other broker with members has a seat. A seat that is taken anew has a
higher number (`sitting`), and says all that its members have: whatever was said of the earlier sitting counts no more.
Positions are packed. A `sure` message goes out at QoS 2: it is stored as dealt before the seat hears of it.
"""

from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeAlias

import msgspec

from everlog.sessions import GroupDeal

Key: TypeAlias = tuple[str, str]  # name, pattern


class SeatMember(msgspec.Struct, frozen=True, array_like=True):
    """A member at a seat, by a number of its own; it may be dealt `limit` messages in all, counted by sitting."""

    number: int
    client_id: str
    qos: int
    limit: int


class Held(msgspec.Struct, frozen=True, array_like=True):
    """What a member has: messages that it has not acknowledged, and sure ones that are not known to be stored."""

    number: int
    client_id: str
    plain: bytes = b""
    sure: bytes = b""


class Seated(msgspec.Struct, frozen=True, array_like=True):
    """All of a seat: `since` is where a new group is to begin, `done` what was acknowledged of late."""

    sitting: int
    since: tuple[int, ...]
    ordered: bool = False
    members: tuple[SeatMember, ...] = ()
    held: tuple[Held, ...] = ()
    done: bytes = b""


class SeatNews(msgspec.Struct, frozen=True, array_like=True):
    """What has changed at a seat: members that are new or may have more, numbers of those that have left, messages that
    are done (acknowledged, or stored with their sessions), and those that nobody there has or will have."""

    sitting: int
    members: tuple[SeatMember, ...] = ()
    left: tuple[int, ...] = ()
    done: bytes = b""
    back: bytes = b""


class Dealt(msgspec.Struct, frozen=True, array_like=True):
    """Messages for one member, in order; `sure` has a byte for each, or none if no message is sure."""

    number: int
    qos: int  # of the member, by which it was decided what is sure
    positions: bytes
    sure: bytes = b""
    again: bool = False  # they may have been sent before


class DealTables(Protocol):
    """The session tables, as far as deals to other brokers need them."""

    def mark_deals(self, deals: Iterable[GroupDeal]) -> None:
        """Have deals stored with the next batch."""

    def when_durable(self, call: Callable[[], None]) -> None:
        """Have `call` called when all that was marked so far is durable."""


class Dealers(Protocol):
    """The other brokers, as shared groups need them; used on the event loop's thread. A single broker has none."""

    @property
    def incarnation(self) -> int: ...  # the number of this broker

    def start(self, far: Any) -> None:  # the FarGroups, which know this port
        """Begin on the running event loop."""

    def want(self, key: Key) -> None:
        """Find out who deals for a group, or deal for it here if nobody does."""

    def send_deals(self, taker: int, key: Key, sitting: int, deals: tuple[Dealt, ...]) -> None:
        """Say to a seat what its members are dealt; it may get lost with the link."""

    def send_news(self, dealer: int, key: Key, news: SeatNews) -> None:
        """Say to a dealer what has changed at the seat here; it may get lost with the link."""

    def settle(self, key: Key, taker: int, positions: list[int]) -> None:
        """Find out which sure messages a broker has stored with sessions, and let it store the others no more."""

    async def stop(self) -> None:
        """Let go of all groups: everything is stored."""
