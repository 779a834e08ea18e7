"""The port by which several brokers agree who serves a client id; a single broker has none.

A client id is held from its CONNECT on until its session has ended here, or another broker has asked for it. What is
stored of a session is taken into the registry when its client id is claimed, and leaves it when it is let go.
"""

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from everlog.base import EverlogError
from everlog.broker.registry.connect_terms import ConnectTerms
from everlog.sessions import Refused

Claimed: TypeAlias = Callable[[EverlogError | None], None]  # with why a client may not have the client id, or not now


class Holding(Protocol):
    """The client ids that this broker holds, of all; used on the event loop's thread."""

    def start(self, registry: Any) -> None:  # the Registry, which knows this port
        """Begin on the running event loop."""

    def claim(self, terms: ConnectTerms, then: Claimed) -> None:
        """Hold the client id of a client that connects, and have `then` called, soon or at once.

        By then the registry has what was stored of its session, and the log here has all that it was sent.
        """

    def ended(self, client_id: str) -> None:
        """Hold a client id no longer than until its session's end is stored."""

    def refused(self, refused: Refused) -> None:
        """Give up what another broker has, of which something could not be stored; what waited for it has not left."""

    def overruled(self, error: EverlogError) -> None:
        """Take it that the others count this broker as dead: nothing that it does counts any more."""

    async def stop(self) -> None:
        """Let go of everything: all is stored."""
