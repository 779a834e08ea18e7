"""What a session may still be sent, of messages that have waited: the rules may have changed since.

Whoever is subscribed may read all that its filter matches: a subscription is granted, and given up when rules change,
as a whole. So what is routed, dealt and read from the log by a filter needs no look at its topic. What was taken off
that way already is asked for here: messages under way on the last connection, and those that wait in memory.
"""

from functools import cache

from everlog.broker.delivery.ports import MayRead
from everlog.broker.metrics import Metrics
from everlog.sessions import OutgoingRows, Session


class ReadRights:
    """The question to whoever knows the rules, and the count of what is not sent because of the answer."""

    def __init__(self, may_read: MayRead, metrics: Metrics) -> None:
        self._may_read = may_read
        self._metrics = metrics

    def allow(self, session: Session, message: OutgoingRows) -> bool:
        """Return whether a session may still be sent a message, which is counted if not."""
        (topic,) = message.topics()
        if self._may_read(session.user, session.client_id, topic.decode()):
            return True
        self._metrics.withheld += 1
        return False

    def withhold(self, session: Session) -> None:
        """Take from a session what waits for it in memory and may not be sent any more."""
        may_read = self._may_read
        allows = cache(lambda topic: may_read(session.user, session.client_id, topic.decode()))
        self._metrics.withheld += session.withhold(allows)
