"""The port behind which sessions and retained messages outlive the broker, and the values that cross it.

`load` gives everything once, at start; `apply` writes a batch of changes, all of them or none. What a connected
session has been handed is either a position or LIVE, which stands for the broker's own (`Changes.routed`, written with
every batch), so a session that nothing happens to needs no write although the log goes on.
Invariant: one batch is the state of one moment. A position never lies above what the session was handed by then, and
what it was handed and has not acknowledged is in `inflight`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from everlog.mqtt import Will
from everlog.sessions.session import Subscribed

LIVE = -1  # in place of a position: handed everything that the broker has routed
ALIVE = 0  # in place of a time: connected


@dataclass(frozen=True, slots=True)
class SessionRow:
    """Who a session belongs to and how long it stays; `away_us` is when its client left."""

    client_id: str
    user: str | None = None
    version: int = 4
    expiry_s: int = 0
    away_us: int = ALIVE
    will: Will | None = None


@dataclass(frozen=True, slots=True)
class Cursor:
    """How far a session is, in both directions."""

    positions: tuple[int, ...] = ()  # for each shard the first offset not handed over, or LIVE
    next_id: int = 1
    inflight: bytes = b""  # as `Window.packed` gives it
    received: bytes = b""  # QoS 2 packet ids taken in and not released, as `pack_ids` gives them
    unsure: tuple[tuple[int, int, bytes], ...] = ()  # of those, ids that count if the shard reached that offset
    doubt: tuple[int, ...] = ()  # for each shard, below which offset a message may have been sent before


@dataclass(frozen=True, slots=True)
class StoredSession:
    """All that is stored of one session."""

    row: SessionRow
    subscriptions: tuple[Subscribed, ...] = ()
    cursor: Cursor = Cursor()


@dataclass(frozen=True, slots=True)
class Changes:
    """What is to be written, in this order: sessions end, others begin or change, then what belongs to them."""

    ended: tuple[str, ...] = ()
    rows: tuple[SessionRow, ...] = ()
    unsubscribed: tuple[tuple[str, str], ...] = ()  # client id, filter
    subscribed: tuple[tuple[str, Subscribed], ...] = ()
    cursors: tuple[tuple[str, Cursor], ...] = ()
    retained: tuple[tuple[str, bytes | None], ...] = ()  # topic, a batch of one record; None removes it
    routed: tuple[int, ...] | None = None
    alive_us: int | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What was stored. The sessions and the retained messages can be gone through once, before the next `apply`."""

    routed: tuple[int, ...]  # how far the broker had handed each shard to those who were LIVE
    alive_us: int  # when the broker last wrote
    sessions: Iterable[StoredSession]  # by client id
    retained: Iterable[tuple[str, bytes]]  # by topic


class SessionTables(Protocol):
    """Keeps sessions and retained messages; used by one thread at a time."""

    def load(self) -> Snapshot:
        """Everything, read bit by bit as it is gone through."""

    def apply(self, changes: Changes, durable: bool = False) -> None:
        """Write all of it or nothing; if `durable`, it and all before it survive a power cut when this returns."""

    def close(self) -> None:
        """Let go of the file; once is enough."""
