"""What the registry is told and tells of sessions: their clients, one that is opened, some of all."""

from typing import NamedTuple, Protocol

from everlog.sessions import Session


class Client(Protocol):
    """A connection, as far as its session is concerned."""

    keep_alive_s: float

    @property
    def peer(self) -> str: ...

    @property
    def last_seen(self) -> float: ...

    @property
    def is_settled(self) -> bool: ...  # whether all that its client has published is committed, or refused

    def close(self, reason: int, why: str) -> None: ...


class Opened(NamedTuple):
    """A session that is served now: whether it was there before, and whether its CONNACK waits for the tables."""

    session: Session
    present: bool
    waits: bool


class Slice(NamedTuple):
    """Some of all sessions: those that are awake, and of those asleep the client id and the session as one string."""

    awake: list[Session]
    asleep: list[tuple[str, bytes]]
