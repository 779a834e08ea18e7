"""The reading half of the NATS protocol, on both twins."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.twins import TWINS, Twin

from everlog.base import PeerError
from everlog.bus import Delivery

twins = pytest.mark.parametrize("twin", TWINS, ids=repr)


def taken(decoder: Any) -> tuple[dict[int, list[Delivery]], list[bytes]]:
    return decoder.batches, decoder.lines


@twins
def test_messages_of_one_read_become_one_batch_for_each_subscription(twin: Twin) -> None:
    decoder = twin.NatsDecoder()
    decoder.feed(
        b"INFO {}\r\nMSG a.b 1 2\r\nhi\r\nMSG a.%2E 12 _INBOX.x.y 0\r\n\r\nPING\r\nMSG a.b 1 evil.topic 3\r\n\r\n\n\r\n"
    )
    assert taken(decoder) == (
        {1: [Delivery("a/b", b"hi"), Delivery("a/b", b"\r\n\n")], 12: [Delivery("a/.", b"", "_INBOX/x/y")]},
        [b"INFO {}", b"PING"],
    )


@twins
@pytest.mark.parametrize(
    "data",
    [
        b"MSG a 1\r\n",
        b"MSG a x 1\r\nx\r\n",
        b"MSG  1 1\r\nx\r\n",
        b"MSG a 1 99999999999999999999\r\n",
        b"MSG a 99999999999999999999 1\r\nx\r\n",
        b"MSG 1\r\n",
        b"MSG \r\n",
        b"MSG a 1 -1\r\n",
        b"x" * 70_000,
    ],
)
def test_what_breaks_the_protocol_is_refused(twin: Twin, data: bytes) -> None:
    with pytest.raises(PeerError):
        twin.NatsDecoder().feed(data)


_MESSAGES = st.lists(st.tuples(st.integers(1, 99), st.binary(max_size=40), st.booleans()), max_size=8)


@twins
@given(messages=_MESSAGES, data=st.data())
def test_wherever_reads_are_cut_the_same_arrives(twin: Twin, messages: list[Any], data: st.DataObject) -> None:
    stream = b"".join(
        b"MSG s.%d %d %b%d\r\n%b\r\n" % (number, number, b"_INBOX.r " if reply else b"", len(payload), payload)
        + (b"PONG\r\n" if reply else b"")
        for number, payload, reply in messages
    )
    whole = twin.NatsDecoder()
    whole.feed(stream)
    cut = twin.NatsDecoder()
    places = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    for start, stop in zip([0, *places], [*places, len(stream)], strict=True):
        cut.feed(stream[start:stop])
    assert taken(cut) == taken(whole)
    assert sum(map(len, whole.batches.values())) == len(messages)


@twins
@given(st.binary(max_size=200))
def test_any_bytes_are_taken_or_refused(twin: Twin, data: bytes) -> None:
    decoder = twin.NatsDecoder()
    try:
        decoder.feed(b"MSG " + data)
        decoder.feed(data)
    except PeerError:
        pass
