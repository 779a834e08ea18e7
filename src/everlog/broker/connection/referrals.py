"""Other servers that clients are referred to (MQTT 5 Server Reference), for a broker that is one of several."""

from typing import NamedTuple, Protocol


class Referral(NamedTuple):
    """Why a client is to go elsewhere, and where to; without a `server` it has to know by itself."""

    why: str
    server: str | None = None


class Referrals(Protocol):
    """Who decides that; asked on the event loop's thread."""

    def at_connect(self, version: int) -> Referral | None:
        """Return where a client that has proven who it is has to go instead; None if it may stay."""

    def at_end(self) -> str | None:
        """Return where a client may go whose connection ends because this broker does, if that is known."""
