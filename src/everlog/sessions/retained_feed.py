"""The retained messages that a subscription is still to get; stored with the session, so that a restart ends none."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from everlog.base import RETAINED
from everlog.sessions.outgoing_rows import OutgoingRows


@dataclass(eq=False, slots=True)
class RetainedFeed:
    """Those that a filter matches and whose numbers are from `at` to before `end`, in the order of their numbers.

    `rows` yields them one by one; a feed that was stored has none until its session is back. At QoS 0 a feed is not
    stored, since nothing of it may come twice.
    """

    filter: str
    at: int
    end: int
    qos: int = 1
    rows: Iterator[OutgoingRows] | None = None

    def next(self) -> OutgoingRows | None:
        """Return the next message, None at the end."""
        return None if self.rows is None else next(self.rows, None)

    def put_back(self, out: OutgoingRows) -> None:
        """Have a message that could not be sent come next."""
        self.rows = chain((out,), self.rows or ())

    def sent(self, out: OutgoingRows) -> None:
        """Go on behind a message: it was sent."""
        self.at = (out.records.base_offset & ~RETAINED) + 1
