"""Replay of what the log has no more: from the cold tier, then the log, then live."""

import asyncio
import threading

import pytest
from tests.memory_log import MemoryLog
from tests.parts import numbers
from tests.replays import KEEP, KEEP_ALL, filled, replay
from tests.restarts import Disk, Running
from tests.stages import Stage

from everlog.base import StorageError
from everlog.broker import Limits
from everlog.mqtt import Properties, Publish, Reason, Suback, Subscribe, Subscription
from everlog.store import Found, Lost, ReadResult
from everlog.topics import matches


class Table:
    """A cold tier in memory: what `take` copied out of a log."""

    def __init__(self, shards=1):
        self.batches = [[] for _ in range(shards)]
        self.newer = [[] for _ in range(shards)]
        self.reads = 0
        self.failing = False
        self.gate = threading.Event()
        self.gate.set()
        self.asked = threading.Event()

    def take(self, log, count=1 << 30, *, seen=True):
        """Copy the first batches of each shard; not `seen` before the next refresh."""
        for shard, here in zip(log.shards, self.batches if seen else self.newer, strict=True):
            here[:] = shard.batches[:count]

    def refresh(self):
        for here, newer in zip(self.batches, self.newer, strict=True):
            if newer:
                here[:] = newer

    def start(self, shard):
        self._check()
        return self.batches[shard][0].base_offset if self.batches[shard] else 0

    def end(self, shard):
        return self.batches[shard][-1].end_offset if self.batches[shard] else 0

    def position_at(self, shard, time_us):
        rows = (row for records in self.batches[shard] for row in records.rows())
        return next((row[0] for row in rows if row[1] >= time_us), self.end(shard))

    def read(self, shard, offset, filters, max_records, max_bytes):
        self._check()
        self.reads += 1
        found = []
        lost = (Lost(shard, offset, self.start(shard)),) if offset < self.start(shard) else ()
        for records in self.batches[shard]:
            rows = [
                row[0] - records.base_offset
                for row in records.rows()
                if row[0] >= offset and any(matches(flt, records.table.name(row[2]).decode()) for flt in filters)
            ]
            if rows:
                column = bytearray(b"".join(row.to_bytes(4, "little") for row in rows))
                found.append(Found(shard, records, column, 0, len(rows)))
        return ReadResult(found, (self.end(shard),), True, lost)

    def close(self):
        """Nothing to let go of."""

    def _check(self):
        self.asked.set()
        assert self.gate.wait(20)
        if self.failing:
            raise StorageError("the bucket is gone")


@pytest.fixture
def made():
    stages = []

    def make(log, table, **settings):
        stages.append(Stage(log, keep=KEEP_ALL, cold=table, **settings))
        return stages[-1]

    yield make
    for stage in stages:
        stage.close()


def moved(made, *, count=10, cold=7, log_from=5, shards=1, **settings):
    """A stage whose first messages are in the table and whose first are gone from the log."""
    log, table = MemoryLog(shards), Table(shards)
    stage = made(log, table, **settings)
    filled(stage, count)
    stage.call(lambda: table.take(log, cold))
    stage.call(lambda: [shard.drop(log_from) for shard in log.shards])
    return stage, table, log


@pytest.mark.parametrize(
    ("begin", "first"),
    [
        ("earliest", 0),
        ("0:3", 3),
        ("0:5", 5),
        ("0:6", 6),
        ("latest", 10),
        ("-7d", 0),
        ("2023-11-14T22:16:20Z", 3),
        ("-2m", 8),
    ],
)
def test_history_begins_in_the_table_and_goes_on_in_the_log_and_live(made, begin, first):
    stage, _, _ = moved(made)
    client = stage.connected("c")
    said = replay(client, begin, "t")
    assert (said.reasons, said.properties.reason_string) == ((Reason.GRANTED_QOS_1,), None)
    filled(stage, 3, first=10)
    assert client.payloads(13 - first) == numbers(first, 13)
    client.expect_nothing()
    assert stage.inside.lost == 0


def test_a_small_window_reads_the_table_once(made):
    stage, table, _ = moved(made)
    client = stage.connected("c", receive_maximum=1)
    replay(client, "earliest", "t")
    assert client.payloads(10) == numbers(10)
    assert table.reads == 1
    stage.until(lambda: stage.inside.is_cold_idle)  # nothing of it is kept behind


def test_only_what_matches_is_read(made):
    log, table = MemoryLog(), Table()
    stage = made(log, table)
    filled(stage, 3, "a")
    filled(stage, 3, "b", first=3)
    stage.call(lambda: table.take(log))
    stage.call(lambda: log.shards[0].drop(6))
    client = stage.connected("c")
    replay(client, "earliest", "b")
    assert client.payloads(3) == ["3", "4", "5"]
    client.expect_nothing()


