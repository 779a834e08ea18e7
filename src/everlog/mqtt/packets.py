"""The fifteen control packets as values, the same for every protocol version.

What a version lacks has its neutral value: a 3.1.1 packet has no properties, its acks say SUCCESS, and its CONNACK
return codes appear as the MQTT 5 reasons that they mean. `type` is the packet's kind, for tables keyed by it.
"""

from typing import ClassVar, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from everlog.mqtt.long_list import LongList
from everlog.mqtt.packet_type import PacketType
from everlog.mqtt.properties import NO_PROPERTIES, Properties
from everlog.mqtt.reasons import Reason


class Will(Struct, frozen=True):
    """The message that the server publishes for a client that it loses."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    properties: Properties = NO_PROPERTIES
    packed_pairs: bytes = b""  # its user properties, while it is held


class Connect(Struct, frozen=True):
    """A request for a connection; `version` is 3 (3.1), 4 (3.1.1) or 5, `clean_start` is 3.1.1's clean session."""

    type: ClassVar[PacketType] = PacketType.CONNECT
    version: int
    client_id: str
    clean_start: bool = True
    keep_alive: int = 0
    will: Will | None = None
    user_name: str | None = None
    password: bytes | None = None
    properties: Properties = NO_PROPERTIES
    is_bridge: bool = False  # by the level that Mosquitto's bridges use: retained stays so, nothing comes back


class Connack(Struct, frozen=True):
    """The server's answer to a CONNECT."""

    type: ClassVar[PacketType] = PacketType.CONNACK
    session_present: bool
    reason: Reason
    properties: Properties = NO_PROPERTIES


class Publish(Struct, frozen=True):
    """An application message on its way; `packet_id` is 0 with QoS 0."""

    type: ClassVar[PacketType] = PacketType.PUBLISH
    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    dup: bool = False
    packet_id: int = 0
    properties: Properties = NO_PROPERTIES


class Puback(Struct, frozen=True):
    """The end of a QoS 1 PUBLISH."""

    type: ClassVar[PacketType] = PacketType.PUBACK
    packet_id: int
    reason: Reason = Reason.SUCCESS
    properties: Properties = NO_PROPERTIES


class Pubrec(Struct, frozen=True):
    """The first answer to a QoS 2 PUBLISH: the message is received."""

    type: ClassVar[PacketType] = PacketType.PUBREC
    packet_id: int
    reason: Reason = Reason.SUCCESS
    properties: Properties = NO_PROPERTIES


class Pubrel(Struct, frozen=True):
    """The answer to a PUBREC: the sender will not send the message again."""

    type: ClassVar[PacketType] = PacketType.PUBREL
    packet_id: int
    reason: Reason = Reason.SUCCESS
    properties: Properties = NO_PROPERTIES


class Pubcomp(Struct, frozen=True):
    """The end of a QoS 2 PUBLISH."""

    type: ClassVar[PacketType] = PacketType.PUBCOMP
    packet_id: int
    reason: Reason = Reason.SUCCESS
    properties: Properties = NO_PROPERTIES


class Subscription(Struct, frozen=True):
    """One topic filter of a SUBSCRIBE with its options; 3.1.1 has the QoS alone."""

    filter: str
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0


class Subscribe(Struct, frozen=True):
    """A request for subscriptions."""

    type: ClassVar[PacketType] = PacketType.SUBSCRIBE
    packet_id: int
    subscriptions: tuple[Subscription, ...] | LongList[Subscription]
    properties: Properties = NO_PROPERTIES


class Suback(Struct, frozen=True):
    """The answer to a SUBSCRIBE: a reason for each of its filters, in order; many are written as bytes."""

    type: ClassVar[PacketType] = PacketType.SUBACK
    packet_id: int
    reasons: tuple[Reason, ...] | bytes
    properties: Properties = NO_PROPERTIES


class Unsubscribe(Struct, frozen=True):
    """A request to end subscriptions."""

    type: ClassVar[PacketType] = PacketType.UNSUBSCRIBE
    packet_id: int
    filters: tuple[str, ...] | LongList[str]
    properties: Properties = NO_PROPERTIES


class Unsuback(Struct, frozen=True):
    """The answer to an UNSUBSCRIBE: as a SUBACK's; none in 3.1.1."""

    type: ClassVar[PacketType] = PacketType.UNSUBACK
    packet_id: int
    reasons: tuple[Reason, ...] | bytes = ()
    properties: Properties = NO_PROPERTIES


class Pingreq(Struct, frozen=True):
    """A client's sign of life, and question whether the server lives."""

    type: ClassVar[PacketType] = PacketType.PINGREQ


class Pingresp(Struct, frozen=True):
    """The answer to a PINGREQ."""

    type: ClassVar[PacketType] = PacketType.PINGRESP


class Disconnect(Struct, frozen=True):
    """The last packet of a connection."""

    type: ClassVar[PacketType] = PacketType.DISCONNECT
    reason: Reason = Reason.NORMAL_DISCONNECTION
    properties: Properties = NO_PROPERTIES


class Auth(Struct, frozen=True):
    """A step of an enhanced authentication."""

    type: ClassVar[PacketType] = PacketType.AUTH
    reason: Reason = Reason.SUCCESS
    properties: Properties = NO_PROPERTIES


Ack: TypeAlias = Puback | Pubrec | Pubrel | Pubcomp
Packet: TypeAlias = (
    Connect
    | Connack
    | Publish
    | Ack
    | Subscribe
    | Suback
    | Unsubscribe
    | Unsuback
    | Pingreq
    | Pingresp
    | Disconnect
    | Auth
)


def without_optional(packet: Packet) -> Packet:
    """Return a packet without what makes it too large and may go: a reason string, some of a CONNACK."""
    properties = getattr(packet, "properties", NO_PROPERTIES)
    if properties is NO_PROPERTIES:
        return packet
    less = replace(properties, reason_string=None)
    if isinstance(packet, Connack):
        less = replace(less, topic_alias_maximum=None, response_information=None)
    return replace(packet, properties=less)
