"""What clients see of a log that does not keep up, or that fails."""

import threading
from collections.abc import Callable

import pytest
from msgspec.structs import replace
from tests.conformance.clause import clauses
from tests.memory_log import MemoryLog
from tests.stages import Stage

from everlog.base import StorageError, Unavailable
from everlog.broker import Limits
from everlog.mqtt import Pingreq, Pingresp, Puback, Publish, Pubrec, Reason, encode

MESSAGE = encode(Publish("busy", b"x" * 1000), 5)


def test_a_log_that_does_not_keep_up_holds_publishers_back_and_loses_nothing(stages: Callable[..., Stage]) -> None:
    log = MemoryLog(manual=True)
    stage = stages(log, keep=[("#", 0)], limits=Limits(unwritten_bytes=100_000))
    client = stage.connected()
    count = 20_000
    sender = threading.Thread(target=client.send_bytes, args=(MESSAGE * count,))
    sender.start()
    stage.until(lambda: stage.broker.metrics.held_back > 0)
    held = stage.call(lambda: log.shards[0].end)
    assert held < count  # the rest waits in the sockets, not in the broker
    stage.until(lambda: log.commit_now() or log.shards[0].committed == count)
    sender.join(10)


def test_a_shard_that_does_not_keep_up_holds_back_its_own_publishers_alone(stages: Callable[..., Stage]) -> None:
    log = MemoryLog(shards=4, manual=True)
    stage = stages(log, keep=[("#", 0)], limits=Limits(unwritten_bytes=100_000))
    slow, quick = stage.connected("slow"), stage.connected("quick")
    count = 20_000
    sender = threading.Thread(target=slow.send_bytes, args=(encode(Publish("bb", b"x" * 1000), 5) * count,))
    sender.start()
    stage.until(lambda: stage.broker.metrics.held_back > 0)
    for packet_id in range(1, 4):
        quick.send(Publish("a", b"", qos=1, packet_id=packet_id))
        stage.until(lambda packet_id=packet_id: log.shards[1].end == packet_id)
        stage.call(lambda: (log.shards[1].commit_now(), log.shards[1].announce()))
        assert quick.expect(Puback).packet_id == packet_id
    quick.send(Pingreq())
    quick.expect(Pingresp)
    assert stage.broker.metrics.held_back == 1
    assert log.shards[2].end < count
    stage.until(lambda: log.commit_now() or log.shards[2].committed == count)
    sender.join(10)


def test_many_acks_that_wait_hold_back_only_those_whose_acks_do(stages: Callable[..., Stage]) -> None:
    log = MemoryLog(shards=4, manual=True)
    stage = stages(log, keep=[("#", 0)], limits=Limits(inflight_bytes=20))
    many, quick = stage.connected("many"), stage.connected("quick")
    many.send(*(Publish("bb", b"", qos=1, packet_id=packet_id) for packet_id in range(1, 11)))
    stage.until(lambda: log.shards[2].end == 10)
    many.send(Publish("bb", b"", qos=1, packet_id=11))
    quick.send(*(Publish("a", b"", qos=0) for _ in range(10)))
    quick.send(Pingreq())
    quick.expect(Pingresp)
    quick.subscribe("t")
    stage.call(log.commit_now)
    assert [many.expect(Puback).packet_id for _ in range(10)] == list(range(1, 11))
    stage.until(lambda: log.shards[2].end == 11)
    stage.call(log.commit_now)
    assert many.expect(Puback).packet_id == 11


def test_who_was_held_back_goes_on_though_all_was_committed_in_the_same_turn(stages: Callable[..., Stage]) -> None:
    stage = stages(MemoryLog(), keep=[("#", 0)], limits=Limits(inflight_bytes=20))
    client = stage.connected("many")
    client.send(*(Publish("a", b"", qos=1, packet_id=packet_id) for packet_id in range(1, 11)))
    assert [client.expect(Puback).packet_id for _ in range(10)] == list(range(1, 11))
    assert stage.broker.metrics.held_back > 0
    client.send(Publish("a", b"", qos=1, packet_id=11))
    assert client.expect(Puback).packet_id == 11


