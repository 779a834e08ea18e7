"""Where a client goes on that a server has told to use another one [MQTT-4.11.0-1]: for now, or for good.

It follows a few references in a row at once; then it is time to wait, since servers may refer to each other.
"""

from dataclasses import dataclass

from everlog.base import Unavailable
from everlog.cli.client.async_client import Refused
from everlog.mqtt import Reason

MOST_HOPS = 5
STAYED_S = 10.0  # who was served for so long begins to count again

Place = tuple[str, int]


@dataclass(slots=True)
class Way:
    """The server to connect to now; one that was lost makes room for the one it was first."""

    home: Place
    place: Place
    hops: int = 0

    def follow(self, error: Unavailable) -> bool:
        """Take the place that a server refers to; return False if it names none, or many have been followed."""
        if not isinstance(error, Refused) or not error.reference:
            return False
        found = parse_reference(error.reference, self.place[1])
        if found is None or self.hops >= MOST_HOPS:
            return False
        if error.reason not in (Reason.USE_ANOTHER_SERVER, Reason.SERVER_MOVED):
            return False
        self.hops += 1
        self.place = found
        if error.reason is Reason.SERVER_MOVED:
            self.home = found
        return True

    def served(self, seconds: float) -> None:
        """Take it that a connection was there for so long."""
        if seconds > STAYED_S:
            self.hops = 0

    def lost(self) -> None:
        """Try the server that it was first, and if that is lost too, this one again."""
        self.home, self.place = self.place, self.home


def parse_reference(text: str, port: int) -> Place | None:
    """Return the first address of a Server Reference (MQTT 5, 4.11), whose port may be missing; None if it is none."""
    first, *_ = text.split() or [""]
    host, colon, number = first.rpartition(":")
    if not colon or number.endswith("]"):
        host, number = first, str(port)
    host = host.removeprefix("[").removesuffix("]")
    if not host or not number.isdecimal() or not 0 < int(number) < 65_536:
        return None
    return host, int(number)
