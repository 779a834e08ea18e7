"""Reason codes (MQTT 5.0 section 2.4), which packets may carry which, and what a 3.1.1 client is told instead."""

from collections.abc import Iterable, Mapping
from enum import IntEnum

from everlog.mqtt.packet_type import PacketType


class Reason(IntEnum):
    """A reason code under the specification's own name; 0x80 and above are errors."""

    SUCCESS = 0x00
    NORMAL_DISCONNECTION = 0x00
    GRANTED_QOS_0 = 0x00
    GRANTED_QOS_1 = 0x01
    GRANTED_QOS_2 = 0x02
    DISCONNECT_WITH_WILL_MESSAGE = 0x04
    NO_MATCHING_SUBSCRIBERS = 0x10
    NO_SUBSCRIPTION_EXISTED = 0x11
    CONTINUE_AUTHENTICATION = 0x18
    RE_AUTHENTICATE = 0x19
    UNSPECIFIED_ERROR = 0x80
    MALFORMED_PACKET = 0x81
    PROTOCOL_ERROR = 0x82
    IMPLEMENTATION_SPECIFIC_ERROR = 0x83
    UNSUPPORTED_PROTOCOL_VERSION = 0x84
    CLIENT_IDENTIFIER_NOT_VALID = 0x85
    BAD_USER_NAME_OR_PASSWORD = 0x86
    NOT_AUTHORIZED = 0x87
    SERVER_UNAVAILABLE = 0x88
    SERVER_BUSY = 0x89
    BANNED = 0x8A
    SERVER_SHUTTING_DOWN = 0x8B
    BAD_AUTHENTICATION_METHOD = 0x8C
    KEEP_ALIVE_TIMEOUT = 0x8D
    SESSION_TAKEN_OVER = 0x8E
    TOPIC_FILTER_INVALID = 0x8F
    TOPIC_NAME_INVALID = 0x90
    PACKET_IDENTIFIER_IN_USE = 0x91
    PACKET_IDENTIFIER_NOT_FOUND = 0x92
    RECEIVE_MAXIMUM_EXCEEDED = 0x93
    TOPIC_ALIAS_INVALID = 0x94
    PACKET_TOO_LARGE = 0x95
    MESSAGE_RATE_TOO_HIGH = 0x96
    QUOTA_EXCEEDED = 0x97
    ADMINISTRATIVE_ACTION = 0x98
    PAYLOAD_FORMAT_INVALID = 0x99
    RETAIN_NOT_SUPPORTED = 0x9A
    QOS_NOT_SUPPORTED = 0x9B
    USE_ANOTHER_SERVER = 0x9C
    SERVER_MOVED = 0x9D
    SHARED_SUBSCRIPTIONS_NOT_SUPPORTED = 0x9E
    CONNECTION_RATE_EXCEEDED = 0x9F
    MAXIMUM_CONNECT_TIME = 0xA0
    SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED = 0xA1
    WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED = 0xA2

    @property
    def is_error(self) -> bool:
        """Whether the request that it answers failed."""
        return self >= Reason.UNSPECIFIED_ERROR

    @property
    def words(self) -> str:
        """The name for people: `not authorized`."""
        return self.name.lower().replace("_", " ")


def _codes(codes: Iterable[int]) -> Mapping[int, Reason]:
    return {code: Reason(code) for code in codes}


_PUBACK = _codes((0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99))
_PUBREL = _codes((0x00, 0x92))

# Which packet may carry which codes: a missing key is the peer's error.
ALLOWED: dict[PacketType, Mapping[int, Reason]] = {
    PacketType.CONNACK: _codes((0x00, *range(0x80, 0x8B), 0x8C, 0x90, 0x95, 0x97, *range(0x99, 0x9E), 0x9F)),
    PacketType.PUBACK: _PUBACK,
    PacketType.PUBREC: _PUBACK,
    PacketType.PUBREL: _PUBREL,
    PacketType.PUBCOMP: _PUBREL,
    PacketType.SUBACK: _codes((0x00, 0x01, 0x02, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2)),
    PacketType.UNSUBACK: _codes((0x00, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91)),
}
# DISCONNECT and AUTH are the two packets whose codes depend on who sends them (tables 3-10 and 3-11).
CLIENT_DISCONNECT = _codes((0x00, 0x04, *range(0x80, 0x84), 0x90, *range(0x93, 0x9A)))
SERVER_DISCONNECT = _codes(
    (0x00, *range(0x80, 0x84), 0x87, 0x89, *range(0x8B, 0x91), *range(0x93, 0xA3)),
)
CLIENT_AUTH = _codes((0x18, 0x19))
SERVER_AUTH = _codes((0x00, 0x18))

# 3.1.1 section 3.2.2.3: the CONNACK return codes, and the reason that each is read as.
RETURN_CODES: dict[int, Reason] = {
    0: Reason.SUCCESS,
    1: Reason.UNSUPPORTED_PROTOCOL_VERSION,
    2: Reason.CLIENT_IDENTIFIER_NOT_VALID,
    3: Reason.SERVER_UNAVAILABLE,
    4: Reason.BAD_USER_NAME_OR_PASSWORD,
    5: Reason.NOT_AUTHORIZED,
}
_RETURN_CODE_OF: dict[int, int] = {
    **{reason: code for code, reason in RETURN_CODES.items()},
    Reason.BANNED: 5,
    Reason.BAD_AUTHENTICATION_METHOD: 5,
}
_CLOSE_UNANSWERED = frozenset({Reason.MALFORMED_PACKET, Reason.PROTOCOL_ERROR})


def return_code(reason: int) -> int | None:
    """Return the 3.1.1 CONNACK code for a reason; None to close the connection without a CONNACK."""
    if reason in _CLOSE_UNANSWERED:  # [MQTT-3.1.4-1] of 3.1.1
        return None
    return _RETURN_CODE_OF.get(reason, 3)
