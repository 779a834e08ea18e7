"""mqtt: bytes in, packets out, and back again, without I/O."""

from everlog.mqtt.client import Client, ClientEvent, Received, RefusedPublish
from everlog.mqtt.codec import decode, encode, encode_within
from everlog.mqtt.inbound import Carried, Decoder
from everlog.mqtt.long_list import LongList
from everlog.mqtt.machine import NEXT, Event, State, Step, next_state, step_of
from everlog.mqtt.message import Message
from everlog.mqtt.outbound import (
    ANY_BYTES,
    MAX_PACKET_BYTES,
    TELL_PLACE,
    TELL_PUBLISHER,
    PublishWriter,
    write_acks,
    write_answers,
    write_told_acks,
)
from everlog.mqtt.packed_will import pack_pairs, unpack_pairs
from everlog.mqtt.packet_type import PacketType
from everlog.mqtt.packets import (
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
)
from everlog.mqtt.primitives import MAX_VARINT, read_fixed_header
from everlog.mqtt.properties import (
    NO_PROPERTIES,
    PROPERTIES,
    Properties,
    PropertyRule,
    PropertyType,
    UserProperties,
    encode_identifiers,
    encode_pair,
    encode_properties,
    user_properties,
)
from everlog.mqtt.reasons import Reason, return_code
