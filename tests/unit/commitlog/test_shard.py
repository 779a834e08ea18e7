"""A shard's log without threads: append, commit, read, roll, limits, closing."""

import errno
from random import Random

import pytest
from tests.messages import EXPIRY
from tests.shard_logs import DIRECTORY, Row, append, columns_of, commit, numbered, opened, rows, rows_of, small
from tests.simulated_disk import SimulatedDisk

from everlog.base import Records, StorageError, TopicTable, Unavailable
from everlog.commitlog import LogSettings, ShardLog


def test_a_new_log_is_empty() -> None:
    log = opened()
    assert (log.start, log.committed, log.end) == (0, 0, 0)
    assert (log.read(0, 100), log.segments(), log.damage) == ([], [], [])
    assert log.offset_at(0) == 0
    assert not log.commit_step()
    assert not log.seal_step()


def test_readers_see_only_what_is_committed() -> None:
    log = opened()
    assert append(log, numbered(3)) == 0
    assert (log.end, log.committed, log.read(0, 100)) == (3, 0, [])
    log.commit_step()
    assert (log.end, log.committed) == (3, 3)
    assert rows(log) == [(n, b"t/%d" % n, b"payload %d" % n) for n in range(3)]


def test_a_batch_that_is_written_and_not_yet_published_is_not_read() -> None:
    log = opened()
    commit(log, numbered(2))
    commit(log, numbered(2, 2))
    assert log._committer is not None
    log._committer.committed = 2
    assert [row[0] for row in rows(log)] == [0, 1]


def test_properties_flags_and_times_come_back() -> None:
    log, table = opened(), TopicTable()
    log.append(columns_of(numbered(1), table, EXPIRY), 0, 1, 77, table)
    log.commit_step()
    ((offset, time, _, flags, properties, payload),) = log.read(0, 100)[0].rows()
    assert (offset, time, flags, properties, payload) == (0, 77, 0x02, EXPIRY, b"payload 0")


def test_only_wanted_messages_are_taken() -> None:
    log, table = opened(), TopicTable()
    columns = columns_of([(b"a", b"1"), (b"b", b"2"), (b"a", b"3")], table)
    routes = bytearray(8)
    routes[4 * table.lookup(b"a") + 1] = 5
    assert log.append(columns, 0, 3, 1, table, routes, 5) == 2
    log.commit_step()
    assert [row[2] for row in rows(log)] == [b"1", b"3"]


@pytest.mark.parametrize("tail_bytes", [0, 1 << 20])
def test_a_read_begins_with_the_batch_that_holds_the_offset(tail_bytes: int) -> None:
    log = opened(settings=small(tail_bytes=tail_bytes))
    for n in range(0, 30, 3):
        commit(log, numbered(3, n))
    for offset in range(30):
        batches = log.read(offset, 1)
        assert len(batches) == 1
        assert batches[0].base_offset == offset - offset % 3
    assert len(log.read(0, 1 << 20)) > 1
    assert rows(log, 7) == rows(log)[6:]


def test_a_segment_is_left_when_it_is_full_and_stands_alone() -> None:
    disk = SimulatedDisk(Random(1))
    log = opened(disk, small(segment_bytes=600))
    for n in range(12):
        commit(log, numbered(2, 2 * n, topics=2))
    views = log.segments()
    assert len(views) > 2
    assert [view.base_offset for view in views[1:]] == [view.end_offset for view in views[:-1]]
    for view in views:
        (first, *_) = view.read(0, 1)
        assert first.new_names() == [b"t/0", b"t/1"]
        assert [view.table.name(topic) for topic in range(2)] == [b"t/0", b"t/1"]
        assert view.read_at(0, 4) == b"EVLS"
        assert view.size_bytes == len(view.read_at(0, 1 << 20))


def test_an_open_batch_is_closed_at_its_limit_and_committed_in_one_group() -> None:
    log = opened(settings=small(batch_bytes=300, segment_bytes=100_000))
    for n in range(20):
        append(log, numbered(2, 2 * n))
    log.commit_step()
    (view,) = log.segments()
    assert len(view.batches()) > 3
    assert log.statistics().commits == 1
    assert len(rows(log)) == 40


def test_a_batch_never_spans_more_than_its_times_can_say() -> None:
    log = opened()
    append(log, numbered(1), now_us=5)
    append(log, numbered(1, 1), now_us=5 + (1 << 33))
    log.commit_step()
    assert [(r.first_time, r.last_time) for r in log.read(0, 10_000)] == [(5, 5), (5 + (1 << 33),) * 2]


def test_a_segment_is_left_when_it_is_old() -> None:
    log = opened(settings=small(segment_us=1000, segment_bytes=1 << 20))
    for time in (10, 500, 1010, 1011):
        commit(log, numbered(1), time)
    assert [view.base_offset for view in log.segments()] == [0, 3]


def test_times_never_go_back_not_even_over_a_restart() -> None:
    disk = SimulatedDisk(Random(1))
    log = opened(disk)
    commit(log, numbered(1), 500)
    log.close()
    log = opened(disk)
    commit(log, numbered(1), 400)
    assert [r.first_time for r in log.read(0, 10_000)] == [500, 500]


