"""The port through which sessions, shared groups and retained messages are stored, and the values that cross it.

`load` returns everything once, at start; `apply` writes a batch of changes, all of them or none. How far a connected
session has been served is either a position or LIVE, which stands for the broker's own position (`Changes.routed`,
written with every batch), so an idle session needs no write while the log goes on.
Invariant: one batch is the state at one moment. A position is never beyond what the session had been sent by then, and
what it was sent and has not acknowledged is in `inflight`.

The values of one session are msgspec structs, not dataclasses: 100,000 of them are made at start, and a struct is made
in a tenth of the time and can encode itself. `row_format` makes and reads their byte strings.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import msgspec

LIVE = -1  # in place of a position: has been sent everything that the broker has routed
ALIVE = 0  # in place of a time: connected


class SessionRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The owner of a session and how long it stays; `away_us` is when its client left."""

    client_id: str
    user: str | None = None
    version: int = 4
    expiry_s: int = 0
    away_us: int = ALIVE
    will: bytes | None = None


class SubscriptionRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One subscription; `options` is the byte of the SUBSCRIBE packet, `since` has an offset for each shard."""

    filter: str
    options: int
    identifier: int = 0
    since: bytes = b""


class Cursor(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The progress of a session, in both directions."""

    positions: bytes = b""  # for each shard the first offset not sent, or LIVE
    next_id: int = 1
    inflight: bytes = b""  # packet id, state and position of each message under way
    received: bytes = b""  # QoS 2 packet ids taken in and not released
    unsure: bytes = b""  # the ids among them that count only if a shard has reached an offset
    doubt: bytes = b""  # for each shard, below which offset a message may have been sent before
    feeds: bytes = b""  # the subscriptions that are owed retained messages, and which


class StoredSession(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Everything that is stored of one session."""

    row: SessionRow
    subscriptions: tuple[SubscriptionRow, ...] = ()
    cursor: Cursor = Cursor()


class WillRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The will of a connected client whose session ends with its connection, and is stored nowhere else."""

    client_id: str
    user: str | None
    will: bytes


class SentWill(NamedTuple):
    """A will that brokers who share tables send once, numbered by the broker that its client was connected to."""

    number: int
    client_id: str
    user: str | None
    will: bytes


class GroupRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A durable shared group: how far it has read, and which messages below that are not done."""

    name: str
    filter: str
    options: int = 0  # GROUP_ORDERED, GROUP_SERVED
    positions: bytes = b""  # for each shard the first offset not dealt, or LIVE
    owed: bytes = b""  # position, last member, packet id and number of deals of each message not done
    doubt: bytes = b""  # for each shard, below which offset a message may have been dealt before


class GroupDeal(NamedTuple):
    """A QoS 2 message that a shared group has dealt to a client of the broker `taker`, one of several.

    It is stored before that one hears of it, and removed in the batch that stores it with the client's session.
    """

    name: str
    filter: str
    position: int
    client_id: str
    taker: int  # or DEAL_TAKEN, DEAL_BACK


DEAL_TAKEN = -1  # in place of a taker: the client's session has the message from now on
DEAL_BACK = -2  # the group owes the message again, or has given it to somebody else
GROUP_ORDERED = 1  # the messages of one topic go to one member at a time
GROUP_SERVED = 2  # members were connected


class RetainedRow(NamedTuple):
    """A topic's retained message as a batch of one record, or None if it has none.

    What the log has of the topic below the offset `after` is older. With `after`, a topic without a message is stored
    too, until the tables are as far as that.
    """

    topic: str
    message: bytes | None
    after: int = 0


class RetainedNames(NamedTuple):
    """The names and numbers of topics whose messages only the log has: those numbered from `first` to before `stop`."""

    first: int
    stop: int
    names: bytes


class Changes(msgspec.Struct, frozen=True, array_like=True):
    """A batch to write, in this order: sessions that end, sessions that begin or change, then what belongs to them."""

    ended: tuple[str, ...] = ()
    rows: tuple[SessionRow, ...] = ()
    unsubscribed: tuple[tuple[str, str], ...] = ()  # client id, filter
    subscribed: tuple[tuple[str, SubscriptionRow], ...] = ()
    cursors: tuple[tuple[str, Cursor], ...] = ()
    retained: tuple[RetainedRow, ...] = ()
    retained_names: tuple[RetainedNames, ...] = ()
    ended_names: tuple[int, ...] = ()  # those that begin with these numbers are stored by now
    retained_at: tuple[int, ...] | None = None
    ended_groups: tuple[tuple[str, str], ...] = ()  # name, filter
    groups: tuple[GroupRow, ...] = ()
    ended_wills: tuple[str, ...] = ()  # client ids
    wills: tuple[WillRow, ...] = ()
    routed: tuple[int, ...] | None = None
    alive_us: int | None = None
    sent_wills: tuple[SentWill, ...] = ()  # that leave their sessions with this batch, for the outbox of a cluster
    deals: tuple[GroupDeal, ...] = ()  # of groups that several brokers share


@dataclass(frozen=True, slots=True)
class Refused:
    """What of a batch was not written since another broker has it: nothing that waited for it may leave."""

    sessions: tuple[str, ...] = ()  # client ids
    groups: tuple[tuple[str, str], ...] = ()  # name, filter


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that was stored. Sessions, retained messages and groups are iterated once, before the next `apply`."""

    routed: tuple[int, ...]  # how far the broker had routed each shard to those who were LIVE
    alive_us: int  # when the broker last wrote
    sessions: Iterable[StoredSession]  # by client id
    retained: Iterable[RetainedRow]  # by topic
    groups: Iterable[GroupRow] = ()  # by name and filter
    retained_names: Iterable[RetainedNames] = ()  # by number
    retained_at: tuple[int, ...] = ()  # up to where the retained messages of each shard are stored; empty: all are
    wills: Iterable[WillRow] = ()  # by client id


class SessionTables(Protocol):
    """Storage of sessions, groups and retained messages; used by one thread at a time."""

    def load(self) -> Snapshot:
        """Return everything that is stored; rows are read as they are iterated."""

    def apply(self, changes: Changes, durable: bool = False) -> Refused:
        """Write all changes or none; if `durable`, they and all before them survive a power cut once this returns.

        Tables that brokers share leave out what another broker has, and return it.
        """

    def close(self) -> None:
        """Close the file."""
