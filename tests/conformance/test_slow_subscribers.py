"""Subscribers that do not read: they cost bounded memory, slow nobody, and get all that they may still get."""

import contextlib

import pytest
from tests.inside import FLUSH_S
from tests.memory_log import MemoryLog
from tests.raw_client import Closed

from everlog.broker import Limits
from everlog.mqtt import Pingreq, Pingresp, Puback, Publish, Reason, Unsubscribe

LIMITS = Limits(output_bytes=64 << 10, queue_bytes=256 << 10)
NO_SPILL = Limits(output_bytes=64 << 10, queue_bytes=256 << 10, spill_bytes=0)
PAYLOAD = bytes(9_000)  # large enough to be sent in parts
COUNT = 3_000  # 27 MB: more than the sockets' own buffers take


def never_reading(stage, version, qos, filters=("t",), **connect):
    client = stage.client(version, receive_buffer=4096)
    client.connect("slow", **connect)
    client.subscribe(*filters, qos=qos)
    return client


def flood(stage, qos, count=COUNT, topic="t", check=lambda: None):
    """Messages numbered at their start, from a publisher that waits for each of its answers."""
    publisher = stage.connected("publisher")
    step = 100
    for start in range(0, count, step):
        ids = range(start, start + step)
        publisher.send(*(Publish(topic, b"%08d" % k + PAYLOAD, qos, packet_id=k + 1 if qos else 0) for k in ids))
        for _ in ids if qos else ():
            publisher.answer(Puback)
        publisher.expect_nothing()
        check()


def numbers(client):
    """The numbers of all that comes until the answer to a ping."""
    client.send(Pingreq())
    found = []
    while not isinstance(packet := client.receive(), Pingresp):
        assert isinstance(packet, Publish)
        if packet.qos:
            client.send(Puback(packet.packet_id))
        found.append(int(packet.payload[:8]))
    return found


def held(stage):
    """What the broker holds in memory for the slow client, in bytes."""
    inside = stage.inside
    return stage.call(lambda: inside.sessions["slow"].queued_bytes + inside.transport("slow").get_write_buffer_size())


@pytest.mark.parametrize("qos", [0, 1])
def test_on_a_kept_topic_it_falls_back_to_the_log_and_gets_everything(stages, version, qos):
    stage = stages(MemoryLog(), limits=LIMITS, keep=[("t", 0)])
    client = never_reading(stage, version, qos)
    other = stage.connected("other")
    other.subscribe("t", qos=0)
    most = []
    flood(stage, qos, check=lambda: most.append(held(stage)))
    assert max(most) < 3_000_000, "one batch more than the limit, not all of them"
    session = stage.inside.sessions["slow"]
    assert session.lag
    assert session.queued_bytes == 0
    for one in (client, other):
        found = []
        while len(found) < COUNT:
            found += numbers(one)
        assert found == list(range(COUNT))
    stage.until(lambda: not session.lag)
    assert stage.call(lambda: session.counters.dropped) == 0


def test_on_another_topic_qos_0_is_dropped_and_counted(stages, version):
    stage = stages(limits=LIMITS)
    client = never_reading(stage, version, 0)
    flood(stage, 0)
    session = stage.inside.sessions["slow"]
    assert held(stage) < 3_000_000
    found = []
    while not found or found[-1] < COUNT - 1:
        found += numbers(client)
    dropped = stage.call(lambda: session.counters.dropped)
    assert dropped > 0
    assert len(found) + dropped == COUNT
    assert found == sorted(found)
    stage.connected("p").publish("t", b"%08d" % COUNT)
    assert client.message().payload == b"%08d" % COUNT


def test_qos_0_messages_of_a_qos_1_subscription_are_dropped_too(stages, version):
    stage = stages(limits=LIMITS)
    client = never_reading(stage, version, 1)
    flood(stage, 0)
    assert stage.call(lambda: stage.inside.sessions["slow"].counters.dropped) > 0
    found = []
    while not found or found[-1] < COUNT - 1:
        found += numbers(client)
    assert found == sorted(found)


