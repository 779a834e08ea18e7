"""The rules of what a client may publish and retain; the rest is dropped, and its topic reported with the reason."""

import logging
from logging import WARNING

from everlog.base import DROPPED, QOS_BITS, QOS_SHIFT, PublishRun
from everlog.broker.auth import Security
from everlog.broker.connection.run_checks import distinct_topics
from everlog.broker.connection.traffic import Traffic
from everlog.broker.events import event
from everlog.mqtt import Reason
from everlog.sessions import Session

_MAX_CLIENTS = 4096  # clients whose answers are remembered; beyond, all are asked for anew
_log = logging.getLogger("everlog.broker")


class PublishRules:
    """The rules for messages as they arrive; remembers what each client was allowed, by topic id."""

    def __init__(self, traffic: Traffic, security: Security) -> None:
        self._traffic = traffic
        self._security = security
        self._allowed: dict[Session, dict[int, bool]] = {}
        self._good_for = (0, 0)  # the generations of topic ids and of rules that `_allowed` is about

    def reserve(self) -> None:
        """Note which new names begin with $: section 4.7.2, such topics are the server's own."""
        table, reserved = self._traffic.table, self._traffic.reserved
        for topic in range(len(reserved), table.count):
            reserved.append(table.name(topic).startswith(b"$"))

    def forget_topics(self) -> None:
        """Forget all topic names, since the table is full; between two reads, when nobody holds topic ids."""
        self._traffic.metrics.table_resets += 1
        self._traffic.table.reset()
        self._traffic.reserved = bytearray()

    def check(self, run: PublishRun, session: Session) -> dict[int, int]:
        """Drop the messages of a run that the client may not publish; return their topics with the reason."""
        reserved = self._traffic.reserved
        refused: dict[int, int] = {
            topic: Reason.NOT_AUTHORIZED
            for topic in distinct_topics(run)
            if (topic < len(reserved) and reserved[topic]) or not self._may_publish(session, topic)
        }
        if refused:
            topics = memoryview(run.columns.topics).cast("I")
            for row in range(run.start, run.stop):
                if topics[row] in refused:
                    run.columns.flags[row] |= DROPPED
                    self._traffic.metrics.refused += 1
        return refused

    def retain(self, run: PublishRun, session: Session, refused: dict[int, int] | None) -> dict[int, int] | None:
        """Retain what asks for it; one that can't be goes nowhere, and its topic is added to `refused`."""
        for row, topic in self._traffic.router.retain(run, session.client_id).items():
            columns = run.columns
            self._traffic.metrics.retained_refused += 1
            name = self._traffic.table.name(topic).decode()
            event(_log, "limit", WARNING, limit="retained", client=session.client_id, topic=name)
            refused = {**(refused or {}), topic: Reason.QUOTA_EXCEEDED}
            columns.flags[row] |= DROPPED
            if (columns.flags[row] & QOS_BITS) >> QOS_SHIFT == 2:  # [MQTT-4.3.3-9]
                session.free_ids(bytes(columns.packet_ids[2 * row : 2 * row + 2]))
        return refused

    def _may_publish(self, session: Session, topic: int) -> bool:
        if not self._traffic.checks:
            return True
        table = self._traffic.table
        good_for = (table.generation, self._security.generation)
        if self._good_for != good_for or len(self._allowed) > _MAX_CLIENTS:
            self._good_for, self._allowed = good_for, {}
        known = self._allowed.setdefault(session, {})
        allowed = known.get(topic)
        if allowed is None:
            name = table.name(topic).decode()
            allowed = known[topic] = self._security.acl.may_publish(session.user, session.client_id, name)
        return allowed

    def forget(self, session: Session) -> None:
        """Let go of what a client that has left was allowed."""
        self._allowed.pop(session, None)