def test_a_time_finds_its_first_offset() -> None:
    log = opened(settings=small(segment_bytes=400))
    for n in range(20):
        append(log, numbered(1, 2 * n), 1000 + 10 * n)
        commit(log, numbered(1, 2 * n + 1), 1005 + 10 * n)
    assert [log.offset_at(t) for t in (0, 1000, 1001, 1005, 1006, 1100, 1195, 1196)] == [0, 0, 1, 1, 2, 20, 39, 40]


def test_a_time_finds_what_is_in_no_file_yet() -> None:
    log = opened(settings=small(durability="memory"))
    commit(log, numbered(2), 1000)
    append(log, numbered(2), 1010)
    log._committer.ask(log.end)  # type: ignore[union-attr]
    assert log.committed == 4
    assert [log.offset_at(t) for t in (0, 1000, 1001, 1010, 1011)] == [0, 0, 2, 2, 4]


def test_appends_are_refused_when_too_much_waits() -> None:
    log = opened(settings=small(pending_bytes=500))
    append(log, numbered(20))
    with pytest.raises(Unavailable, match="wait to be written"):
        append(log, numbered(1))
    log.commit_step()
    append(log, numbered(1, 20))
    log.commit_step()
    assert log.statistics().pending_bytes == 0
    assert len(rows(log)) == 21


def test_not_below_jumps_over_offsets_that_others_hold() -> None:
    disk = SimulatedDisk(Random(1))
    log = opened(disk)
    commit(log, numbered(2))
    log.close()
    log = opened(disk, not_below=100)
    assert (log.end, log.committed) == (100, 100)
    commit(log, numbered(1, 2))
    assert [row[0] for row in rows(log)] == [0, 1, 100]
    assert [row[0] for row in rows(log, 50)] == [100]
    log.close()
    assert opened(disk).end == 101


@pytest.mark.parametrize("durability", ["memory", "flush", "fsync"])
def test_a_clean_stop_loses_nothing_at_any_durability(durability: str) -> None:
    for seed in range(10):
        disk = SimulatedDisk(Random(seed))
        log = opened(disk, small(durability=durability, segment_bytes=500))
        for n in range(8):
            commit(log, numbered(2, 2 * n))
        append(log, numbered(1, 16))
        kept = [(n, b"t/%d" % (n % 5), b"payload %d" % n) for n in range(17)]
        log.close()
        log.close()
        disk.crash()
        again = opened(disk, small(durability=durability))
        assert rows(again) == kept
        assert (again.end, again.damage) == (17, [])


def test_what_was_committed_at_memory_level_is_readable_before_it_is_written() -> None:
    disk = SimulatedDisk(Random(1))
    log = opened(disk, small(durability="memory"))
    seen: list[int] = []
    log.on_commit = lambda _, committed: seen.append(len(rows(log)))
    disk.fault = lambda kind, path: 5 if kind == "create" and path.endswith(".log") else None
    append(log, numbered(3))
    log.commit_step()
    assert seen == [3]
    assert (log.committed, len(rows(log))) == (3, 3)
    assert log.trouble is not None
    disk.fault = lambda kind, path: None
    log.commit_step()
    assert (log.trouble, seen, len(rows(log))) == (None, [3], 3)


def test_a_closed_or_read_only_log_takes_nothing() -> None:
    disk = SimulatedDisk(Random(1))
    log = opened(disk)
    commit(log, numbered(1))
    reader = ShardLog.open(disk, DIRECTORY, writable=False)
    for action in (
        lambda: append(reader, numbered(1)),
        reader.commit_step,
        reader.seal_step,
        reader.repair,
        lambda: reader.run_retention(0),
        lambda: reader.wait_committed(9),
    ):
        with pytest.raises(Unavailable, match="read-only"):
            action()
    reader.commit()
    reader.close()
    log.close()
    with pytest.raises(Unavailable, match="closed"):
        append(log, numbered(1))
    with pytest.raises(Unavailable, match="closed"):
        log.wait_committed(9)


def test_a_second_writer_is_refused() -> None:
    disk = SimulatedDisk(Random(1))
    log = opened(disk)
    with pytest.raises(StorageError, match="held by"):
        opened(disk)
    log.close()
    opened(disk).close()


def test_the_committed_offset_is_announced_after_it_can_be_read() -> None:
    log = opened()
    seen: list[tuple[int, int]] = []
    log.on_commit = lambda which, committed: seen.append((committed, len(rows_of(which.read(0, 10_000)))))
    for n in range(3):
        commit(log, numbered(2, 2 * n))
    assert seen == [(2, 2), (4, 4), (6, 6)]


def test_retention_removes_the_oldest_segments_and_their_side_files() -> None:
    disk = SimulatedDisk(Random(1))
    log = opened(disk, small(segment_bytes=500, retention_bytes=1200))
    for n in range(20):
        commit(log, numbered(2, 2 * n))
    while log.seal_step():
        pass
    held = log.segments()
    held[1].batches()
    plan = log.run_retention(0)
    assert log.start == plan.start == rows(log)[0][0]
    assert [name for name in disk.list(DIRECTORY) if name < f"{plan.start:020d}"] == ["LOCK"][:0]
    assert log.statistics().removed == len(plan.remove)
    assert held[1].read(0, 1)[0].base_offset == held[1].base_offset, "who reads it already goes on"
    with pytest.raises(Unavailable, match="removed by retention"):
        held[0].batches()
    assert log.run_retention(0).remove == ()


