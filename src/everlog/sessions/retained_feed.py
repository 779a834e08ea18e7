"""The retained messages that a subscription is still to get; stored with the session, so that a restart ends none."""

from dataclasses import dataclass
from typing import Protocol

from everlog.base import RETAINED
from everlog.sessions.outgoing_rows import OutgoingRows


class FeedSource(Protocol):
    """The messages of a feed, as they are when they are asked for."""

    @property
    def is_over(self) -> bool: ...  # there are no more

    def take(self, most: int) -> OutgoingRows | None: ...  # None: none among some that were looked at

    def go_back(self, number: int) -> None: ...  # a topic's number that was passed already comes next


@dataclass(eq=False, slots=True)
class RetainedFeed:
    """Those that a filter matches and whose numbers are from `at` to before `end`, in the order of their numbers.

    A feed that was stored has no `source` until its session is back. At QoS 0 a feed is not stored, since nothing of
    it may come twice.
    """

    filter: str
    at: int
    end: int
    qos: int = 1
    source: FeedSource | None = None

    @property
    def is_over(self) -> bool:
        """Whether there are no more messages."""
        return self.source is None or self.source.is_over

    def take(self, most: int) -> OutgoingRows | None:
        """Return up to so many messages, None if there are none among those that were looked at."""
        return None if self.source is None else self.source.take(most)

    def sent(self, out: OutgoingRows) -> None:
        """Go on behind the messages that were sent; the others will be asked for as they are then."""
        if out.start > 0:
            self.at = (out.records.offset(out.start - 1) & ~RETAINED) + 1
        if out.start < out.stop and self.source is not None:
            self.source.go_back(out.offset() & ~RETAINED)
