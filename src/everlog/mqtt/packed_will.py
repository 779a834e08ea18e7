"""Wills as they are held: user properties, which may take 20 times their bytes, as one byte string."""

from msgspec.structs import replace

from everlog.mqtt.packet_type import PacketType
from everlog.mqtt.packets import Will
from everlog.mqtt.primitives import Reader
from everlog.mqtt.properties import Properties, decode_properties, encode_properties


def pack_pairs(will: Will) -> Will:
    """Return a will with its user properties in `packed_pairs`."""
    pairs = will.properties.user_properties
    if not pairs:
        return will
    packed = encode_properties(Properties(user_properties=pairs), PacketType.WILL)
    return replace(will, properties=replace(will.properties, user_properties=()), packed_pairs=packed)


def unpack_pairs(will: Will) -> Will:
    """Return a will as it was sent."""
    if not will.packed_pairs:
        return will
    pairs = decode_properties(Reader(will.packed_pairs, 0, len(will.packed_pairs)), PacketType.WILL).user_properties
    return replace(will, properties=replace(will.properties, user_properties=pairs), packed_pairs=b"")
