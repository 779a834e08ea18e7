"""The property table against the specification's own (table 2-4)."""

import pytest

from everlog.mqtt import NO_PROPERTIES, PROPERTIES, PacketType, Properties, PropertyType
from everlog.mqtt.primitives import Reader
from everlog.mqtt.properties import decode_properties, encode_properties

# Identifier, type and number of places, copied from table 2-4 by hand.
TABLE_2_4 = {
    0x01: ("BYTE", "PUBLISH WILL"),
    0x02: ("FOUR_BYTES", "PUBLISH WILL"),
    0x03: ("STRING", "PUBLISH WILL"),
    0x08: ("STRING", "PUBLISH WILL"),
    0x09: ("BINARY", "PUBLISH WILL"),
    0x0B: ("VARINT", "PUBLISH SUBSCRIBE"),
    0x11: ("FOUR_BYTES", "CONNECT CONNACK DISCONNECT"),
    0x12: ("STRING", "CONNACK"),
    0x13: ("TWO_BYTES", "CONNACK"),
    0x15: ("STRING", "CONNECT CONNACK AUTH"),
    0x16: ("BINARY", "CONNECT CONNACK AUTH"),
    0x17: ("BYTE", "CONNECT"),
    0x18: ("FOUR_BYTES", "WILL"),
    0x19: ("BYTE", "CONNECT"),
    0x1A: ("STRING", "CONNACK"),
    0x1C: ("STRING", "CONNACK DISCONNECT"),
    0x1F: ("STRING", "CONNACK PUBACK PUBREC PUBREL PUBCOMP SUBACK UNSUBACK DISCONNECT AUTH"),
    0x21: ("TWO_BYTES", "CONNECT CONNACK"),
    0x22: ("TWO_BYTES", "CONNECT CONNACK"),
    0x23: ("TWO_BYTES", "PUBLISH"),
    0x24: ("BYTE", "CONNACK"),
    0x25: ("BYTE", "CONNACK"),
    0x26: ("STRING_PAIR", " ".join(kind.name for kind in PacketType if kind.name not in ("PINGREQ", "PINGRESP"))),
    0x27: ("FOUR_BYTES", "CONNECT CONNACK"),
    0x28: ("BYTE", "CONNACK"),
    0x29: ("BYTE", "CONNACK"),
    0x2A: ("BYTE", "CONNACK"),
}


def test_table_is_the_specifications() -> None:
    ours = {ident: (rule.type, rule.packets) for ident, rule in PROPERTIES.items()}
    theirs = {
        ident: (PropertyType[name], frozenset(PacketType[packet] for packet in packets.split()))
        for ident, (name, packets) in TABLE_2_4.items()
    }
    assert ours == theirs


def test_only_user_properties_and_subscription_identifiers_repeat() -> None:
    assert {ident for ident, rule in PROPERTIES.items() if rule.repeatable} == {0x0B, 0x26}


def test_every_rule_has_its_field_in_properties_and_no_field_is_without_rule() -> None:
    assert [rule.name for rule in PROPERTIES.values()] == list(Properties.__struct_fields__)


@pytest.mark.parametrize("packet", [kind for kind in PacketType if kind.name not in ("PINGREQ", "PINGRESP")])
def test_empty_section_is_one_zero_byte_and_the_shared_value(packet: PacketType) -> None:
    assert encode_properties(NO_PROPERTIES, packet) == b"\x00"
    assert encode_properties(Properties(), packet) == b"\x00"
    assert decode_properties(Reader(b"\x00", 0, 1), packet) is NO_PROPERTIES


def test_zero_and_empty_values_are_present_not_absent() -> None:
    properties = Properties(message_expiry_interval=0, content_type="", correlation_data=b"")
    data = encode_properties(properties, PacketType.PUBLISH)
    assert data.hex() == "0b" + "0200000000" + "030000" + "090000"
    assert decode_properties(Reader(data, 0, len(data)), PacketType.PUBLISH) == properties


def test_reader_stands_behind_the_section() -> None:
    data = b"\x02\x01\x01payload"
    reader = Reader(data, 0, len(data))
    decode_properties(reader, PacketType.PUBLISH)
    assert reader.rest() == b"payload"
