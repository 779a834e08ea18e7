"""What clients see of a disk that is full or fails: what would be kept is refused or waits, all else goes on."""

from collections.abc import Callable

from tests.memory_log import MemoryLog
from tests.stages import Stage

from everlog.base import StorageError
from everlog.broker import Limits
from everlog.mqtt import Pingreq, Pingresp, Puback, Pubcomp, Publish, Pubrec, Pubrel, Reason
from everlog.store import FreeSpace

TOTAL = 1_000_000_000
PLENTY = 500_000_000


class Disk:
    """A disk of 1 GB whose free space the test sets."""

    def __init__(self, free: int = PLENTY) -> None:
        self.free = free
        self.asked = 0
        self.space = FreeSpace("data", ask=self._ask)

    def _ask(self, directory: str) -> tuple[int, int]:
        self.asked += 1
        return self.free, TOTAL


def full(stages: Callable[..., Stage], log: MemoryLog | None = None) -> tuple[Stage, Disk, MemoryLog]:
    """A broker whose disk has become full."""
    disk, log = Disk(), log or MemoryLog()
    stage = stages(log, keep=[("kept/#", 0)], space=disk.space)
    disk.free = TOTAL // 20 - 1
    stage.until(lambda: stage.broker.router.refuses)
    return stage, disk, log


def with_room(stage: Stage, disk: Disk) -> None:
    disk.free = PLENTY
    stage.until(lambda: not stage.broker.router.refuses)


def test_kept_messages_are_refused_before_the_disk_is_full_and_taken_again_later(stages: Callable[..., Stage]) -> None:
    stage, disk, log = full(stages)
    client = stage.connected("c")
    client.subscribe("kept/#", "other")
    client.send(
        Publish("kept/1", b"", qos=1, packet_id=1),
        Publish("kept/2", b"", qos=2, packet_id=2),
        Publish("kept/0", b""),
        Publish("other", b"unkept", qos=1, packet_id=3),
        Pingreq(),
    )
    refused = client.expect(Puback)
    assert (refused.packet_id, refused.reason) == (1, Reason.QUOTA_EXCEEDED)
    assert "disk is full" in str(refused.properties.reason_string)
    assert client.expect(Pubrec).reason is Reason.QUOTA_EXCEEDED
    taken = client.expect(Puback)
    assert (taken.packet_id, taken.reason) == (3, Reason.SUCCESS)
    assert {type(client.receive()) for _ in range(2)} == {Pingresp, Publish}
    assert (log.shards[0].end, stage.broker.metrics.not_kept) == (0, 3)
    with_room(stage, disk)
    client.send(Publish("kept/2", b"again", qos=2, packet_id=2))  # its id is free
    assert client.expect(Publish).payload == b"again"
    assert client.expect(Pubrec).reason is Reason.SUCCESS
    client.send(Pubrel(2))
    assert client.expect(Pubcomp).packet_id == 2


def test_a_client_of_mqtt_3_gets_no_ack_for_what_is_not_kept_and_sends_it_again(stages: Callable[..., Stage]) -> None:
    stage, disk, log = full(stages)
    watcher = stage.connected("w")
    watcher.subscribe("#")
    client = stage.connected("c", 4, clean_start=False)
    client.send(Publish("kept", b""), Publish("other", b"unkept", qos=1, packet_id=1))
    assert client.expect(Puback).packet_id == 1
    both = (Publish("other", b"once", qos=2, packet_id=2), Publish("kept/1", b"once", qos=2, packet_id=3))
    client.send(*both)
    client.expect_closed()
    with_room(stage, disk)
    client = stage.connected("c", 4, clean_start=False)
    client.send(*both)
    assert [client.expect(Pubrec).packet_id for _ in range(2)] == [2, 3]
    client.send(Pubrel(2), Pubrel(3))
    assert [client.expect(Pubcomp).packet_id for _ in range(2)] == [2, 3]
    assert sorted(watcher.payloads(3)) == ["once", "once", "unkept"]
    watcher.expect_nothing()
    assert log.shards[0].committed == 1