def test_a_quiet_log_forgets_too() -> None:
    disk = SimulatedDisk(Random(1))
    log = opened(disk, small(retention_us=1000))
    commit(log, numbered(3), 50)
    assert log.run_retention(1050).remove == ()
    assert log.run_retention(1051).remove == (0,)
    assert (log.start, log.end, rows(log)) == (3, 3, [])
    log.close()
    disk.crash()
    log = opened(disk, small(retention_us=1000))
    assert log.end == 3
    commit(log, numbered(1, 3), 2000)
    assert [row[0] for row in rows(log)] == [3]


def test_statistics_count_what_happened() -> None:
    log = opened(settings=small(tail_bytes=1 << 20))
    commit(log, numbered(3))
    append(log, numbered(1))
    numbers = log.statistics()
    assert (numbers.start, numbers.committed, numbers.end) == (0, 3, 4)
    assert (numbers.commits, numbers.committed_records, numbers.segments, numbers.sealed) == (1, 3, 1, 0)
    assert numbers.tail_batches == 1
    assert numbers.tail_bytes > numbers.committed_bytes > 0
    assert numbers.pending_bytes > 0


def test_blocks_of_large_batches_are_used_again_and_counted() -> None:
    log = opened(settings=small(batch_bytes=8000, segment_bytes=1 << 20, tail_bytes=32_000))
    expected: list[Row] = []
    held: list[tuple[list[Records], list[Row]]] = []  # by readers that take their time
    for number in range(200):
        messages = [(b"t", bytes([number]) * 3000) for _ in range(1 + number % 3)]
        first = commit(log, messages)
        expected += [(first + n, *message) for n, message in enumerate(messages)]
        if number % 40 == 0:
            held.append((log.read(first, 1), expected[-len(messages) :]))
    assert [rows_of(batches) for batches, _ in held] == [wanted for _, wanted in held]
    assert rows(log) == expected
    block_bytes = log.statistics().block_bytes
    assert 32_000 < block_bytes <= (32_000 // 16_000 + 4) * (16_000 + 8192)
    held.clear()
    for number in range(3000):
        commit(log, numbered(1, number))
    assert log.statistics().block_bytes < block_bytes, "free blocks go when nothing large comes"


def test_at_memory_what_is_asked_for_is_committed_before_it_is_written() -> None:
    log = opened(settings=small(durability="memory"))
    commit(log, numbered(2))
    told: list[int] = []
    log.on_commit = lambda _, committed: told.append(committed)
    for n in range(1, 4):
        append(log, numbered(2, 2 * n))
        log._committer.ask(log.end)  # type: ignore[union-attr]
        assert (log.committed, log._committer.written, told[-1]) == (2 * n + 2, 2, 2 * n + 2)
        assert len(rows(log)) == 2 * n + 2
    append(log, numbered(1, 8))
    assert log.committed == 8, "nothing is that nobody has asked for"
    log.commit_step()
    assert (log.committed, log._committer.written, told) == (9, 9, [4, 6, 8, 9])


def test_at_memory_much_that_was_written_is_told_to_those_who_were_held_back_for_it() -> None:
    log = opened(settings=LogSettings(durability="memory"))
    waiting: list[int] = []
    log.on_commit = lambda _, committed: waiting.append(log.pending_bytes)
    append(log, [(b"t", bytes(100_000))])
    log._committer.ask(log.end)  # type: ignore[union-attr]
    log.commit_step()
    assert len(waiting) == 2
    assert waiting[0] > 100_000
    assert waiting[1] == 0


def test_at_memory_what_readers_saw_is_written_when_the_disk_is_well_again() -> None:
    disk = SimulatedDisk(Random(3))
    log = opened(disk, small(durability="memory"))
    commit(log, numbered(2))
    first = append(log, numbered(2, 2))

    def fail(kind: str, path: str) -> int | None:
        if kind != "write" or not path.endswith(".log"):
            return None
        if log.end == first + 2:  # and meanwhile another thread goes on
            append(log, numbered(2, 4))
            log._committer.ask(log.end)  # type: ignore[union-attr]
        return errno.EIO

    disk.fault = fail
    log.commit_step()
    assert (log.committed, log._committer.written, len(rows(log))) == (6, 2, 6)
    assert log.trouble is not None
    append(log, numbered(2, 6))
    log._committer.ask(log.end)  # type: ignore[union-attr]
    assert log.committed == 6, "in trouble nobody is told that a message is taken"
    disk.fault = lambda kind, path: None
    log.commit_step()
    log.commit_step()
    assert (log.trouble, log.committed, log._committer.written) == (None, 8, 8)
    log.close()
    assert [row[2] for row in rows(opened(disk, small(durability="memory")))] == [b"payload %d" % n for n in range(8)]
