"""PUBLISH and its four acknowledgements (sections 3.3 to 3.7), one packet at a time; the kernels do runs of them."""

from collections.abc import Callable

from everlog.base import DUP, QOS_SHIFT, RETAIN, UsageError
from everlog.mqtt import primitives
from everlog.mqtt.packet_type import PacketType
from everlog.mqtt.packets import Ack, Puback, Pubcomp, Publish, Pubrec, Pubrel
from everlog.mqtt.primitives import Reader, malformed, protocol_error
from everlog.mqtt.properties import NO_PROPERTIES, check_topic_name, decode_properties, encode_properties
from everlog.mqtt.reasons import ALLOWED, Reason


def decode_publish(first_byte: int, reader: Reader, version: int, from_client: bool) -> Publish:
    """Read a PUBLISH."""
    qos = first_byte >> 1 & 3
    if qos == 3:
        malformed("a PUBLISH with both QoS bits set", "MQTT-3.3.1-4")
    dup = bool(first_byte & DUP)
    if dup and not qos and version != 3:  # 3.1 says only that DUP applies to QoS 1 and 2
        malformed("a PUBLISH with DUP and QoS 0", "MQTT-3.3.1-2")
    topic = reader.string()  # [MQTT-3.3.2-1]
    packet_id = 0
    if qos:  # [MQTT-2.2.1-2] no packet identifier with QoS 0
        packet_id = reader.u16()
        if not packet_id:
            protocol_error("packet identifier 0", "MQTT-2.2.1-3" if from_client else "MQTT-2.2.1-4")
    properties = NO_PROPERTIES
    if version == 5:
        properties = decode_properties(reader, PacketType.PUBLISH, from_client=from_client)
        if not topic and properties.topic_alias is None:
            protocol_error("a PUBLISH with neither topic nor alias", "MQTT-3.3.2.1")
    if topic or version != 5:
        check_topic_name(topic, "MQTT-3.3.2-2")
    return Publish(topic, reader.rest(), qos, bool(first_byte & RETAIN), dup, packet_id, properties)


def encode_publish(packet: Publish, version: int) -> bytes:
    """Write a PUBLISH."""
    flags = (DUP if packet.dup else 0) | primitives.qos(packet.qos) << QOS_SHIFT | (RETAIN if packet.retain else 0)
    out = [primitives.string(packet.topic)]
    if packet.qos:
        out.append(primitives.packet_id(packet.packet_id))
    if version == 5:
        out.append(encode_properties(packet.properties, PacketType.PUBLISH))
    out.append(packet.payload)
    return primitives.frame(PacketType.PUBLISH, b"".join(out), flags)


_ACKS: dict[int, tuple[Callable[..., Ack], str]] = {
    PacketType.PUBACK: (Puback, "MQTT-3.4.2-1"),
    PacketType.PUBREC: (Pubrec, "MQTT-3.5.2-1"),
    PacketType.PUBREL: (Pubrel, "MQTT-3.6.2-1"),
    PacketType.PUBCOMP: (Pubcomp, "MQTT-3.7.2-1"),
}


def decode_ack(kind: PacketType, reader: Reader, version: int) -> Ack:
    """Read a PUBACK, PUBREC, PUBREL or PUBCOMP."""
    make, clause = _ACKS[kind]
    packet_id = reader.u16()
    if not packet_id:
        protocol_error("packet identifier 0", "MQTT-2.2.1-5")
    if version != 5 or reader.pos == reader.end:  # section 3.4.2.1: no code is SUCCESS
        reader.finish()
        return make(packet_id)
    code = reader.u8()
    reason = ALLOWED[kind].get(code)
    if reason is None:
        protocol_error(f"a {kind.name} with reason {code:#04x}", clause)
    properties = NO_PROPERTIES
    if reader.pos < reader.end:  # section 3.4.2.2.1: below 4 bytes there is no property length
        properties = decode_properties(reader, kind)
        reader.finish()
    return make(packet_id, reason, properties)


def encode_ack(packet: Ack, version: int) -> bytes:
    """Write a PUBACK, PUBREC, PUBREL or PUBCOMP as short as the specification allows."""
    kind = packet.type
    body = primitives.packet_id(packet.packet_id)
    if version == 5:
        if packet.reason not in ALLOWED[kind]:  # [MQTT-3.4.2-1] and its like
            raise UsageError(f"no {kind.name} says {packet.reason.name}")
        if packet.properties != NO_PROPERTIES:
            body += bytes((packet.reason,)) + encode_properties(packet.properties, kind)
        elif packet.reason is not Reason.SUCCESS:
            body += bytes((packet.reason,))
    return primitives.frame(kind, body)
