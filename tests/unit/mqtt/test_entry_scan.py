"""Long lists in packets: checked as the plain readers check them, and made only when they are used."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.twins import TWINS

from everlog.base import PeerError
from everlog.mqtt import Connect, PacketType, Properties, Subscribe, Subscription, Unsubscribe, Will, decode, encode
from everlog.mqtt.long_list import LONG_BYTES, LongList
from everlog.mqtt.primitives import Reader
from everlog.mqtt.properties import decode_properties

each_twin = pytest.mark.parametrize("twin", TWINS)
names = st.text("a+/#$é", max_size=6)


def long_enough(entry: bytes) -> int:
    return LONG_BYTES // len(entry) + 1


@each_twin
@given(st.lists(st.tuples(names, names), max_size=5), st.binary(max_size=6))
def test_pairs_are_skipped_as_far_as_they_can_be_read(twin: Any, pairs: list[tuple[str, str]], tail: bytes) -> None:
    good = b"".join(
        b"\x26" + b"".join(len(text.encode()).to_bytes(2, "big") + text.encode() for text in pair) for pair in pairs
    )
    data = good + tail
    stop = twin.skip_pairs(data, 0, len(data))
    assert stop >= len(good)
    section = Reader(data, len(good), len(data))
    while section.pos < stop:
        assert section.u8() == 0x26
        section.string(), section.string()
    if section.pos < section.end and data[section.pos] == 0x26:  # where it stopped, the plain reader stops too
        with pytest.raises(PeerError):
            section.u8(), section.string(), section.string()


@each_twin
@pytest.mark.parametrize("version", [0, 4, 5])
@given(st.lists(st.tuples(st.text("ab+/#$é", min_size=1, max_size=9), st.integers(0, 255)), max_size=6))
def test_filters_are_skipped_as_far_as_they_can_be_read(
    twin: Any, version: int, entries: list[tuple[str, int]]
) -> None:
    entries.append(("$share/a", 4))
    parts = [
        len(text.encode()).to_bytes(2, "big") + text.encode() + (bytes((options,)) if version else b"")
        for text, options in entries
    ]
    data = b"".join(parts)
    stop, good = twin.skip_filters(data, 0, len(data), version), 0
    for part in parts:
        head = b"\x00\x01" + (b"\x00" if version != 4 else b"")
        first = 0x82 if version else 0xA2
        try:
            decode(first, head + part, version or 5)
        except PeerError:
            break
        good += len(part)
    assert stop == good


@each_twin
def test_a_scan_stays_inside_its_range(twin: Any) -> None:
    for size in range(8):
        assert twin.skip_pairs(b"\x26\x00\x01a\x00\x01b"[:size], 0, size) == (0 if size < 7 else 7)
        assert twin.skip_filters(b"\x00\x01a\x00\xff\xff"[:size], 0, min(size, 6), 4) == (4 if size >= 4 else 0)


@pytest.mark.parametrize("version", [3, 4, 5])
def test_a_long_packet_reads_as_a_short_one(version: int) -> None:
    options = (Subscription("a/+", 1, True, True, 2), Subscription("é", 2)) if version == 5 else (Subscription("a", 1),)
    asked = options * long_enough(b"123")
    for packet in (Subscribe(7, asked), Unsubscribe(7, tuple(one.filter for one in asked))):
        data = encode(packet, version)
        found = decode(data[0], data[3:], version)
        assert found == packet
        assert isinstance(getattr(found, "subscriptions", None) or getattr(found, "filters", None), LongList)


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize(
    "bad", [b"\x00\x00\x00", b"\x00\x01a\x03", b"\x00\x01\x00\x00", b"\x00\x02\xc3(\x00", b"\x00\x09a"]
)
@pytest.mark.parametrize("first", [0x82, 0xA2])
def test_a_long_packet_is_refused_as_a_short_one(version: int, bad: bytes, first: int) -> None:
    head = b"\x00\x01" + (b"\x00" if version == 5 else b"")
    good = b"\x00\x01a\x00" if first == 0x82 else b"\x00\x01a"
    errors = []
    for count in (0, long_enough(good)):
        try:
            decode(first, head + good * count + bad, version)
        except PeerError as error:
            errors.append((error.reason, error.clause, error.message))
        else:
            errors.append(None)
    assert errors[0] == errors[1]


def test_many_user_properties_stay_bytes_and_are_written_as_they_came() -> None:
    pairs = tuple((f"k{number}", "v") for number in range(1000))
    properties = Properties(user_properties=pairs, content_type="text")
    data = encode(Connect(5, "c", will=Will("w", b"", properties=properties)), 5)
    found = decode(data[0], data[3:], 5)
    assert isinstance(found, Connect)
    assert found.will is not None
    assert isinstance(found.will.properties.user_properties, LongList)
    assert found.will.properties == properties
    assert found.will.properties != Properties(content_type="text")
    assert encode(found, 5) == data


@pytest.mark.parametrize("packet", [PacketType.SUBSCRIBE, PacketType.PUBLISH])
def test_a_repeated_subscription_identifier_is_refused_at_once(packet: PacketType) -> None:
    section = b"\x0b\x01" * 100_000
    body = b"\xc0\x9a\x0c" + section
    reader = Reader(body, 0, len(body))
    with pytest.raises(PeerError) as refused:
        decode_properties(reader, packet, from_client=True)
    assert refused.value.clause in ("MQTT-3.8.2.1.2", "MQTT-3.3.4-6")
