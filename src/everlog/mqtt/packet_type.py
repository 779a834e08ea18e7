"""The fifteen kinds of MQTT Control Packet: their numbers, reserved flag bits and direction of flow."""

from enum import IntEnum


class PacketType(IntEnum):
    """The high half of a packet's first byte; WILL is none, it stands for the will's own property section."""

    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14
    AUTH = 15
    WILL = 16  # above four bits, so that no first byte can have it


# What the low half of the first byte must be, and the clause that says so; a PUBLISH uses all four bits itself.
FIXED_FLAGS: dict[int, tuple[int, str]] = {
    PacketType.CONNECT: (0b0000, "MQTT-2.1.3-1"),
    PacketType.CONNACK: (0b0000, "MQTT-2.1.3-1"),
    PacketType.PUBACK: (0b0000, "MQTT-2.1.3-1"),
    PacketType.PUBREC: (0b0000, "MQTT-2.1.3-1"),
    PacketType.PUBREL: (0b0010, "MQTT-3.6.1-1"),
    PacketType.PUBCOMP: (0b0000, "MQTT-2.1.3-1"),
    PacketType.SUBSCRIBE: (0b0010, "MQTT-3.8.1-1"),
    PacketType.SUBACK: (0b0000, "MQTT-2.1.3-1"),
    PacketType.UNSUBSCRIBE: (0b0010, "MQTT-3.10.1-1"),
    PacketType.UNSUBACK: (0b0000, "MQTT-2.1.3-1"),
    PacketType.PINGREQ: (0b0000, "MQTT-2.1.3-1"),
    PacketType.PINGRESP: (0b0000, "MQTT-2.1.3-1"),
    PacketType.DISCONNECT: (0b0000, "MQTT-3.14.1-1"),
    PacketType.AUTH: (0b0000, "MQTT-3.15.1-1"),
}

# Section 2.1.2, table 2-1: who may send what.
CLIENT_SENDS = frozenset(
    {
        PacketType.CONNECT,
        PacketType.PUBLISH,
        PacketType.PUBACK,
        PacketType.PUBREC,
        PacketType.PUBREL,
        PacketType.PUBCOMP,
        PacketType.SUBSCRIBE,
        PacketType.UNSUBSCRIBE,
        PacketType.PINGREQ,
        PacketType.DISCONNECT,
        PacketType.AUTH,
    }
)
SERVER_SENDS = frozenset(
    {
        PacketType.CONNACK,
        PacketType.PUBLISH,
        PacketType.PUBACK,
        PacketType.PUBREC,
        PacketType.PUBREL,
        PacketType.PUBCOMP,
        PacketType.SUBACK,
        PacketType.UNSUBACK,
        PacketType.PINGRESP,
        PacketType.DISCONNECT,
        PacketType.AUTH,
    }
)