def test_a_log_that_fails_ends_those_who_wait_for_an_answer(stages: Callable[..., Stage]) -> None:
    log = MemoryLog(manual=True)
    stage = stages(log, keep=[("#", 0)])
    client, other = stage.connected("waits"), stage.connected("idle")
    client.send(Publish("kept", b"1", qos=1, packet_id=1))
    stage.until(lambda: log.shards[0].end == 1)
    stage.call(lambda: log.fail(0, StorageError("no space left on device")))
    client.expect_closed(Reason.IMPLEMENTATION_SPECIFIC_ERROR)  # and no PUBACK before it
    other.send(Publish("kept", b"2"))
    stage.call(log.commit_now)


@clauses(v4="MQTT-4.8.0-2")
def test_a_log_that_refuses_an_append_ends_the_publisher_alone(stages: Callable[..., Stage], version: int) -> None:
    log = MemoryLog()
    stage = stages(log, keep=[("kept", 0)])
    client, other = stage.connected("unlucky", version), stage.connected("lucky", version)

    def refuse(*_: object) -> int:
        raise StorageError("read-only")

    append = log.shards[0].append
    log.shards[0].append = refuse  # type: ignore[method-assign]
    client.send(Publish("kept", b"1", qos=1, packet_id=1))
    client.expect_closed(Reason.IMPLEMENTATION_SPECIFIC_ERROR)
    log.shards[0].append = append  # type: ignore[method-assign]
    other.send(Publish("kept", b"1", qos=1, packet_id=9))
    assert other.expect(Puback).packet_id == 9


def test_a_subscription_begins_behind_what_was_published_before_it(stages: Callable[..., Stage]) -> None:
    log = MemoryLog(manual=True)
    stage = stages(log, keep=[("#", 0)])
    publisher, subscriber = stage.connected("p"), stage.connected("s")
    publisher.send(*(Publish("a/b", b"%d" % i) for i in range(5)))
    stage.until(lambda: log.shards[0].end == 5)  # appended, and not yet committed
    subscriber.subscribe("a/#")
    publisher.send(*(Publish("a/b", b"%d" % i) for i in range(5, 8)))
    stage.until(lambda: log.shards[0].end == 8)
    stage.call(log.commit_now)
    assert subscriber.payloads(3) == ["5", "6", "7"]


def test_a_shard_that_does_not_commit_holds_back_only_those_who_published_to_it(stages: Callable[..., Stage]) -> None:
    log = MemoryLog(shards=4, manual=True)
    stage = stages(log, keep=[("#", 0)])
    quick, stuck, mixed = stage.connected("quick"), stage.connected("stuck"), stage.connected("mixed")
    stuck.send(Publish("bb", b"", qos=1, packet_id=1))
    stage.until(lambda: log.shards[2].end == 1)
    mixed.send(Publish("bb", b"", qos=1, packet_id=1))
    stage.until(lambda: log.shards[2].end == 2)
    mixed.send(Publish("a", b"", qos=1, packet_id=2))
    stage.until(lambda: log.shards[1].end == 1)

    def commit_first() -> bool:
        log.shards[1].commit_now()
        log.shards[1].announce()
        return log.shards[1].committed == log.shards[1].end

    for packet_id in range(1, 6):
        quick.send(Publish("a", b"", qos=1 + packet_id % 2, packet_id=packet_id))
        stage.until(lambda packet_id=packet_id: log.shards[1].end == packet_id + 1 and commit_first())
        assert quick.expect(Pubrec if packet_id % 2 else Puback).packet_id == packet_id
    stuck.expect_nothing()
    mixed.expect_nothing()  # the first of its acks is not due yet
    assert log.shards[2].committed == 0
    stage.call(log.commit_now)
    assert stuck.expect(Puback).packet_id == 1
    assert [mixed.expect(Puback).packet_id for _ in range(2)] == [1, 2]


