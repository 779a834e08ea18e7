"""mqtt: bytes in, packets out, and back again, without I/O."""

from everlog.mqtt.client import Client, ClientEvent, Received, RefusedPublish
from everlog.mqtt.codec import decode, encode
from everlog.mqtt.inbound import Carried, Decoder
from everlog.mqtt.machine import NEXT, Event, State, Step, next_state, step_of
from everlog.mqtt.message import Message
from everlog.mqtt.outbound import MAX_PACKET_BYTES, PublishWriter, write_acks, write_answers
from everlog.mqtt.packet_type import PacketType
from everlog.mqtt.packets import (
    Ack,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    Will,
    without_optional,
)
from everlog.mqtt.primitives import MAX_VARINT, read_fixed_header
from everlog.mqtt.properties import (
    NO_PROPERTIES,
    PROPERTIES,
    Properties,
    PropertyRule,
    PropertyType,
    encode_identifiers,
)
from everlog.mqtt.reasons import Reason, return_code

__all__ = [
    "MAX_PACKET_BYTES",
    "MAX_VARINT",
    "NEXT",
    "NO_PROPERTIES",
    "PROPERTIES",
    "Ack",
    "Auth",
    "Carried",
    "Client",
    "ClientEvent",
    "Connack",
    "Connect",
    "Decoder",
    "Disconnect",
    "Event",
    "Message",
    "Packet",
    "PacketType",
    "Pingreq",
    "Pingresp",
    "Properties",
    "PropertyRule",
    "PropertyType",
    "Puback",
    "Pubcomp",
    "Publish",
    "PublishWriter",
    "Pubrec",
    "Pubrel",
    "Reason",
    "Received",
    "RefusedPublish",
    "State",
    "Step",
    "Suback",
    "Subscribe",
    "Subscription",
    "Unsuback",
    "Unsubscribe",
    "Will",
    "decode",
    "encode",
    "encode_identifiers",
    "next_state",
    "read_fixed_header",
    "return_code",
    "step_of",
    "without_optional",
    "write_acks",
    "write_answers",
]