def test_what_neither_has_is_counted_and_the_rest_comes(made):
    stage, _, _ = moved(made, cold=3, log_from=6)
    client = stage.connected("c")
    replay(client, "earliest", "t")
    assert client.payloads(7) == [*numbers(3), *numbers(6, 10)]
    client.expect_nothing()
    assert stage.inside.lost == 3


def test_the_table_is_looked_at_anew_before_anything_is_given_up(made):
    stage, table, log = moved(made, cold=3, log_from=3)
    client = stage.connected("c", receive_maximum=1)
    replay(client, "earliest", "t")
    first = client.expect(Publish)
    stage.call(lambda: table.take(log, 3, seen=False))  # 3, 4 and 5, behind what it has
    table.newer[0][:] = [*table.batches[0], *table.newer[0]]
    stage.call(lambda: log.shards[0].drop(3))
    client.acknowledge(first)
    assert client.payloads(9) == numbers(1, 10)
    assert stage.inside.lost == 0


def test_a_position_that_the_table_has_no_more_is_said_to_be_lost(made):
    stage, table, _ = moved(made)
    del table.batches[0][:2]
    client = stage.connected("c")
    said = replay(client, "0:1", "t")
    assert said.properties.reason_string == "no longer kept: 0:1 to 0:1"
    assert said.properties.user_properties[0] == ("everlog-begin", "0:2")
    assert client.payloads(8) == numbers(2, 10)
    assert stage.inside.lost == 1


def test_others_are_served_while_the_table_is_read(made):
    stage, table, _ = moved(made)
    table.gate.clear()
    client, other = stage.connected("c"), stage.connected("other")
    client.send(Subscribe(9, (Subscription("t", 1),), Properties(user_properties=(("everlog-from", "earliest"),))))
    assert table.asked.wait(20)
    other.subscribe("t", qos=1)
    filled(stage, 2, first=10)
    assert other.payloads(2) == ["10", "11"]
    client.expect_nothing()
    table.gate.set()
    assert client.expect(Suback).packet_id == 9
    assert client.payloads(12) == numbers(12)


def test_a_client_that_has_left_meanwhile_is_not_subscribed(made):
    stage, table, _ = moved(made)
    table.gate.clear()
    client = stage.connected("c")
    client.send(Subscribe(9, (Subscription("t", 1),), Properties(user_properties=(("everlog-from", "earliest"),))))
    assert table.asked.wait(20)
    client.close()
    stage.offline("c")
    again = stage.connected("c")
    table.gate.set()
    again.expect_nothing()
    assert stage.inside.sessions["c"].subscriptions == {}


def test_a_table_that_can_not_be_read_refuses_the_replay_and_nothing_else(made):
    stage, table, _ = moved(made)
    table.failing = True
    client = stage.connected("c")
    said = replay(client, "earliest", "t")
    assert said.reasons == (Reason.UNSPECIFIED_ERROR,)
    assert said.properties.reason_string == "history can't be read now"
    assert replay(client, "-2m", "t").reasons == (Reason.GRANTED_QOS_1,)  # the log has that
    assert client.payloads(2) == ["8", "9"]


def test_very_many_questions_of_one_client_are_not_all_asked(made):
    stage, table, _ = moved(made)
    table.gate.clear()
    client = stage.connected("c")
    asked = Properties(user_properties=(("everlog-from", "earliest"),))
    client.send(*(Subscribe(number, (Subscription(f"t{number}", 1),), asked) for number in range(1, 31)))
    refused = [client.expect(Suback) for _ in range(14)]
    assert {one.reasons for one in refused} == {(Reason.UNSPECIFIED_ERROR,)}
    table.gate.set()
    assert {client.expect(Suback).reasons for _ in range(16)} == {(Reason.GRANTED_QOS_1,)}
    assert len(stage.inside.sessions["c"].subscriptions) == 16


def test_a_read_that_fails_is_tried_again(made):
    stage, table, _ = moved(made)
    client = stage.connected("c", receive_maximum=1)
    stage.call(lambda: setattr(table, "failing", True))
    stage.call(lambda: setattr(table, "start", lambda shard: 0))
    replay(client, "0:0", "t")
    stage.until(lambda: stage.inside.cold_failures)
    table.failing = False
    assert client.payloads(10) == numbers(10)  # asked again by the broker's own beat


def test_what_was_under_way_from_the_table_is_sent_again_after_a_reconnect(made):
    stage, _, _ = moved(made)
    client = stage.connected("c", **KEEP, receive_maximum=3)
    replay(client, "earliest", "t", position=True)
    assert [client.expect(Publish).payload for _ in range(3)] == [b"0", b"1", b"2"]
    client.close()
    stage.offline("c")
    client = stage.connected("c", **KEEP)
    found = [client.message() for _ in range(10)]
    assert [one.payload.decode() for one in found] == numbers(10)
    assert [one.dup for one in found] == [True] * 3 + [False] * 7
    assert dict(found[1].properties.user_properties)["everlog-position"] == "0:1"
    client.expect_nothing()


