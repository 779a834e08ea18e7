"""The handlers of control packets, called when the state table has allowed a packet."""

from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from everlog.base import PeerError
from everlog.broker.connection.connect_gate import ConnectGate
from everlog.broker.connection.connection import Connection
from everlog.broker.registry import Answer, Registry, Subscriptions
from everlog.mqtt import (
    Disconnect,
    PacketType,
    Pingresp,
    Reason,
    State,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
    encode,
)

_PINGRESP = encode(Pingresp(), 4)  # the same bytes in every version


class PacketHandlers:
    """A handler for each type of control packet."""

    def __init__(self, gate: ConnectGate, registry: Registry, subscriptions: Subscriptions) -> None:
        self._registry = registry
        self._subscriptions = subscriptions
        self.table: Mapping[PacketType, Callable[[Connection, Any], None]] = {
            PacketType.CONNECT: gate.connecting,
            PacketType.SUBSCRIBE: self._subscribe,
            PacketType.UNSUBSCRIBE: self._unsubscribe,
            PacketType.PINGREQ: self._ping,
            PacketType.AUTH: gate.authenticating,
            PacketType.DISCONNECT: self._disconnect,
        }

    def _subscribe(self, connection: Connection, packet: Subscribe) -> None:
        session, output = connection.session, connection.output
        assert session is not None

        def answered(answer: Answer) -> None:
            properties = output.explain("; ".join(answer.why))
            if output.tells_problems:
                properties = replace(properties, user_properties=answer.replays())
            if session.kept:
                output.hold()
            output.send(Suback(packet.packet_id, bytes(answer.reasons), properties))
            self._subscriptions.answered(session, answer)

        self._subscriptions.subscribe(session, packet, connection.work, answered)

    def _unsubscribe(self, connection: Connection, packet: Unsubscribe) -> None:
        session = connection.session
        assert session is not None
        kept = session.kept

        def answered(reasons: bytes) -> None:
            if kept:
                connection.output.hold()
            connection.output.send(Unsuback(packet.packet_id, reasons))

        connection.work(self._subscriptions.unsubscribe(session, packet), answered)

    def _ping(self, connection: Connection, packet: object) -> None:
        connection.output.write(_PINGRESP)

    def _disconnect(self, connection: Connection, packet: Disconnect) -> None:
        expiry = packet.properties.session_expiry_interval
        session = connection.session
        assert session is not None
        if expiry is not None:
            if expiry and not session.durable:  # section 3.14.2.2.2
                connection.state = State.OPEN
                why = "a session expiry can't be set at DISCONNECT if it was 0"
                raise PeerError(Reason.PROTOCOL_ERROR, why, clause="MQTT-3.14.2-2")
            self._registry.set_expiry(session, expiry)
        is_normal = packet.reason == Reason.NORMAL_DISCONNECTION
        if is_normal and self._registry.wills.discard(session):  # [MQTT-3.14.4-3]
            self._registry.lost(connection, session)
            connection.leave(when_stored=True)  # a client that waits for the end knows that no crash sends its will
        else:
            connection.leave()
