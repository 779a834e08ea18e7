"""Batches as columns: every column is what the rows say, for whole batches, parts and chosen rows, on both twins."""

import struct
from array import array
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.twins import TWINS, Twin, batch_of

from everlog.base import StorageError, UsageError
from everlog.mqtt import NO_PROPERTIES, Properties, Publish

both = pytest.mark.parametrize("twin", TWINS, ids=str)

PROPERTIES = (
    NO_PROPERTIES,
    Properties(message_expiry_interval=0xFFFF_FFFF),
    Properties(content_type="", user_properties=(("a", "1"), ("b", ""), ("a", "2"))),
    Properties(response_topic="r/é", correlation_data=b"\x00\xff", payload_format_indicator=1),
    Properties(user_properties=(("", "x"),)),
)
TOPICS = ("a", "a/b", "ü//x", "/", "d" * 200)


def messages(count: int, first: int = 0) -> list[Publish]:
    return [
        Publish(
            TOPICS[n % 5],
            b"p%d" % n * (n % 4),
            qos=n % 3,
            retain=n % 7 == 0,
            packet_id=n + 1 if n % 3 else 0,
            properties=PROPERTIES[n % 5] if first else NO_PROPERTIES,
        )
        for n in range(first, first + count)
    ]


def u32(data: bytes) -> list[int]:
    return list(memoryview(data).cast("I"))


def values(ends: bytes, data: bytes) -> list[bytes]:
    at = u32(ends)
    return [data[begin:end] for begin, end in pairwise(at)]


def bits(data: bytes, count: int) -> list[bool]:
    return [bool(data[n >> 3] >> (n & 7) & 1) for n in range(count)]


def pieces_of(twin: Twin) -> tuple[list[Any], list[tuple[Any, int]]]:
    """Pieces of two batches, and the (batch, row) pairs that they are."""
    plain = batch_of(messages(20), twin, times_us=[1_000_000 + 7 * n for n in range(20)], base_offset=5)
    rich = batch_of(messages(20, 20), twin, times_us=[2**40 + n for n in range(20)], base_offset=2**40)
    chosen = bytearray(array("I", [0, 3, 4, 19]).tobytes())
    pieces = [
        (plain, None, 0, 20),
        (plain, None, 3, 9),
        (rich, chosen, 1, 4),
        (rich, None, 10, 10),
        (rich, None, 2, 20),
    ]
    rows = [(plain, n) for n in (*range(20), *range(3, 9))] + [(rich, n) for n in (3, 4, 19, *range(2, 20))]
    return pieces, rows


@both
def test_columns_are_what_the_rows_say(twin: Twin) -> None:
    pieces, rows = pieces_of(twin)
    expected = [batch.row(row) for batch, row in rows]
    count = twin.count_rows(pieces)
    assert count == len(expected)
    assert list(memoryview(twin.offset_column(pieces)).cast("q")) == [row[0] for row in expected]
    assert list(memoryview(twin.time_column(pieces)).cast("q")) == [row[1] for row in expected]
    assert u32(twin.topic_column(pieces, [0, 0, 100, 0, 7])) == [
        row[2] + (0 if n < 26 else 100 if n < 29 else 7) for n, row in enumerate(expected)
    ]
    qos, retain = twin.flag_columns(pieces)
    assert list(qos) == [row[3] >> 1 & 3 for row in expected]
    assert bits(retain, count) == [bool(row[3] & 1) for row in expected]
    assert values(*twin.property_column(pieces)) == [row[4] for row in expected]
    assert values(*twin.payload_column(pieces)) == [row[5] for row in expected]
    assert bits(twin.filled_values(twin.property_column(pieces)[0]), count) == [row[4] != b"" for row in expected]
    assert twin.has_properties(pieces)
    assert not twin.has_properties(pieces[:2])


@both
def test_properties_are_told_apart(twin: Twin) -> None:
    sent = messages(10, 20)
    column = twin.property_column([(batch_of(sent, twin), None, 0, 10)])
    found, numbers = twin.expiry_column(*column)
    there = bits(found, 10)
    expiries = [message.properties.message_expiry_interval for message in sent]
    assert there == [expiry is not None for expiry in expiries]
    assert [number for number, known in zip(memoryview(numbers).cast("q"), there, strict=True) if known] == [
        expiry for expiry in expiries if expiry is not None
    ]
    for kind, name in ((0x03, "content_type"), (0x08, "response_topic"), (0x09, "correlation_data")):
        found, ends, data = twin.text_property_column(*column, kind)
        told = [getattr(message.properties, name) for message in sent]
        assert bits(found, 10) == [value is not None for value in told]
        plain = [(value.encode() if isinstance(value, str) else value) or b"" for value in told]
        assert values(ends, data) == plain