@pytest.mark.parametrize("qos", [1, 2])
def test_on_another_topic_it_spills_and_gets_everything(stages, version, qos):
    stage = stages(limits=LIMITS)
    client = never_reading(stage, version, qos)
    most = []
    flood(stage, 1, check=lambda: most.append(held(stage)))
    assert max(most) < 3_000_000
    session = stage.inside.sessions["slow"]
    assert stage.call(lambda: session.lag)
    assert stage.call(stage.inside.spilled_filters) == ["t"]
    found = []
    while len(found) < COUNT:
        found += numbers(client)
    assert found == list(range(COUNT))
    stage.until(lambda: not stage.inside.kept_filters())
    kept = stage.call(lambda: stage.inside.messages_kept)
    stage.connected("p").publish("t", b"%08d" % COUNT, 1)
    assert client.message().payload == b"%08d" % COUNT
    assert stage.call(lambda: (stage.inside.messages_kept, session.counters.dropped)) == (kept, 0)
    assert stage.broker.metrics.over_quota == 0


def test_one_that_unsubscribes_while_it_is_spilled_keeps_nothing(stages):
    stage = stages(limits=LIMITS)
    client = never_reading(stage, 5, 1, ("t", "u"))
    flood(stage, 1)
    assert stage.call(stage.inside.spilled_filters) == ["t", "u"]
    client.send(Unsubscribe(9, ("t",)))
    stage.until(lambda: stage.inside.spilled_filters() == ["u"])
    client.close()
    stage.until(lambda: not stage.inside.kept_filters())


def test_one_that_is_taken_over_while_it_is_spilled_begins_anew(stages):
    stage = stages(limits=LIMITS)
    never_reading(stage, 5, 1)
    flood(stage, 1)
    assert stage.call(stage.inside.spilled_filters) == ["t"]
    again = stage.connected("slow")
    again.subscribe("t", qos=1)
    stage.until(lambda: not stage.inside.kept_filters())
    stage.connected("p").publish("t", b"new", 1)
    assert again.message().payload == b"new"


def test_on_another_topic_qos_1_ends_with_quota_exceeded_if_nobody_may_spill(stages, version):
    stage = stages(limits=NO_SPILL)
    client = never_reading(stage, version, 1)
    flood(stage, 1)
    stage.until(lambda: stage.broker.metrics.over_quota == 1)
    last = None
    with contextlib.suppress(Closed):
        while True:
            last = client.receive()
    if version == 5:
        assert last.reason is Reason.QUOTA_EXCEEDED
    stage.until(lambda: "slow" not in stage.inside.sessions)
    assert stage.broker.metrics.over_quota == 1


def test_one_that_never_reads_again_is_cut_off(stages, monkeypatch):
    monkeypatch.setattr(FLUSH_S, 0.05)
    stage = stages(limits=NO_SPILL)
    client = never_reading(stage, 5, 1)
    flood(stage, 1)
    stage.until(lambda: "slow" not in stage.inside.sessions)
    assert stage.broker.metrics.over_quota == 1
    client.close()


def test_a_durable_one_is_cut_off_and_gets_everything_later(stages, version):
    stage = stages(MemoryLog(), limits=LIMITS)
    keep = {"clean_start": False, "expiry": 100}
    client = never_reading(stage, version, 1, **keep)
    flood(stage, 1)
    client.close()
    stage.offline("slow")
    client = stage.client(version)
    assert client.connect("slow", **keep).session_present
    found = []
    while len(found) < COUNT:
        found += numbers(client)
    assert found == list(range(COUNT))


def test_others_are_served_while_one_does_not_read(stages):
    stage = stages(limits=LIMITS)
    never_reading(stage, 5, 0)
    others = [stage.connected(f"o{number}") for number in range(3)]
    for one in others:
        one.subscribe("t", qos=1)
    publisher = stage.connected("p")
    for number in range(COUNT // 10):
        publisher.publish("t", b"%08d" % number + PAYLOAD, 1)
        if number % 20 == 19:
            for one in others:
                assert numbers(one) == list(range(number - 19, number + 1))


def test_retained_messages_for_one_that_does_not_read_wait_in_their_store(stages, version):
    stage = stages(limits=LIMITS)
    publisher = stage.connected("p")
    for start in range(0, COUNT, 100):
        publisher.send(
            *(Publish(f"r/{k}", b"%08d" % k + PAYLOAD, retain=True) for k in range(start, start + 100)), Pingreq()
        )
        publisher.answer(Pingresp)
    client = never_reading(stage, version, 0, ("r/#",))
    assert held(stage) < 1_000_000
    found = []
    while len(found) < COUNT:
        found += numbers(client)
    assert sorted(found) == list(range(COUNT))
    assert stage.call(lambda: stage.inside.sessions["slow"].counters.dropped) == 0
