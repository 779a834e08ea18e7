"""Who is connected and which sessions there are: connecting, take-over, wills, expiry."""

import heapq
import logging
import secrets
from logging import WARNING
from typing import TYPE_CHECKING

from everlog.base import PeerError
from everlog.broker.events import event
from everlog.mqtt import NO_PROPERTIES, Connack, Connect, Properties, Publish, Reason, Will
from everlog.sessions import Session, StoredSession, pack_session, restored, stored, unpack_session

if TYPE_CHECKING:
    from everlog.broker.broker import Broker
    from everlog.broker.connection import Connection

NEVER = 0xFFFFFFFF
_log = logging.getLogger("everlog.broker")


class Clients:
    """The sessions by client id, and the connection that serves each."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self.sessions: dict[str, Session] = {}
        self.connections: dict[Session, Connection] = {}
        self.asleep: dict[str, bytes] = {}  # client ids that are away and saved, each with its session as one string
        self._transient = 0  # sessions that end with their connection, which nothing stores
        self._ends: list[tuple[int, str]] = []  # when sessions expire (wall clock, µs), soonest first
        self._wills: list[tuple[int, str]] = []  # when wills are due

    def __len__(self) -> int:
        return len(self.sessions) + len(self.asleep)

    @property
    def stored(self) -> int:
        """How many sessions there are that outlive, or did when they began, their connection."""
        return len(self) - self._transient

    def open(
        self, connection: "Connection", packet: Connect, more: Properties = NO_PROPERTIES
    ) -> tuple[Session, bool, Properties]:
        """The session for an accepted client: whether it was there before, and what CONNACK says."""
        limits = self._broker.limits
        client_id, assigned = packet.client_id, None
        if not client_id:
            if packet.version != 5 and not packet.clean_start:  # [MQTT-3.1.3-8]
                raise PeerError(Reason.CLIENT_IDENTIFIER_NOT_VALID, "an empty client id needs a clean session")
            client_id = assigned = f"everlog-{secrets.token_hex(8)}"
        if len(client_id.encode()) > limits.client_id_bytes:
            raise PeerError(
                Reason.CLIENT_IDENTIFIER_NOT_VALID, f"client id of more than {limits.client_id_bytes} bytes"
            )
        granted, properties = self._terms(packet, client_id, assigned, more)
        if (
            packet.properties.maximum_packet_size is not None
            and connection.encoded(Connack(False, Reason.SUCCESS, properties)) is None
        ):
            raise PeerError(Reason.PACKET_TOO_LARGE, "a CONNACK is larger than the client's maximum packet size allows")
        if not packet.clean_start and self._is_anothers(client_id, connection.user):
            raise PeerError(Reason.NOT_AUTHORIZED, "the client id has a session of another user")
        session = self._take_over(client_id, packet.clean_start)
        present = session is not None
        if session is None:
            session = self._begin(connection, client_id, granted > 0)
        self.connections[session] = connection
        connection.client_id = client_id
        self._agree(connection, session, packet, granted)
        return session, present, properties

    def _begin(self, connection: "Connection", client_id: str, lasting: bool) -> Session:
        """A new session; one that outlives its connection counts against `limits.sessions`."""
        limits = self._broker.limits
        if lasting and self.stored >= limits.sessions:
            self._broker.metrics.sessions_refused += 1
            event(_log, "limit", WARNING, limit="sessions", client=client_id, peer=connection.peer)
            raise PeerError(Reason.QUOTA_EXCEEDED, "too many stored sessions")
        session = Session(client_id, queue_bytes=limits.queue_bytes)
        self.sessions[client_id] = session
        self._transient += not lasting
        return session

    def _is_anothers(self, client_id: str, user: str | None) -> bool:
        """Whether a session was begun by another user: what it is owed is not for this one."""
        session = self.peek(client_id)
        return session is not None and session.user is not None and session.user != user

    def _take_over(self, client_id: str, clean: bool) -> Session | None:
        """[MQTT-3.1.4-3] the connection that has the client id ends; its session goes on unless clean is asked."""
        session = self.find(client_id)
        if session is None:
            return None
        old = self.connections.get(session)
        if old is not None:
            self._broker.metrics.takeovers += 1
            event(_log, "taken_over", client=client_id, peer=old.peer)
            old.close(Reason.SESSION_TAKEN_OVER, "session taken over")
            self.lost(old)
        if clean and self.sessions.get(client_id) is session:
            self.end(session)  # [MQTT-3.1.2-4]
        if self.sessions.get(client_id) is not session:
            return None
        session.will = None  # [MQTT-3.1.3-9] a delayed will is not sent when the client is back
        return session

    def find(self, client_id: str) -> Session | None:
        """The session of a client id; one that is asleep is woken."""
        session = self.sessions.get(client_id)
        if session is None and (packed := self.asleep.pop(client_id, None)) is not None:
            session = restored(unpack_session(packed), self._broker.limits.queue_bytes)
            self.sessions[client_id] = session
        return session

    def peek(self, client_id: str) -> Session | None:
        """The session of a client id to look at; one that is asleep stays so."""
        session = self.sessions.get(client_id)
        if session is None and (packed := self.asleep.get(client_id)) is not None:
            session = restored(unpack_session(packed), self._broker.limits.queue_bytes)
        return session

    def sleep(self, session: Session) -> None:
        """A session that is away and saved becomes one string; its counts go where those of ended sessions are."""
        if session in self.connections or self.sessions.get(session.client_id) is not session or session.in_memory_only:
            return
        del self.sessions[session.client_id]
        self.put_asleep(stored(session, [shard.committed for shard in self._broker.log.shards]))
        self._broker.metrics.count_ended(session.counters)

    def put_asleep(self, found: StoredSession) -> None:
        """A session that is away, as the tables have it."""
        self.asleep[found.row.client_id] = pack_session(found)

    def schedule(self, client_id: str, away_us: int, expiry_s: int, will: Will | None) -> None:
        """A client is away since then: its will is due, and its session ends, so much later."""
        if will is not None:
            delay = min(will.properties.will_delay_interval or 0, expiry_s)
            heapq.heappush(self._wills, (away_us + delay * 1_000_000, client_id))
        if expiry_s != NEVER:
            heapq.heappush(self._ends, (away_us + expiry_s * 1_000_000, client_id))

    def _keep_alive(self, asked: int) -> int:
        """The keep alive that holds, of the client or of the server."""
        longest = self._broker.limits.keep_alive_s
        return longest if longest and not 0 < asked <= longest else asked

    def _terms(self, packet: Connect, client_id: str, assigned: str | None, more: Properties) -> tuple[int, Properties]:
        """How long the session stays, and what CONNACK says: limits, what differs from what was asked, `more`."""
        limits, asked = self._broker.limits, packet.properties
        keep_alive = self._keep_alive(packet.keep_alive)
        if packet.version == 5:
            expiry = asked.session_expiry_interval or 0
        else:
            expiry = 0 if packet.clean_start else NEVER
        granted = min(expiry, limits.session_expiry_s)
        return granted, Properties(
            assigned_client_identifier=assigned,
            server_keep_alive=keep_alive if packet.version == 5 and keep_alive != packet.keep_alive else None,
            session_expiry_interval=granted if granted != expiry else None,
            receive_maximum=limits.receive_maximum,
            maximum_packet_size=limits.packet_bytes,
            topic_alias_maximum=limits.topic_aliases,
            response_information=_response_prefix(client_id) if asked.request_response_information else None,
            authentication_method=more.authentication_method,
            authentication_data=more.authentication_data,
        )

    def _agree(self, connection: "Connection", session: Session, packet: Connect, granted: int) -> None:
        """Settle what each side may send, and for how long."""
        limits, asked = self._broker.limits, packet.properties
        connection.keep_alive_s = 1.5 * self._keep_alive(packet.keep_alive)  # [MQTT-3.1.2-22]
        connection.will = packet.will
        session.expiry_s = granted
        session.kept = session.kept or granted > 0
        session.user = connection.user
        session.will = packet.will
        session.away_us = 0
        session.connected(
            packet.version,
            min(asked.receive_maximum or limits.inflight_messages, limits.inflight_messages),
            asked.maximum_packet_size or limits_of_nobody,
            min(asked.topic_alias_maximum or 0, limits.topic_aliases),
        )

    def lost(self, connection: "Connection") -> None:
        """A connection is gone: its will, and what becomes of its session."""
        session = connection.session
        if session is None or self.connections.get(session) is not connection:
            return
        del self.connections[session]
        self._broker.left(session)
        session.disconnected()
        session.away_us = self._broker.now_us()
        session.will, connection.will = connection.will, None
        if session.will is not None and not min(session.will.properties.will_delay_interval or 0, session.expiry_s):
            self._send_will(session)
        if session.durable:
            self.schedule(session.client_id, session.away_us, session.expiry_s, session.will)
            self._broker.changed(session)
        else:
            self.end(session)

    def end(self, session: Session) -> None:
        """Forget a session and all it was owed; a will that waits is sent now."""
        self._send_will(session)  # [MQTT-3.1.2-10] at the latest when the session ends
        if self.sessions.get(session.client_id) is session:
            del self.sessions[session.client_id]
            self._transient -= not session.kept
            self._broker.ended(session)

    def sweep(self, now: float) -> None:
        """Once a second: wills whose delay is over, sessions whose time is over, clients that fell silent."""
        wall = self._broker.now_us()
        while self._wills and self._wills[0][0] <= wall:
            session = self._away(heapq.heappop(self._wills)[1])
            if session is not None and session.will is not None:
                delay = session.will.properties.will_delay_interval or 0
                if session.away_us + min(delay, session.expiry_s) * 1_000_000 <= wall:  # else it was away again since
                    self._send_will(session)
                self._broker.changed(session)
        while self._ends and self._ends[0][0] <= wall:
            session = self._away(heapq.heappop(self._ends)[1])
            if session is not None:
                if session.away_us + session.expiry_s * 1_000_000 <= wall:
                    self.end(session)
                else:
                    self._broker.changed(session)
        for connection in list(self.connections.values()):
            if connection.keep_alive_s and now - connection.last_seen > connection.keep_alive_s:
                self._broker.metrics.keep_alive_timeouts += 1
                connection.close(Reason.KEEP_ALIVE_TIMEOUT, "keep alive timeout")

    def _away(self, client_id: str) -> Session | None:
        session = self.find(client_id)
        return None if session is None or session in self.connections else session

    def _send_will(self, session: Session) -> None:
        will, session.will = session.will, None
        if will is None:
            return
        acl = self._broker.acl
        if acl is not None and not acl.may_publish(session.user, session.client_id, will.topic):
            self._broker.metrics.refused += 1  # the rules have changed since CONNECT
            event(_log, "will_refused", WARNING, client=session.client_id, user=session.user, topic=will.topic)
            return
        self._broker.metrics.wills += 1
        properties = will.properties
        self._broker.publish(
            Publish(
                will.topic,
                will.payload,
                qos=will.qos,
                retain=will.retain,
                packet_id=1 if will.qos else 0,
                properties=Properties(
                    payload_format_indicator=properties.payload_format_indicator,
                    message_expiry_interval=properties.message_expiry_interval,
                    content_type=properties.content_type,
                    response_topic=properties.response_topic,
                    correlation_data=properties.correlation_data,
                    user_properties=properties.user_properties,
                ),
            )
        )


def _response_prefix(client_id: str) -> str | None:
    """Where answers to a client can go, for everybody who may publish there; None where its id is no topic level."""
    return None if any(one in client_id for one in "/+#") else f"response/{client_id}/"


limits_of_nobody = 268_435_460  # a client without a maximum packet size takes any
