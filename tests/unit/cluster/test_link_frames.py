"""Frames of links: whatever pieces they come in they are what was sent, and nothing that was not sent is taken."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.cluster.link_frames import (
    HEADER_BYTES,
    MAX_BODY,
    MAX_FIRST_BODY,
    BadFrame,
    LinkDecoder,
    LinkFrame,
    encode_link_frame,
)

frames = st.lists(st.builds(LinkFrame, st.integers(0, 255), st.integers(0, 2**64 - 1), st.binary(max_size=300)))


@given(frames, st.lists(st.integers(0, 2000)))
def test_frames_in_any_pieces_are_what_was_sent(sent: list[LinkFrame], cuts: list[int]) -> None:
    stream = b"".join(encode_link_frame(*frame) for frame in sent)
    decoder = LinkDecoder(MAX_BODY)
    found: list[LinkFrame] = []
    at = 0
    for cut in [*sorted(cuts), len(stream)]:
        found += decoder.feed(stream[at:cut])
        at = max(at, cut)
    assert found == sent
    assert decoder.held_bytes == 0


@given(frames, st.data())
def test_a_frame_that_is_cut_off_is_none(sent: list[LinkFrame], data: st.DataObject) -> None:
    stream = b"".join(encode_link_frame(*frame) for frame in sent)
    cut = data.draw(st.integers(0, len(stream)))
    found = LinkDecoder(MAX_BODY).feed(stream[:cut])
    assert found == sent[: len(found)]


def test_damage_is_always_found() -> None:
    chance = random.Random(5)
    for _ in range(5000):
        sent = [LinkFrame(chance.randrange(1, 40), chance.getrandbits(64), chance.randbytes(chance.randrange(60)))]
        sent.append(LinkFrame(2, 7, b"the next"))
        stream = bytearray(b"".join(encode_link_frame(*frame) for frame in sent))
        at = chance.randrange(len(stream))
        stream[at] ^= 1 << chance.randrange(8)
        decoder = LinkDecoder(MAX_BODY)
        try:
            found = decoder.feed(bytes(stream))
        except BadFrame:
            continue
        assert found == sent[: len(found)]  # the rest is waited for: its size seems to be larger
        assert len(found) < len(sent)


def test_noise_is_refused_at_once() -> None:
    chance = random.Random(6)
    for _ in range(1000):
        with pytest.raises(BadFrame):
            LinkDecoder(MAX_BODY).feed(b"GET " + chance.randbytes(HEADER_BYTES))


def test_a_stranger_may_send_little_and_is_read_no_further_than_its_first_frame() -> None:
    with pytest.raises(BadFrame, match="at most"):
        LinkDecoder().feed(encode_link_frame(1, 0, bytes(MAX_FIRST_BODY + 1))[:HEADER_BYTES])
    decoder = LinkDecoder()
    two = encode_link_frame(1, 0, b"who") + encode_link_frame(2, 0, bytes(MAX_FIRST_BODY + 1))
    assert decoder.feed(two) == [LinkFrame(1, 0, b"who")]
    decoder.max_body = MAX_BODY
    assert [frame.kind for frame in decoder.feed(b"")] == [2]


def test_a_huge_frame_is_refused_by_its_header() -> None:
    head = bytearray(encode_link_frame(2, 0, b"")[:HEADER_BYTES])
    head[4:8] = (MAX_BODY + 1).to_bytes(4, "little")
    with pytest.raises(BadFrame, match="at most"):
        LinkDecoder(MAX_BODY).feed(bytes(head))
    with pytest.raises(BadFrame, match="too large"):
        encode_link_frame(2, 0, bytes(MAX_BODY + 1))


def test_another_version_is_refused() -> None:
    frame = bytearray(encode_link_frame(2, 0, b""))
    frame[2] = 9
    with pytest.raises(BadFrame, match="version 9"):
        LinkDecoder(MAX_BODY).feed(bytes(frame))
