"""What the decoder refuses before it is remembered, and what it counts of packets that are not whole."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.twins import TWINS

from everlog.base import PeerError
from everlog.mqtt import (
    Connect,
    Pingreq,
    Properties,
    Publish,
    Reason,
    Subscribe,
    Subscription,
    Unsubscribe,
    encode,
)

each_twin = pytest.mark.parametrize("twin", TWINS)


def decoder(twin: Any, **limits: Any) -> Any:
    return twin.Decoder(twin.MessageColumns(1), twin.TopicTable(), version=4, **limits)


@each_twin
@given(st.lists(st.text("ab/ä", min_size=1, max_size=12), min_size=1, max_size=20))
def test_exactly_the_names_within_the_limits_are_learnt(twin: Any, names: list[str]) -> None:
    one = decoder(twin, max_topic_bytes=10, max_topic_levels=3, max_topics=4)
    events = one.feed(b"".join(encode(Publish(name, b""), 4) for name in names))
    learnt: list[bytes] = []
    reason = None
    for name in names:
        raw = name.encode()
        if raw in learnt:
            continue
        if len(raw) > 10 or name.count("/") >= 3:
            reason = Reason.TOPIC_NAME_INVALID
        elif len(learnt) == 4:
            reason = Reason.QUOTA_EXCEEDED
        else:
            learnt.append(raw)
            continue
        break
    assert one.table.all_names() == learnt
    assert (events[-1].reason if isinstance(events[-1], PeerError) else None) == reason
    assert one.topics_made == len(learnt)


@each_twin
def test_an_alias_to_a_name_over_the_limits_is_refused(twin: Any) -> None:
    one = twin.Decoder(twin.MessageColumns(1), twin.TopicTable(), max_aliases=5, version=5, max_topic_bytes=10)
    events = one.feed(encode(Publish("x" * 11, b"", properties=Properties(topic_alias=1)), 5))
    assert events[0].reason == Reason.TOPIC_NAME_INVALID
    assert one.table.count == 0


def carried_of(twin: Any, limit: int, calls: list[int]) -> Any:
    kind = type(decoder(twin).carried)
    carried = kind(limit)
    carried.on_over = lambda: calls.append(carried.total_bytes)
    return carried


@each_twin
@given(st.lists(st.integers(0, 40), max_size=8), st.randoms())
def test_what_is_carried_is_what_is_buffered_and_nothing_at_the_end(twin: Any, sizes: list[int], random: Any) -> None:
    carried = carried_of(twin, 1 << 30, [])
    several = [decoder(twin, carried=carried) for _ in range(3)]
    stream = b"".join(encode(Publish("t", bytes(size)), 4) for size in sizes)
    at = [0, 0, 0]
    while any(place < len(stream) for place in at):
        which = random.randrange(3)
        step = random.randrange(1, 20)
        several[which].feed(stream[at[which] : at[which] + step])
        at[which] += step
        assert carried.total_bytes == sum(one.buffered_bytes for one in several)
    assert carried.total_bytes == 0
    several[0].feed(b"\x30\x7f" + bytes(100))
    assert carried.total_bytes == 102
    several[0].drop()
    several[0].drop()
    assert carried.total_bytes == several[0].buffered_bytes == 0
    assert several[0].feed(b"more") == []


@each_twin
def test_too_much_is_told_when_it_is_added(twin: Any) -> None:
    calls: list[int] = []
    carried = carried_of(twin, 100, calls)
    one, other = decoder(twin, carried=carried), decoder(twin, carried=carried)
    one.feed(b"\x30\xff\x01" + bytes(60))
    assert calls == []
    other.feed(b"\x30\xff\x01" + bytes(60))
    other.feed(bytes(5))
    assert calls == [126, 131]
    one.drop()
    other.feed(bytes(5))
    assert calls == [126, 131]


@each_twin
def test_a_ping_needs_a_connect_before_it(twin: Any) -> None:
    assert decoder(twin).feed(b"\xc0\x00\xc0\x00") == [Pingreq(), Pingreq()]
    fresh = twin.Decoder(twin.MessageColumns(1), twin.TopicTable())
    assert isinstance(fresh.feed(b"\xc0\x00")[0], PeerError)
    assert isinstance(decoder(twin, from_client=False).feed(b"\xc0\x00")[0], PeerError)
    assert isinstance(decoder(twin).feed(b"\xc0\x01\x00")[0], PeerError)


@each_twin
@given(st.lists(st.sampled_from(["ping", "a", "b", "c", "puback", "pubrel"]), max_size=40), st.integers(1, 4))
def test_a_decoder_that_stops_comes_to_the_same_in_the_end(twin: Any, names: list[str], most: int) -> None:
    packets = {"ping": b"\xc0\x00", "puback": b"\x40\x02\x00\x01", "pubrel": b"\x62\x02\x00\x01"}
    stream = b"".join(packets.get(name) or encode(Publish(name, b"x"), 4) for name in names)
    whole = decoder(twin)
    carried = type(whole.carried)()
    halting = decoder(twin, max_events=most, max_new_topics=1, carried=carried)

    def seen(events: list[Any]) -> list[Any]:
        found: list[Any] = []
        for event in events:
            if isinstance(event, Pingreq):
                found.append("ping")
            elif isinstance(event, twin.PublishRun):
                topics = memoryview(event.columns.topics).cast("I")
                found += [whole.table.name(topics[row]).decode() for row in range(event.start, event.stop)]
            else:
                found += ["puback" if event.packet_type == 4 else "pubrel"] * (len(event.ids) // 2)
        return found

    assert seen(whole.feed(stream)) == names
    steps = [halting.feed(stream)]
    found = seen(steps[0])
    while halting.has_more:
        steps.append(halting.more())
        assert steps[-1]
        found += seen(steps[-1])
    assert found == names
    assert max(map(len, steps)) <= most + 1
    assert carried.total_bytes == 0
    assert halting.more() == []


@each_twin
def test_a_decoder_that_stops_does_so_after_what_may_take_a_while(twin: Any) -> None:
    fresh = twin.Decoder(twin.MessageColumns(1), twin.TopicTable(), max_events=100)
    packets = (Connect(5, "c"), Pingreq(), Subscribe(1, (Subscription("a"),)), Pingreq(), Unsubscribe(2, ("a",)))
    stream = b"".join(encode(packet, 5) for packet in packets)
    assert fresh.feed(stream[:-3]) == [packets[0]]
    assert fresh.more() == list(packets[1:3])
    fresh.hold(stream[-3:] + b"\xc0\x00", 5)
    assert fresh.more() == list(packets[3:5])
    assert fresh.has_more
    assert fresh.more() == [Pingreq()]
    assert not fresh.has_more
    assert fresh.buffered_bytes == 0


@each_twin
def test_what_waits_is_let_go_of_at_the_end(twin: Any) -> None:
    carried = type(decoder(twin).carried)()
    one = decoder(twin, max_events=1, carried=carried)
    one.feed(b"\xc0\x00\xc0\x00\xc0\x00")
    assert one.has_more
    assert carried.total_bytes > 0
    one.drop()
    assert (one.has_more, one.more(), carried.total_bytes) == (False, [], 0)
