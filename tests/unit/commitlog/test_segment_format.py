"""Segment headers and frames: found when they are whole, refused when they are not."""

import pytest

from everlog.base import StorageError
from everlog.commitlog.segment_format import (
    FRAME_BYTES,
    HEADER_BYTES,
    Frame,
    SegmentHeader,
    find_frame,
    read_frame,
    read_header,
)

HEADER = SegmentHeader(base_offset=(1 << 64) - 1, created_us=5, salt=(1 << 64) - 3, generation=7, flags=1)
FRAME = Frame(position=4096, base_offset=1 << 63, size=0x7FFFFFFF, records=0x7FFFFFFF, after_sync=True)


def test_a_header_comes_back_as_it_was_written() -> None:
    raw = HEADER.to_bytes()
    assert len(raw) == HEADER_BYTES
    assert read_header(raw, "x") == HEADER


def test_either_copy_of_a_header_is_enough() -> None:
    raw = HEADER.to_bytes()
    assert read_header(bytes(64) + raw[64:], "x") == HEADER
    assert read_header(raw[:64] + bytes(64), "x") == HEADER
    assert read_header(bytes(128), "x") is None
    assert read_header(b"", "x") is None


def test_a_header_of_an_unknown_version_is_refused() -> None:
    import struct

    import crc32c

    copy = bytearray(HEADER.to_bytes()[:64])
    struct.pack_into("<H", copy, 4, 2)
    struct.pack_into("<I", copy, 60, crc32c.crc32c(bytes(copy[:60])))
    with pytest.raises(StorageError, match="version 2"):
        read_header(bytes(copy), "x")


def test_headers_that_differ_have_different_checks() -> None:
    merged = SegmentHeader(0, 5, 3, generation=1)
    assert merged.check != SegmentHeader(0, 5, 3).check != SegmentHeader(0, 6, 3).check


def test_a_frame_comes_back_as_it_was_written() -> None:
    raw = FRAME.to_bytes(9)
    assert len(raw) == FRAME_BYTES
    assert read_frame(b"before  " + raw, 8, 4096, 9) == FRAME
    assert FRAME.end == 4096 + FRAME_BYTES + FRAME.size


def test_a_frame_is_no_frame_elsewhere_or_with_another_salt() -> None:
    raw = FRAME.to_bytes(9)
    assert read_frame(raw, 0, 4104, 9) is None
    assert read_frame(raw, 0, 4096, 8) is None
    assert read_frame(raw[:-1], 0, 4096, 9) is None


def test_every_flipped_bit_of_a_frame_is_noticed() -> None:
    raw = FRAME.to_bytes(9)
    for bit in range(8 * len(raw)):
        damaged = bytearray(raw)
        damaged[bit // 8] ^= 1 << bit % 8
        assert read_frame(bytes(damaged), 0, 4096, 9) is None


def test_the_next_frame_is_found_behind_things_that_look_like_one() -> None:
    frame = Frame(80, 3, 8, 1, False)
    data = b"EVLF" * 8 + Frame(0, 1, 1, 1, False).to_bytes(7) + bytes(16) + frame.to_bytes(9) + bytes(8)
    assert find_frame(data, 0, 0, 9) == frame
    assert find_frame(data, 88, 0, 9) is None
    assert find_frame(data[1:], 0, 0, 9) is None