def test_nothing_under_way_is_given_up_because_the_table_can_not_be_read_now(made):
    stage, table, _ = moved(made)
    client = stage.connected("c", **KEEP, receive_maximum=3)
    replay(client, "earliest", "t")
    assert [client.expect(Publish).payload for _ in range(3)] == [b"0", b"1", b"2"]
    client.close()
    stage.offline("c")
    table.failing = True
    client = stage.connected("c", **KEEP)
    stage.until(lambda: stage.inside.cold_failures)
    client.expect_nothing()
    table.failing = False
    found = [client.message() for _ in range(10)]
    assert [one.payload.decode() for one in found] == numbers(10)
    assert [one.dup for one in found] == [True] * 3 + [False] * 7


def test_replays_beyond_the_limit_wait_their_turn(made):
    log, table = MemoryLog(), Table()
    stage = made(log, table, limits=Limits(cold_bytes=2 << 20))  # one result at a time
    filled(stage, 10)
    stage.call(lambda: table.take(log, 7))
    stage.call(lambda: log.shards[0].drop(5))
    table.gate.clear()
    clients = [stage.connected(f"c{number}") for number in range(5)]
    asked = Properties(user_properties=(("everlog-from", "0:1"),))
    table.gate.set()
    for client in clients:
        client.send(Subscribe(9, (Subscription("t", 1),), asked))
    for client in clients:
        client.expect(Suback)
        assert client.payloads(9) == numbers(1, 10)
    assert stage.inside.cold_waits > 0
    stage.until(lambda: stage.inside.is_cold_idle)


def test_a_client_that_does_not_take_its_replay_keeps_nobody_from_theirs(made):
    log, table = MemoryLog(), Table()
    stage = made(log, table, limits=Limits(cold_bytes=2 << 20))
    filled(stage, 10)
    stage.call(lambda: table.take(log, 7))
    stage.call(lambda: log.shards[0].drop(5))
    deaf = stage.connected("deaf", receive_maximum=1)
    replay(deaf, "earliest", "t")
    first = deaf.expect(Publish)  # and no acknowledgement: what was read for it waits
    client = stage.connected("c")
    replay(client, "earliest", "t")
    assert client.payloads(10) == numbers(10)
    deaf.acknowledge(first)
    assert deaf.payloads(9) == numbers(1, 10)
    assert stage.inside.lost == 0


def test_what_is_looked_up_to_be_sent_again_waits_its_turn_too(made):
    stage, _, _ = moved(made, limits=Limits(cold_bytes=2 << 20))
    deaf = stage.connected("deaf", receive_maximum=1)
    replay(deaf, "earliest", "t")
    client = stage.connected("c", **KEEP, receive_maximum=3)
    replay(client, "earliest", "t")
    assert [client.expect(Publish).payload for _ in range(3)] == [b"0", b"1", b"2"]
    client.close()
    stage.offline("c")
    other = stage.connected("other", receive_maximum=1)
    replay(other, "earliest", "t")
    assert other.expect(Publish).payload == b"0"
    client = stage.connected("c", **KEEP)
    found = [client.message() for _ in range(10)]
    assert [one.payload.decode() for one in found] == numbers(10)
    assert [one.dup for one in found] == [True] * 3 + [False] * 7


def test_a_replay_from_the_table_goes_on_after_a_crash():
    async def scenario():
        disk, table = Disk(), Table()
        async with Running(disk, keep=KEEP_ALL, cold=table) as first:
            publisher = await first.client("p", clean=True, expiry=0)
            for number in range(8):
                publisher.send(Publish("t", str(number).encode(), 1, packet_id=number + 1))
                await publisher.receive()
            table.take(disk.log, 6)
            disk.log.shards[0].drop(5)
            client = await first.client("c", answer=True)
            asked = Properties(user_properties=(("everlog-from", "earliest"),))
            client.send(Subscribe(1, (Subscription("t", 1),), asked))
            await client.expect(Suback)
            assert [one.payload for one in await client.publishes(8)] == [str(n).encode() for n in range(8)]
            await first.saved()
            left = disk.after_crash()
            left.log.shards[0].start = disk.log.shards[0].start
        async with Running(left, keep=KEEP_ALL, cold=table) as second:
            client = await second.client("c")
            again = await client.publishes(8)
            assert [one.payload for one in again] == [str(n).encode() for n in range(8)]
            assert all(one.dup for one in again)
            await client.nothing_more()

    asyncio.run(scenario())
