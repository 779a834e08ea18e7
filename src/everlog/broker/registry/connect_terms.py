"""What a CONNECT asks for and what it gets. Pure: limits, and chance for a client id, are arguments."""

from collections.abc import Callable
from dataclasses import dataclass

from everlog.base import PeerError
from everlog.broker.limits import Limits
from everlog.mqtt import NO_PROPERTIES, Connect, Properties, Reason
from everlog.sessions import Terms
from everlog.topics import check_topic_name

NEVER = 0xFFFFFFFF  # a session expiry
_ANY_PACKET_BYTES = 268_435_460  # what a client without a maximum packet size takes


@dataclass(frozen=True, slots=True)
class ConnectTerms:
    """What holds for a connection, and what CONNACK says of it."""

    client_id: str
    clean_start: bool
    keep_alive_s: float  # without a packet for so long the client is gone, 0 for never
    session: Terms
    connack: Properties


def agree(
    packet: Connect, limits: Limits, user: str | None, more: Properties = NO_PROPERTIES, *, new_id: Callable[[], str]
) -> ConnectTerms:
    """Return the terms of a client that has proven who it is; CONNACK has what `more` has, too."""
    if packet.will is not None:
        check_topic_name(packet.will.topic, max_levels=limits.topic_levels, max_bytes=limits.topic_bytes)
        if packet.will.topic.startswith("$"):
            raise PeerError(Reason.TOPIC_NAME_INVALID, "the will's topic is the server's own")
    client_id, assigned = packet.client_id, None
    if not client_id:
        if packet.version != 5 and not packet.clean_start:  # [MQTT-3.1.3-8]
            raise PeerError(Reason.CLIENT_IDENTIFIER_NOT_VALID, "an empty client id needs a clean session")
        client_id = assigned = new_id()
    if len(client_id.encode()) > limits.client_id_bytes:
        raise PeerError(Reason.CLIENT_IDENTIFIER_NOT_VALID, f"client id of more than {limits.client_id_bytes} bytes")
    asked = packet.properties
    if packet.version == 5:
        expiry = asked.session_expiry_interval or 0
    else:
        expiry = 0 if packet.clean_start else NEVER
    granted = min(expiry, limits.session_expiry_s)
    longest = limits.keep_alive_s
    keep_alive = longest if longest and not 0 < packet.keep_alive <= longest else packet.keep_alive
    connack = Properties(
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
    session = Terms(
        packet.version,
        user,
        granted,
        packet.will,
        min(asked.receive_maximum or limits.inflight_messages, limits.inflight_messages),
        asked.maximum_packet_size or _ANY_PACKET_BYTES,
        min(asked.topic_alias_maximum or 0, limits.topic_aliases),
    )
    return ConnectTerms(client_id, packet.clean_start, 1.5 * keep_alive, session, connack)  # [MQTT-3.1.2-22]


def _response_prefix(client_id: str) -> str | None:
    """Return where answers to a client can go, open to who may publish there; None if its id is no topic level."""
    return None if any(one in client_id for one in "/+#") else f"response/{client_id}/"
