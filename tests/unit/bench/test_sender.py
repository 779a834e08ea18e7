"""A sender's packets are PUBLISHes as anyone would write them, and its window holds, in both twins."""

import struct
from typing import Any

import pytest
from tests.load_kernels import FILLER, NAMING, RUN, TWINS, names_of, packets, sender

from everlog.base import UsageError
from everlog.mqtt import Publish, encode

both = pytest.mark.parametrize("twin", TWINS, ids=names_of)


def pubacks(*ids: int, first: int = 0x40) -> bytes:
    return b"".join(bytes((first, 2, number >> 8, number & 0xFF)) for number in ids)


def acked(twin: Any, made: Any, data: bytes, now_ns: int = 0) -> int:
    """Hand acks to a sender by way of a decoder."""
    base = twin.base
    decoder = base.Decoder(base.MessageColumns(4), base.TopicTable(), version=4, from_client=False)
    return sum(made.acked(run, now_ns) for run in decoder.feed(data))


@both
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_packets_are_what_the_plain_encoder_writes(twin: Any, qos: int) -> None:
    for sequence, packet in enumerate(packets(twin, 5, number=7, qos=qos, topics=2, at_ns=99)):
        stamp = struct.pack("<IIQQ", RUN, 7, sequence, 99)
        topic = NAMING.topic(7, sequence % 2)
        expected = Publish(topic, stamp + FILLER[24:], qos, packet_id=sequence + 1 if qos else 0)
        assert packet == encode(expected, 4)


@both
def test_window_is_never_exceeded_and_acks_open_it(twin: Any) -> None:
    tally = twin.figures.Tally()
    made = sender(twin, tally, qos=1, window=10)
    out = bytearray(10_000)
    made.render(out, 0, made.room(), 100)
    assert (made.inflight, made.room()) == (10, 0)
    assert made.scan(pubacks(1, 2, 3) + b"\xd0\x00", 14, 600) == 12  # the PINGRESP is not its business
    assert (made.inflight, made.room(), tally.acked) == (7, 3, 3)
    made.least = 5
    assert made.room() == 0  # too few to bother
    assert acked(twin, made, pubacks(4, 5), 600) == 0
    assert made.room() == 5
    assert (tally.answers.count, tally.answers.highest) == (5, 500)


@both
def test_acks_that_nothing_waits_for_are_strange(twin: Any) -> None:
    tally = twin.figures.Tally()
    made = sender(twin, tally, qos=1, window=10)
    made.render(bytearray(1000), 0, 1, 0)
    made.scan(pubacks(1, 1, 9, 65_535), 16, 0)
    assert (tally.acked, tally.strange_acks) == (1, 3)


@both
def test_qos_2_waits_for_pubrec_then_pubcomp(twin: Any) -> None:
    tally = twin.figures.Tally()
    made = sender(twin, tally, qos=2, window=2)
    made.render(bytearray(1000), 0, 2, 0)
    assert acked(twin, made, pubacks(1, first=0x70)) == 0  # too early
    assert acked(twin, made, pubacks(1, 2, first=0x50)) == 2
    assert (made.inflight, tally.acked, tally.strange_acks) == (2, 0, 1)
    assert acked(twin, made, pubacks(2, 1, first=0x70)) == 0
    assert (made.inflight, tally.acked, tally.strange_acks) == (0, 2, 1)


@both
def test_packet_ids_in_use_are_skipped(twin: Any) -> None:
    made = sender(twin, twin.figures.Tally(), qos=1, window=2)
    out = bytearray(1000)
    made.render(out, 0, 2, 0)
    seen = set()
    for _ in range(3 * made.id_space):  # id 1 stays unanswered all the while
        packet_id = struct.unpack_from(">H", out, made.packet_bytes - len(FILLER) - 2)[0] if seen else 2
        made.scan(pubacks(packet_id), 4, 0)
        made.render(out, 0, 1, 0)
        seen.add(packet_id)
    assert 1 not in seen
    assert len(seen) == made.id_space - 1


@both
def test_scheduled_messages_are_stamped_with_when_they_were_due(twin: Any) -> None:
    made = sender(twin, twin.figures.Tally())
    made.schedule(1_000_000, 100, 30, 250)
    assert [made.due_ns(sequence) - 1_000_000 for sequence in range(4)] == [250, 250, 250, 500]
    out = bytearray(1000)
    end = made.render(out, 0, 1, 7_000_000)
    assert struct.unpack_from("<Q", out, end - len(FILLER) + 16)[0] == 1_000_250


@both
def test_buffer_without_room_is_refused(twin: Any) -> None:
    made = sender(twin, twin.figures.Tally(), qos=1, window=10)
    for at, count in ((0, 2), (-1, 1), (60, 1), (0, 11)):
        with pytest.raises(UsageError):
            made.render(bytearray(made.packet_bytes + 50), at, count, 0)
    with pytest.raises(UsageError):
        twin.sender.Sender(twin.figures.Tally(), RUN, 0, [b"a", b"bc"], 0, FILLER)
