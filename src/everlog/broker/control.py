"""Control packets of a client, each handled when the state table has allowed it."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from everlog.base import PeerError
from everlog.broker import exchanges
from everlog.mqtt import (
    Auth,
    Connect,
    Disconnect,
    PacketType,
    Pingresp,
    Reason,
    State,
    Subscribe,
    Unsubscribe,
    encode,
)

if TYPE_CHECKING:
    from everlog.broker.connection import Connection

_PINGRESP = encode(Pingresp(), 4)


def _connect(connection: "Connection", packet: Connect) -> None:
    connection.connect = packet
    connection.broker.gate.connecting(connection, packet)


def _subscribe(connection: "Connection", packet: Subscribe) -> None:
    connection.broker.subscribe(connection, packet)


def _unsubscribe(connection: "Connection", packet: Unsubscribe) -> None:
    connection.broker.unsubscribe(connection, packet)


def _ping(connection: "Connection", packet: object) -> None:
    connection.write(_PINGRESP)


def _auth(connection: "Connection", packet: Auth) -> None:
    exchanges.go_on(connection, packet)


def _disconnect(connection: "Connection", packet: Disconnect) -> None:
    expiry = packet.properties.session_expiry_interval
    session = connection.session
    if expiry is not None and session is not None:
        if expiry and not session.durable:  # section 3.14.2.2.2
            connection.state = State.OPEN
            raise PeerError(Reason.PROTOCOL_ERROR, "session expiry cannot begin at DISCONNECT", clause="MQTT-3.14.2-2")
        connection.broker.set_expiry(session, expiry)
    if packet.reason == Reason.NORMAL_DISCONNECTION:  # [MQTT-3.14.4-3] the will is discarded
        connection.will = None
    connection.closing_reason = "client disconnected"
    connection.end()


HANDLERS: dict[PacketType, Callable[["Connection", Any], None]] = {
    PacketType.CONNECT: _connect,
    PacketType.SUBSCRIBE: _subscribe,
    PacketType.UNSUBSCRIBE: _unsubscribe,
    PacketType.PINGREQ: _ping,
    PacketType.AUTH: _auth,
    PacketType.DISCONNECT: _disconnect,
}