def test_a_shard_that_fails_ends_those_who_wait_for_it_and_nobody_else(stages: Callable[..., Stage]) -> None:
    log = MemoryLog(shards=4, manual=True)
    stage = stages(log, keep=[("#", 0)])
    hit, spared, idle = stage.connected("hit"), stage.connected("spared"), stage.connected("idle")
    hit.send(Publish("a", b"", qos=1, packet_id=1), Publish("bb", b"", qos=1, packet_id=2))
    spared.send(Publish("a", b"", qos=1, packet_id=1))
    stage.until(lambda: (log.shards[1].end, log.shards[2].end) == (2, 1))
    stage.call(lambda: log.fail(2, StorageError("no space left on device")))
    hit.expect_closed(Reason.IMPLEMENTATION_SPECIFIC_ERROR)  # and no PUBACK before it
    stage.call(log.commit_now)
    assert spared.expect(Puback).packet_id == 1
    for client, packet_id in ((spared, 2), (idle, 1)):
        client.send(Publish("ccc", b"", qos=1, packet_id=packet_id))
        stage.until(lambda: log.shards[3].end > log.shards[3].committed)
        stage.call(log.commit_now)
        assert client.expect(Puback).packet_id == packet_id
    assert stage.inside.connected_ids == {"spared", "idle"}


def test_a_message_that_comes_again_waits_for_its_own_shard_alone(stages: Callable[..., Stage]) -> None:
    log = MemoryLog(shards=4, manual=True)
    stage = stages(log, keep=[("#", 0)])
    hit, spared = stage.connected("hit"), stage.connected("spared")
    hit.send(Publish("bb", b"", qos=2, packet_id=1))
    stage.until(lambda: log.shards[2].end == 1)
    spared.send(Publish("a", b"", qos=2, packet_id=1), Publish("a", b"", qos=2, packet_id=1, dup=True))
    stage.until(lambda: log.shards[1].end == 1)
    spared.expect_nothing()  # neither the message nor its duplicate before the commit
    stage.call(lambda: (log.shards[1].commit_now(), log.shards[1].announce()))
    assert [spared.expect(Pubrec).packet_id for _ in range(2)] == [1, 1]
    stage.call(lambda: log.fail(2, StorageError("no space left on device")))
    hit.expect_closed(Reason.IMPLEMENTATION_SPECIFIC_ERROR)
    spared.send(Publish("a", b"", qos=2, packet_id=1, dup=True))
    assert spared.expect(Pubrec).packet_id == 1


@pytest.mark.parametrize("takes", [False, True], ids=["no shard takes any", "one shard takes its part"])
def test_a_qos_2_message_that_the_log_has_refused_is_no_repetition(stages: Callable[..., Stage], takes: bool) -> None:
    log = MemoryLog(2)
    stage = stages(log, keep=[("#", 0)])
    client = stage.connected("c", expiry=1000)

    def refuse(*_: object) -> int:
        raise Unavailable("too much waits")

    refusing = log.shards[1:] if takes else log.shards
    append = [shard.append for shard in refusing]
    for shard in refusing:
        shard.append = refuse  # type: ignore[method-assign]
    run = [Publish("ab", b"even", 2, packet_id=1), Publish("abc", b"odd", 2, packet_id=2)]
    client.send(*run)
    client.expect_closed(Reason.SERVER_BUSY)
    for shard, true in zip(refusing, append, strict=True):
        shard.append = true  # type: ignore[method-assign]
    client = stage.connected("c", clean_start=False, expiry=1000)
    client.send(*(replace(one, dup=True) for one in run))
    assert {client.expect(Pubrec).packet_id for _ in run} == {1, 2}
    stage.until(lambda: [shard.committed for shard in log.shards] == [1, 1])
