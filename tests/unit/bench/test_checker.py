"""The checker finds what is lost, doubled, late, foreign or changed, by both of its ways and in both twins."""

import random
from types import SimpleNamespace
from typing import Any

import pytest
from tests.load_kernels import FILLER, RUN, TWINS, checker, feed, names_of, packets

from everlog.base import UsageError

WAYS = ("scan", "take")
both = pytest.mark.parametrize("twin", TWINS, ids=names_of)
each_way = pytest.mark.parametrize("way", WAYS)


def checked(twin: Any, way: str, stream: list[bytes], publishers: int = 1, topics: int = 1, qos: int = 0) -> Any:
    """The tally and the checker after a stream of packets."""
    tally = twin.figures.Tally()
    check = checker(twin, tally, publishers, topics, qos)
    if way == "scan":
        data = b"".join(stream)
        at = 0
        while at < len(data):
            used = check.scan(data[at:], len(data) - at, 3000)
            if used == 0:
                break
            at += used
        if at < len(data):
            feed(twin, check, [data[at:]], 3000, publishers, topics)
    else:
        feed(twin, check, stream, 3000, publishers, topics)
    return SimpleNamespace(tally=tally, check=check)


@both
@each_way
@pytest.mark.parametrize("qos", [0, 1])
def test_complete_stream_has_no_faults(twin: Any, way: str, qos: int) -> None:
    got = checked(twin, way, packets(twin, 50, qos=qos), qos=qos).tally
    assert (got.received, got.distinct) == (50, 50)
    assert (got.duplicates, got.late, got.foreign, got.corrupt, got.wrong_flags) == (0, 0, 0, 0, 0)
    assert got.deliveries.count == 50
    assert got.deliveries.highest == 2000


@both
@each_way
def test_lost_messages_stay_missing(twin: Any, way: str) -> None:
    stream = packets(twin, 100)
    del stream[90:]
    del stream[40:45]
    got = checked(twin, way, stream)
    assert (got.tally.received, got.tally.distinct) == (85, 85)
    assert sum(len(gaps) for gaps in got.check.gaps.values()) == 5  # and ten more that nothing came after
    assert (got.tally.duplicates, got.tally.late) == (0, 0)


@both
@each_way
def test_duplicates_are_counted_and_not_taken_for_new(twin: Any, way: str) -> None:
    stream = packets(twin, 30)
    stream[10:10] = [stream[9], stream[3]]
    got = checked(twin, way, stream).tally
    assert (got.received, got.distinct, got.duplicates, got.late) == (32, 30, 2, 0)


@both
@each_way
def test_late_message_is_out_of_order_and_not_lost(twin: Any, way: str) -> None:
    stream = packets(twin, 30)
    stream.insert(20, stream.pop(5))
    got = checked(twin, way, stream)
    assert (got.tally.distinct, got.tally.late, got.tally.duplicates) == (30, 1, 0)
    assert not any(len(gaps) for gaps in got.check.gaps.values())


@both
@each_way
def test_publishers_and_topics_are_streams_of_their_own(twin: Any, way: str) -> None:
    ones, twos = packets(twin, 40, number=0, topics=4), packets(twin, 40, number=1, topics=4)
    mixed = [packet for pair in zip(ones, twos, strict=True) for packet in pair]
    assert checked(twin, way, mixed, publishers=2, topics=4).tally.late == 0
    by_topic = [packet for topic in range(4) for packet in ones[topic::4]]  # order holds within a topic only
    got = checked(twin, way, by_topic + twos, publishers=2, topics=4).tally
    assert (got.distinct, got.late, got.duplicates) == (80, 0, 0)


@both
@each_way
def test_other_runs_and_other_topics_are_foreign(twin: Any, way: str) -> None:
    stream = packets(twin, 3)
    stream[1] = stream[1].replace(RUN.to_bytes(4, "little"), bytes(4))
    misplaced = packets(twin, 1, number=1)[0].replace(b"/p00001/", b"/p00000/")
    got = checked(twin, way, [*stream, misplaced], publishers=2).tally
    assert (got.foreign, got.distinct) == (2, 2)


@both
@each_way
def test_changed_payload_is_corrupt(twin: Any, way: str) -> None:
    stream = packets(twin, 2)
    stream[1] = stream[1][:-1] + b"!"
    assert checked(twin, way, stream).tally.corrupt == 1


@both
@each_way
def test_wrong_qos_and_dup_are_noticed(twin: Any, way: str) -> None:
    first, second = packets(twin, 2, qos=1)
    flagged = bytes([second[0] | 0x08]) + second[1:]
    got = checked(twin, way, [first, flagged, *packets(twin, 3)[2:]], qos=1).tally
    assert (got.distinct, got.redelivered, got.wrong_flags) == (3, 1, 1)


@both
def test_scan_builds_the_acks_and_keeps_an_unfinished_packet(twin: Any) -> None:
    stream = packets(twin, 3, qos=1)
    data = b"".join(stream)[:-7]
    check = checker(twin, twin.figures.Tally(), qos=1)
    assert check.scan(data, len(data), 1) == len(stream[0]) * 2
    assert bytes(check.acks[: check.ack_bytes]) == b"\x40\x02\x00\x01\x40\x02\x00\x02"
    assert check.rest_bytes == len(stream[2]) - 7
    assert check.scan(b"\xd0\x00", 2, 1) == 0
    assert check.rest_bytes == 0  # a whole PINGRESP is not the beginning of a delivery


@both
@each_way
def test_any_mixture_of_faults_is_told_apart(twin: Any, way: str) -> None:
    for seed in range(20):
        chance = random.Random(seed)
        stream = packets(twin, 60)
        kept = [packet for packet in stream if chance.random() > 0.2]
        doubled = [chance.choice(kept) for _ in range(5)]
        arrived = kept + doubled
        chance.shuffle(arrived)
        got = checked(twin, way, arrived)
        assert (got.tally.distinct, got.tally.duplicates) == (len(kept), 5)
        highest = max(stream.index(packet) for packet in kept)
        assert sum(len(gaps) for gaps in got.check.gaps.values()) == highest + 1 - len(kept)


@both
def test_payload_without_room_for_a_stamp_is_refused(twin: Any) -> None:
    with pytest.raises(UsageError):
        twin.checker.Checker(twin.figures.Tally(), RUN, 1, 1, FILLER[:8], 0, b"0", b"name")
