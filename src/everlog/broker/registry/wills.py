"""The wills of clients: sent, refused, discarded, and stored for as long as their clients are connected.

The will of a session that outlives its connection is stored with that. Of any other session nothing is stored but its
will, before the CONNACK: a crash of the broker ends the connection like any other loss. Such a will leaves the tables
after its message is in the log, so that a crash in between sends it again rather than never.
"""

import logging
from logging import WARNING

from msgspec.structs import replace

from everlog.base import PublisherName
from everlog.broker.auth import Security
from everlog.broker.delivery import Router
from everlog.broker.events import event
from everlog.broker.limits import Limits
from everlog.broker.metrics import Metrics
from everlog.broker.registry.subscriptions import Subscriptions
from everlog.broker.registry.write_behind import WriteBehind
from everlog.mqtt import Publish, Will, unpack_pairs
from everlog.sessions import Session, WillRow, pack_will, unpack_will

_log = logging.getLogger("everlog.broker")


class Wills:
    """The wills of all clients; owned by the event loop's thread."""

    def __init__(
        self,
        router: Router,
        subscriptions: Subscriptions,
        security: Security,
        limits: Limits,
        metrics: Metrics,
        write_behind: WriteBehind | None,
        has_outbox: bool = False,
    ) -> None:
        self._router = router
        self._subscriptions = subscriptions
        self._security = security
        self._metrics = metrics
        self._write_behind = write_behind
        self._stored_in = write_behind if limits.session_expiry_s else None  # else nothing of sessions is stored
        self._has_outbox = has_outbox and write_behind is not None  # wills are sent by who owns their topics' shards
        self._left: list[WillRow] = []  # by clients that were connected when the broker crashed

    def store(self, session: Session) -> None:
        """Have the will of a client that has connected stored, if its session is not; its CONNACK waits for that.

        A will that it left behind last time is forgotten: sent again after a crash, it would come after what the client
        publishes now.
        """
        if self._stored_in is None:
            return
        packed = None if session.kept else pack_will(session.will)
        if packed is not None:
            self._stored_in.mark_will(WillRow(session.client_id, session.user, packed))
        elif self._stored_in.waits_for(session.client_id):
            self._stored_in.end_will(session.client_id)

    def is_waited_for(self, session: Session) -> bool:
        """Return whether the CONNACK of a client waits until its will is stored, or one of before is not any more."""
        if self._write_behind is None:
            return False
        return (session.kept and session.will is not None) or self._write_behind.waits_for(session.client_id)

    def discard(self, session: Session) -> bool:
        """Take the will of a client that leaves in order; return whether the tables have it and are to forget it."""
        if session.take_will() is None or self._stored_in is None:
            return False
        if session.kept:
            self._stored_in.mark_session(session)
        else:
            self._stored_in.end_will(session.client_id)
        return True

    def refuse(self, session: Session) -> None:
        """Give up the will of a client that may be connected no more."""
        will = session.will
        self.discard(session)
        if will is not None:
            self._refused(session.client_id, session.user, will)

    def send(self, session: Session) -> None:
        """Publish the will of a client that is gone, if it has one."""
        will = session.take_will()
        if will is None:
            return
        self._subscriptions.count(session)
        if self._has_outbox:
            self._post(session, will)
            return
        positions = self._publish(session.client_id, session.user, will, self._router.name_of(session))
        if self._stored_in is not None and not session.kept:
            self._stored_in.end_will(session.client_id, positions)

    def _post(self, session: Session, will: Will) -> None:
        """Have a will sent by the outbox, once, whichever broker ends before that."""
        assert self._write_behind is not None
        if self._security.acl.may_publish(session.user, session.client_id, will.topic):
            self._metrics.wills += 1
            packed = pack_will(will)
            assert packed is not None
            self._write_behind.send_will(session, packed)
            return
        self._refused(session.client_id, session.user, will)
        if not session.kept:
            self._write_behind.end_will(session.client_id)

    def restore(self, row: WillRow) -> None:
        """Take in a will that was stored when the broker ended, to be sent by `send_left`."""
        self._left.append(row)

    def send_left(self) -> None:
        """Publish the wills of clients that were connected when the broker crashed."""
        left, self._left = self._left, []
        for row in left:
            will = unpack_will(row.will)
            assert will is not None
            assert self._write_behind is not None
            named = self._router.name_of(Session(row.client_id, user=row.user))
            self._write_behind.end_will(row.client_id, self._publish(row.client_id, row.user, will, named))

    def _publish(
        self, client_id: str, user: str | None, will: Will, named: PublisherName | None
    ) -> list[tuple[int, int]]:
        """Publish a will; return, for each shard that keeps it, its number and the offset that it ends at now."""
        if not self._security.acl.may_publish(user, client_id, will.topic):
            self._refused(client_id, user, will)  # the rules have changed since CONNECT
            return []
        self._metrics.wills += 1
        will = unpack_pairs(will)
        properties = replace(will.properties, will_delay_interval=None)
        packet_id = 1 if will.qos else 0
        packet = Publish(will.topic, will.payload, will.qos, will.retain, False, packet_id, properties)
        return self._router.send(packet, named)

    def _refused(self, client_id: str, user: str | None, will: Will) -> None:
        self._metrics.refused += 1
        event(_log, "will_refused", WARNING, client=client_id, user=user, topic=will.topic)
