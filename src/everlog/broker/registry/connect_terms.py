"""What a CONNECT asks for and what it gets. Pure: limits, and chance for a client id, are arguments."""

from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from everlog.base import PeerError
from everlog.broker.limits import Limits
from everlog.mqtt import NO_PROPERTIES, Connack, Connect, Properties, Reason, encode_within
from everlog.sessions import Terms
from everlog.topics import check_topic_name

NEVER = 0xFFFFFFFF  # a session expiry
_ANY_PACKET_BYTES = 268_435_460  # what a client without a maximum packet size takes
_MOST_GRANTS = 256  # that are remembered; beyond, all are forgotten


class ConnackBytes:
    """The CONNACK of an accepted client as bytes, written when first asked for."""

    __slots__ = ("_max_bytes", "_properties", "_version", "_written")

    def __init__(self, version: int, properties: Properties, max_bytes: int | None) -> None:
        self._version = version
        self._properties = properties
        self._max_bytes = max_bytes
        self._written: dict[bool, bytes | None] = {}

    def write(self, session_present: bool) -> bytes | None:
        """Return the bytes, or None if they are more than the client takes [MQTT-3.1.2-24]."""
        if session_present not in self._written:
            packet = Connack(session_present, Reason.SUCCESS, self._properties)
            self._written[session_present] = encode_within(packet, self._version, self._max_bytes)
        return self._written[session_present]


class ConnectTerms(Struct, frozen=True):
    """What holds for a connection, and the CONNACK that says it."""

    client_id: str
    clean_start: bool
    keep_alive_s: float  # without a packet for so long the client is gone, 0 for never
    session: Terms
    connack: ConnackBytes


class _Grant(Struct, frozen=True):
    """What a CONNECT's variable header is granted, whichever client sends it."""

    expiry_s: int
    keep_alive_s: float
    max_inflight: int
    max_packet_bytes: int
    max_aliases: int
    properties: Properties  # of the CONNACK
    connack: ConnackBytes


class Agreements:
    """The terms of connections under the limits of a broker; clients of a kind send the same header."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._grants: dict[tuple[int, bool, int, Properties], _Grant] = {}

    def agree(
        self,
        packet: Connect,
        user: str | None,
        more: Properties = NO_PROPERTIES,
        mount: str = "",
        *,
        new_id: Callable[[], str],
    ) -> ConnectTerms:
        """Return the terms of a client that has proven who it is; CONNACK has what `more` has, too."""
        limits, will = self._limits, packet.will
        if will is not None and mount:
            will = replace(will, topic=mount + will.topic)
        if will is not None:
            check_topic_name(will.topic, max_levels=limits.topic_levels, max_bytes=limits.topic_bytes)
            if will.topic.startswith("$") and will.topic != bridge_state(packet.client_id):
                raise PeerError(Reason.TOPIC_NAME_INVALID, "the will's topic is the server's own")
            if will.qos > limits.qos:
                raise PeerError(Reason.QOS_NOT_SUPPORTED, "the will's QoS", clause="MQTT-3.2.2-12")
            if will.retain and not limits.retain:
                raise PeerError(Reason.RETAIN_NOT_SUPPORTED, "the will is to be retained", clause="MQTT-3.2.2-13")
        client_id, assigned = packet.client_id, None
        if not client_id:
            if packet.version != 5 and not packet.clean_start:  # [MQTT-3.1.3-8]
                raise PeerError(Reason.CLIENT_IDENTIFIER_NOT_VALID, "an empty client id needs a clean session")
            client_id = assigned = new_id()
        if len(client_id) * 4 > limits.client_id_bytes and len(client_id.encode()) > limits.client_id_bytes:
            why = f"client id of more than {limits.client_id_bytes} bytes"
            raise PeerError(Reason.CLIENT_IDENTIFIER_NOT_VALID, why)
        grant = self._grant(packet)
        connack = grant.connack
        if assigned is not None or packet.properties.request_response_information or more is not NO_PROPERTIES:
            connack = self._own_connack(packet, grant, assigned, client_id, more)
        session = Terms(
            packet.version,
            user,
            grant.expiry_s,
            will,
            grant.max_inflight,
            grant.max_packet_bytes,
            grant.max_aliases,
            packet.is_bridge,
            mount,
        )
        return ConnectTerms(client_id, packet.clean_start, grant.keep_alive_s, session, connack)

    def _grant(self, packet: Connect) -> _Grant:
        """Return what a variable header is granted, worked out once for all that are the same."""
        if packet.properties.authentication_method is not None:  # what proves a user is not remembered
            return _work_out(packet, self._limits)
        key = (packet.version, packet.clean_start, packet.keep_alive, packet.properties)
        grant = self._grants.get(key)
        if grant is None:
            if len(self._grants) >= _MOST_GRANTS:
                self._grants.clear()
            grant = self._grants[key] = _work_out(packet, self._limits)
        return grant

    def _own_connack(
        self, packet: Connect, grant: _Grant, assigned: str | None, client_id: str, more: Properties
    ) -> ConnackBytes:
        """Return a CONNACK that says something to this client alone."""
        asked = packet.properties
        properties = replace(
            grant.properties,
            assigned_client_identifier=assigned,
            response_information=_response_prefix(client_id) if asked.request_response_information else None,
            authentication_method=more.authentication_method,
            authentication_data=more.authentication_data,
        )
        return ConnackBytes(packet.version, properties, asked.maximum_packet_size)


def _work_out(packet: Connect, limits: Limits) -> _Grant:
    asked = packet.properties
    if packet.version == 5:
        expiry = asked.session_expiry_interval or 0
    else:
        expiry = 0 if packet.clean_start else NEVER
    granted = min(expiry, limits.session_expiry_s)
    longest, keep_alive = limits.keep_alive_s, packet.keep_alive
    if packet.version == 5 and longest and not 0 < keep_alive <= longest:  # the others can't be told
        keep_alive = longest
    connack = Properties(
        server_keep_alive=keep_alive if keep_alive != packet.keep_alive else None,
        session_expiry_interval=granted if granted != expiry else None,
        receive_maximum=limits.receive_maximum,
        maximum_packet_size=max(limits.message_bytes, limits.packet_bytes),
        maximum_qos=limits.qos if limits.qos < 2 else None,
        retain_available=None if limits.retain else 0,
        topic_alias_maximum=limits.topic_aliases,
    )
    return _Grant(
        granted,
        1.5 * keep_alive,  # [MQTT-3.1.2-22]
        min(asked.receive_maximum or limits.inflight_messages, limits.inflight_messages),
        asked.maximum_packet_size or _ANY_PACKET_BYTES,
        min(asked.topic_alias_maximum or 0, limits.topic_aliases),
        connack,
        ConnackBytes(packet.version, connack, asked.maximum_packet_size),
    )


def bridge_state(client_id: str) -> str:
    """Return the one topic of the server's own that a client may write to: whether it, a bridge, is connected."""
    return f"$SYS/broker/connection/{client_id}/state"


def _response_prefix(client_id: str) -> str | None:
    """Return where answers to a client can go, open to who may publish there; None if its id is no topic level."""
    return None if any(one in client_id for one in "/+#") else f"response/{client_id}/"
