"""The frames of the persist protocol, and frames in parts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.bus import (
    LAST,
    MAX_FRAME,
    Assembly,
    BadFrame,
    Frame,
    FrameKind,
    decode_frame,
    encode_frame,
    split_frame,
)

FRAMES = st.builds(
    Frame,
    st.sampled_from(list(FrameKind)),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**16 - 1),
    st.binary(max_size=300),
)


@given(FRAMES)
def test_a_frame_comes_back_as_it_was(frame: Frame) -> None:
    assert decode_frame(encode_frame(*frame)) == frame


def test_the_bytes_of_a_frame_are_those_of_the_format() -> None:
    data = encode_frame(FrameKind.REPLY, 0x0102030405060708, 9, LAST, b"body")
    assert data == bytes.fromhex("01 04 0080 09000000 0807060504030201") + b"body"


@given(st.binary(max_size=40))
def test_any_bytes_are_a_frame_or_refused(data: bytes) -> None:
    try:
        frame = decode_frame(data)
    except BadFrame:
        return
    assert encode_frame(*frame) == data


@pytest.mark.parametrize(
    "data", [b"", b"\x01", b"\x02\x01" + bytes(14), b"\x01\x63" + bytes(14), b"\x01\x00" + bytes(14)]
)
def test_unknown_versions_and_kinds_are_refused(data: bytes) -> None:
    with pytest.raises(BadFrame):
        decode_frame(data)


@given(FRAMES, st.integers(21, 80), st.randoms(use_true_random=False))
def test_parts_in_any_order_and_twice_make_the_frame_once(frame: Frame, size: int, chance: object) -> None:
    data = encode_frame(*frame)
    parts = split_frame(data, size)
    assert all(len(part) <= size for part in parts)
    if len(parts) == 1:
        assert parts == [data]
        return
    chance.shuffle(parts)  # type: ignore[attr-defined]
    assembly, whole = Assembly(), []
    for part in parts[:-1]:
        for _ in range(2):
            assert assembly.add("me", decode_frame(part), 0.0) is None
            assert assembly.add("another", decode_frame(parts[0]), 0.0) is None
    found = assembly.add("me", decode_frame(parts[-1]), 0.0)
    whole += [found] if found is not None else []
    assert whole == [data]


def test_what_never_gets_whole_is_given_up() -> None:
    assembly = Assembly(max_bytes=1000, patience_s=30)
    first = decode_frame(encode_frame(FrameKind.PART, 1, 0, 0, bytes(4) + bytes(600)))
    assembly.add("a", first, 0.0)
    assembly.add("b", first, 1.0)  # too much together: the older goes
    assert assembly.held_bytes == 600
    assembly.sweep(32.0)
    assert assembly.held_bytes == 0


def test_parts_that_contradict_each_other_are_refused() -> None:
    assembly = Assembly()
    assembly.add("a", decode_frame(encode_frame(FrameKind.PART, 1, 5, 0, bytes(8))), 0.0)
    with pytest.raises(BadFrame):
        assembly.add("a", decode_frame(encode_frame(FrameKind.PART, 1, 1, LAST, bytes(8))), 0.0)
    with pytest.raises(BadFrame):
        assembly.add("a", decode_frame(encode_frame(FrameKind.PART, 1, 0, LAST, b"abc")), 0.0)
    assert assembly.held_bytes == 0


def test_a_frame_in_parts_has_a_limit() -> None:
    assembly = Assembly()
    for number in range(MAX_FRAME >> 20):
        assembly.add("a", Frame(FrameKind.PART, 1, number, 0, bytes(4 + (1 << 20))), 0.0)
    with pytest.raises(BadFrame):
        assembly.add("a", Frame(FrameKind.PART, 1, 1000, 0, bytes(5)), 0.0)
    assert assembly.held_bytes == 0