def test_a_message_that_was_kept_is_acknowledged_when_it_comes_again_on_a_full_disk(
    stages: Callable[..., Stage],
) -> None:
    disk, log = Disk(), MemoryLog()
    stage = stages(log, keep=[("kept/#", 0)], space=disk.space)
    client = stage.connected("c")
    client.send(Publish("kept/1", b"", qos=2, packet_id=1))
    assert client.expect(Pubrec).reason is Reason.SUCCESS
    disk.free = 0
    stage.until(lambda: stage.broker.router.refuses)
    client.send(Publish("kept/1", b"", qos=2, packet_id=1, dup=True), Publish("kept/1", b"", qos=2, packet_id=2))
    assert [client.expect(Pubrec).reason for _ in range(2)] == [Reason.SUCCESS, Reason.QUOTA_EXCEEDED]


def test_subscribers_are_served_from_the_log_on_a_full_disk(stages: Callable[..., Stage]) -> None:
    disk, log = Disk(), MemoryLog()
    stage = stages(log, keep=[("kept/#", 0)], space=disk.space)
    stage.connected("p").publish("kept/1", b"before", qos=1)
    disk.free = 0
    stage.until(lambda: stage.broker.router.refuses)
    reader = stage.connected("r")
    reader.subscribe("$replay/earliest/kept/#")
    assert reader.payloads(1) == ["before"]


def test_free_space_is_not_asked_for_with_each_message(stages: Callable[..., Stage]) -> None:
    disk = Disk()
    stage = stages(MemoryLog(), keep=[("#", 0)], space=disk.space)
    client = stage.connected("c")
    asked = disk.asked
    for n in range(200):
        client.publish("kept", b"%d" % n, qos=1)
    assert disk.asked - asked < 100


def test_acks_of_a_shard_in_trouble_wait_and_the_other_shards_go_on(stages: Callable[..., Stage]) -> None:
    log = MemoryLog(shards=4)
    stage = stages(log, keep=[("#", 0)])
    waits, other = stage.connected("waits"), stage.connected("other", 4)
    stage.call(lambda: log.trouble(2, StorageError("no space left on device")))
    waits.send(Publish("bb", b"1", qos=1, packet_id=1))
    stage.until(lambda: log.shards[2].end == 1)
    waits.send(Publish("a", b"", qos=1, packet_id=2))
    other.send(Publish("a", b"", qos=1, packet_id=1))
    assert other.expect(Puback).packet_id == 1
    waits.send(Pingreq())
    assert isinstance(waits.receive(), Pingresp)  # and no PUBACK before it
    stage.call(lambda: log.trouble(2, None))
    assert [waits.expect(Puback).packet_id for _ in range(2)] == [1, 2]
    assert stage.broker.metrics.log_troubles == 1


def test_a_shard_in_trouble_refuses_more_than_memory_should_hold_and_the_others_go_on(
    stages: Callable[..., Stage],
) -> None:
    log = MemoryLog(shards=4)
    stage = stages(log, keep=[("#", 0)], limits=Limits(unwritten_bytes=100_000))
    client, old, other = stage.connected("c"), stage.connected("old", 4), stage.connected("o")
    stage.call(lambda: log.trouble(2, StorageError("no space left on device")))
    for n in range(1, 121):
        client.send(Publish("bb", b"x" * 1000, qos=1, packet_id=n))
    stage.until(lambda: stage.broker.router.refuses)
    accepted = stage.call(lambda: log.shards[2].end)
    assert 90 < accepted <= 120
    client.send(*(Publish("bb", b"x" * 1000, qos=1, packet_id=n) for n in range(121, 161)))
    stage.until(lambda: stage.broker.metrics.not_kept >= 40)
    old.send(Publish("bb", b"", qos=1, packet_id=1))
    old.expect_closed()
    other.send(Publish("a", b"", qos=1, packet_id=1), Pingreq())
    assert [type(other.receive()) for _ in range(2)] in ([Puback, Pingresp], [Pingresp, Puback])
    stage.call(lambda: log.trouble(2, None))
    answers = {packet.packet_id: packet.reason for packet in (client.expect(Puback) for _ in range(160))}
    taken = [n for n, reason in answers.items() if reason is Reason.SUCCESS]
    assert len(taken) == log.shards[2].committed
    assert set(answers.values()) == {Reason.SUCCESS, Reason.QUOTA_EXCEEDED}
    client.publish("bb", b"", qos=1)
