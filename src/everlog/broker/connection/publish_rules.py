"""The rules of what a client may publish, keep and retain; the rest is dropped and reported with the reason."""

import logging
from collections.abc import Callable
from logging import WARNING

from everlog.base import DROPPED, QOS_BITS, QOS_SHIFT, PublishRun, Unavailable
from everlog.broker.auth import Security
from everlog.broker.connection.refused_acks import NOT_ALLOWED, NOT_KEPT, NOT_RETAINED, Refused
from everlog.broker.connection.run_checks import any_begins, distinct_topics, drop_unkeepable, note_reserved
from everlog.broker.connection.traffic import Traffic
from everlog.broker.events import event
from everlog.broker.registry import bridge_state
from everlog.sessions import Session

_MAX_CLIENTS = 4096  # clients whose answers are remembered; beyond, all are asked for anew
_log = logging.getLogger("everlog.broker")


class PublishRules:
    """The rules for messages as they arrive; remembers what each client was allowed, by topic id."""

    def __init__(self, traffic: Traffic, security: Security) -> None:
        self._traffic = traffic
        self._security = security
        self._allowed: dict[Session, dict[int, bool]] = {}
        self._awaited: tuple[bytes, Callable[[], None]] | None = None
        self._good_for = (0, 0)  # the generations of topic ids and of rules that `_allowed` is about

    def reserve(self) -> None:
        """Note which new names begin with $: section 4.7.2, such topics are the server's own."""
        table, reserved = self._traffic.table, self._traffic.reserved
        first = len(reserved)
        note_reserved(table, reserved)
        if self._awaited is not None:
            prefix, call = self._awaited
            if any_begins(table, first, prefix):
                self._awaited = None
                call()

    def call_once(self, prefix: bytes, call: Callable[[], None]) -> None:
        """Have something called when the first message comes whose topic name begins so."""
        self._awaited = (prefix, call)

    def forget_topics(self) -> None:
        """Forget all topic names, since the table is full; between two reads, when nobody holds topic ids."""
        self._traffic.metrics.table_resets += 1
        self._traffic.table.reset()
        self._traffic.reserved = bytearray()

    def check(self, run: PublishRun, session: Session) -> Refused:
        """Drop the messages of a run that the client may not publish; return their rows."""
        states: list[int] = []
        forbidden = {
            topic
            for topic in distinct_topics(run)
            if self._is_reserved(session, topic, states) or not self._may_publish(session, topic)
        }
        if not (forbidden or states):
            return {}
        topics, flags = memoryview(run.columns.topics).cast("I"), run.columns.flags
        rows = [row for row in range(run.start, run.stop) if topics[row] in forbidden]
        for row in range(run.start, run.stop) if states else ():
            flags[row] &= 0xFF ^ DROPPED  # all that begin with $ were dropped
        for row in rows:
            flags[row] |= DROPPED
        self._traffic.metrics.refused += len(rows)
        return dict.fromkeys(rows, NOT_ALLOWED)

    def keep(self, run: PublishRun, session: Session, refused: Refused | None, version: int) -> Refused | None:
        """Drop the messages of a run that can't be kept now, and add their rows to `refused`.

        A client of MQTT 3.1.1 that waits for an answer gets none: it is closed, and sends all of the run again.
        """
        router = self._traffic.router
        rows = drop_unkeepable(run, router.kept.routes, router.refusing) if router.kept.extend(run) else []
        if not rows:
            return refused
        columns = run.columns
        self._traffic.metrics.not_kept += len(rows)
        answered = [row for row in rows if columns.flags[row] & QOS_BITS]
        for row in answered:
            self._free_id(run, row, session)
        if answered and version != 5:
            for row in range(run.start, run.stop):
                if not columns.flags[row] & DROPPED:
                    self._free_id(run, row, session)
            raise Unavailable(NOT_KEPT[1])
        return {**(refused or {}), **dict.fromkeys(answered, NOT_KEPT)}

    def retain(self, run: PublishRun, session: Session, refused: Refused | None) -> Refused | None:
        """Retain what asks for it; one that can't be goes nowhere, and its row is added to `refused`."""
        for row, topic in self._traffic.router.retain(run, session.client_id).items():
            self._traffic.metrics.retained_refused += 1
            name = self._traffic.table.name(topic).decode()
            event(_log, "limit", WARNING, limit="retained", client=session.client_id, topic=name)
            refused = {**(refused or {}), row: NOT_RETAINED}
            run.columns.flags[row] |= DROPPED
            self._free_id(run, row, session)
        return refused

    def _free_id(self, run: PublishRun, row: int, session: Session) -> None:
        """Forget the id of a QoS 2 message that goes nowhere [MQTT-4.3.3-9]."""
        if run.columns.flags[row] & QOS_BITS == 2 << QOS_SHIFT:
            session.free_ids(bytes(run.columns.packet_ids[2 * row : 2 * row + 2]))

    def _is_reserved(self, session: Session, topic: int, states: list[int]) -> bool:
        """Return whether a topic is the server's own; not the one in which a bridge tells its state, which is noted."""
        reserved = self._traffic.reserved
        if topic >= len(reserved) or not reserved[topic]:
            return False
        if self._traffic.table.name(topic) != bridge_state(session.client_id).encode():
            return True
        states.append(topic)
        return False

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
