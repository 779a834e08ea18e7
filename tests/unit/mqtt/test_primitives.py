"""The primitives at their edges."""

import pytest

from everlog.base import PeerError, UsageError
from everlog.mqtt import primitives
from everlog.mqtt.primitives import Reader


def reader(data: bytes) -> Reader:
    return Reader(data, 0, len(data))


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, "00"),
        (127, "7f"),
        (128, "8001"),
        (16_383, "ff7f"),
        (16_384, "808001"),
        (2_097_151, "ffff7f"),
        (2_097_152, "80808001"),
        (268_435_455, "ffffff7f"),
    ],
)
def test_variable_byte_integer_takes_as_few_bytes_as_the_specification_lists(value: int, encoded: str) -> None:
    assert primitives.varint(value).hex() == encoded
    assert reader(bytes.fromhex(encoded)).varint() == value


@pytest.mark.parametrize("encoded", ["8000", "808000", "80808000", "ff00", "ffffff00"])
def test_variable_byte_integer_longer_than_needed_is_malformed(encoded: str) -> None:
    with pytest.raises(PeerError) as caught:
        reader(bytes.fromhex(encoded)).varint()
    assert (caught.value.reason, caught.value.clause) == (0x81, "MQTT-1.5.5-1")


@pytest.mark.parametrize("encoded", ["80808080", "8080808000", "ffffffff7f"])
def test_variable_byte_integer_of_five_bytes_is_malformed(encoded: str) -> None:
    with pytest.raises(PeerError) as caught:
        reader(bytes.fromhex(encoded)).varint()
    assert (caught.value.reason, caught.value.clause) == (0x81, "MQTT-1.5.5")


@pytest.mark.parametrize("read", [Reader.u8, Reader.u16, Reader.u32, Reader.varint, Reader.binary, Reader.string])
def test_no_read_passes_the_end_although_the_buffer_goes_on(read: object) -> None:
    bounded = Reader(b"\xff" * 64, 0, 0)
    with pytest.raises(PeerError) as caught:
        read(bounded)  # type: ignore[operator]
    assert caught.value.reason == 0x81
    assert bounded.pos == 0


def test_string_of_65535_bytes_is_read_and_written_and_one_more_is_refused() -> None:
    text = "é" * 32_767 + "x"
    assert reader(primitives.string(text)).string() == text
    with pytest.raises(UsageError):
        primitives.string(text + "x")


@pytest.mark.parametrize("text", ["a\0", "\ud800", "a\udfffb"])
def test_string_that_mqtt_forbids_is_not_written(text: str) -> None:
    with pytest.raises(UsageError):
        primitives.string(text)


@pytest.mark.parametrize(
    ("write", "value"),
    [
        (primitives.u16, 65_536),
        (primitives.u16, -1),
        (primitives.u32, 2**32),
        (primitives.u32, -1),
        (primitives.varint, 268_435_456),
        (primitives.varint, -1),
        (primitives.qos, 3),
        (primitives.qos, -1),
        (primitives.packet_id, 0),
        (primitives.packet_id, 65_536),
    ],
)
def test_number_that_does_not_fit_is_not_written(write: object, value: int) -> None:
    with pytest.raises(UsageError):
        write(value)  # type: ignore[operator]


@pytest.mark.parametrize("data", ["", "30", "3080", "308080", "30808080"])
def test_incomplete_fixed_header_waits_for_more(data: str) -> None:
    assert primitives.read_fixed_header(bytes.fromhex(data), 5) is None


def test_fixed_header_of_the_largest_packet() -> None:
    assert primitives.read_fixed_header(bytes.fromhex("30ffffff7f00"), 5) == (0x30, 268_435_455, 5)


def test_trailing_bytes_are_counted_in_the_message() -> None:
    with pytest.raises(PeerError, match="3 bytes after"):
        reader(b"abc").finish()