@both
def test_of_a_user_property_that_comes_twice_the_last_counts(twin: Twin) -> None:
    sent = messages(5, 20)
    found, lists, key_ends, keys, value_ends, texts = twin.user_property_columns(
        *twin.property_column([(batch_of(sent, twin), None, 0, 5)])
    )
    at, pairs = u32(lists), list(zip(values(key_ends, keys), values(value_ends, texts), strict=True))
    maps = [dict(pairs[begin:end]) for begin, end in pairwise(at)]
    expected = [{key.encode(): value.encode() for key, value in one.properties.user_properties} for one in sent]
    assert maps == expected
    assert len(pairs) == sum(map(len, expected))
    assert bits(found, 5) == [bool(one) for one in expected]


@both
@pytest.mark.parametrize(
    "section",
    [
        b"\x02\x00\x00",
        b"\x03\x00",
        b"\x03\x00\x05abc",
        b"\x26\x00\x01a",
        b"\x26\x00\x01a\x00",
        b"\x26\x00\x01a\x00\x09b",
        b"\x26\xff\xff",
        b"\x0b\xff\xff\xff\xff\xff",
        b"\x7f",
    ],
)
def test_a_property_that_does_not_fit_is_not_there(twin: Twin, section: bytes) -> None:
    column = struct.pack("<II", 0, len(section)), section
    assert twin.expiry_column(*column) == (b"\0", bytes(8))
    assert twin.text_property_column(*column, 0x03) == (b"\0", bytes(8), b"")
    assert twin.user_property_columns(*column)[:2] == (b"\0", bytes(8))


@both
def test_topics_and_levels_are_taken_by_number(twin: Twin) -> None:
    names = [b"", b"ab", b"c"]
    ends, data = struct.pack("<4I", 0, 0, 2, 3), b"abc"
    taken = twin.take_texts(struct.pack("<5I", 2, 1, 1, 0, 2), ends, data)
    assert values(*taken) == [names[n] for n in (2, 1, 1, 0, 2)]
    lists, value_ends, value_data = twin.take_lists(
        struct.pack("<3I", 1, 0, 1), struct.pack("<3I", 0, 1, 3), ends, data
    )
    assert u32(lists) == [0, 2, 3, 5]
    assert values(value_ends, value_data) == [b"ab", b"c", b"", b"ab", b"c"]


@both
def test_what_lies_outside_is_refused(twin: Twin) -> None:
    batch = batch_of(messages(3), twin)
    beyond = bytearray(struct.pack("<I", 3))
    for piece in ((batch, None, 0, 4), (batch, None, 2, 1), (batch, None, -1, 1), (batch, beyond, 0, 1)):
        with pytest.raises(UsageError):
            twin.offset_column([piece])
        with pytest.raises(UsageError):
            twin.payload_column([piece])
    with pytest.raises(UsageError):
        twin.topic_column([(batch, None, 0, 1)], [])
    with pytest.raises(StorageError):
        twin.take_texts(struct.pack("<I", 2), struct.pack("<3I", 0, 1, 2), b"ab")
    for ends in (b"", b"\0\0", struct.pack("<2I", 0, 3), struct.pack("<3I", 0, 2, 1)):
        with pytest.raises((UsageError, StorageError)):
            twin.take_texts(struct.pack("<I", 0), ends, b"ab")
        with pytest.raises(UsageError):
            twin.expiry_column(ends, b"ab")
    with pytest.raises(StorageError):
        twin.take_lists(struct.pack("<I", 0), struct.pack("<2I", 0, 9), struct.pack("<2I", 0, 1), b"a")


@both
def test_values_that_no_column_can_hold_overflow(twin: Twin) -> None:
    long = b"x" * (1 << 20)
    with pytest.raises(OverflowError):
        twin.take_texts(bytes(4 * 2048), struct.pack("<2I", 0, len(long)), long)


@given(st.lists(st.binary(max_size=12), max_size=6), st.lists(st.integers(0, 5), max_size=10))
def test_the_twins_agree_on_any_properties(sections: list[bytes], numbers: list[int]) -> None:
    at = [0]
    for section in sections:
        at.append(at[-1] + len(section))
    column = struct.pack(f"<{len(at)}I", *at), b"".join(sections)
    wanted = struct.pack(f"<{len(numbers)}I", *(n % max(len(sections), 1) for n in numbers)) if sections else b""
    answers = [
        (
            twin.expiry_column(*column),
            *(twin.text_property_column(*column, kind) for kind in (0x03, 0x08, 0x09)),
            twin.user_property_columns(*column),
            twin.filled_values(column[0]),
            twin.take_texts(wanted, *column),
        )
        for twin in TWINS
    ]
    assert all(answer == answers[0] for answer in answers)
