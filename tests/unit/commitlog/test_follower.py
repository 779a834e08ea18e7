"""Reading beside a writer: committed data only, across rolls, merges, retention and restarts of the writer."""

from random import Random

import pytest
from tests.shard_logs import DIRECTORY, append, commit, numbered, opened, rows, small
from tests.simulated_disk import SimulatedDisk

from everlog.base import StorageError
from everlog.commitlog import ShardLog
from everlog.commitlog.paths import segment_path

MARK = f"{DIRECTORY}/mark"


def reading(disk: SimulatedDisk) -> ShardLog:
    return ShardLog.open(disk, DIRECTORY, small(), writable=False)


def test_a_reader_sees_each_commit_when_it_looks_again() -> None:
    disk = SimulatedDisk(Random(1))
    log = opened(disk, small(segment_bytes=500))
    reader = reading(disk)
    assert (reader.committed, rows(reader)) == (0, [])
    for n in range(20):
        append(log, numbered(2, 2 * n))
        assert reader.refresh() == 2 * n
        log.commit_step()
        assert len(rows(reader)) == 2 * n
        assert reader.refresh() == reader.end == 2 * n + 2
        assert rows(reader) == rows(log)
        if n % 5 == 4:
            log.seal_step()
    assert reader.damage == []


def test_written_and_not_yet_synced_is_not_seen() -> None:
    disk = SimulatedDisk(Random(1))
    log = opened(disk)
    commit(log, numbered(2))
    reader = reading(disk)
    seen: list[int] = []

    def look(kind: str, path: str) -> None:
        if kind == "sync" and path.endswith(".log"):
            disk.fault = lambda kind, path: None
            seen.append(reader.refresh())
            assert len(rows(reader)) == 2
            assert reader.segments()[0].end_offset == 2
            assert len(reader.segments()[0].batches()) == 1

    disk.fault = look
    commit(log, numbered(2, 2))
    assert seen == [2]
    assert reader.refresh() == 4


def test_a_reader_that_looks_rarely_misses_nothing() -> None:
    disk = SimulatedDisk(Random(1))
    log = opened(disk, small(segment_bytes=400, merge_below=50))
    reader = reading(disk)
    for n in range(60):
        commit(log, numbered(1, n))
        if n % 3 == 0:
            log.seal_step()
        if n % 17 == 0:
            reader.refresh()
            assert rows(reader) == rows(log)
    reader.refresh()
    assert rows(reader) == rows(log)
    assert [v.base_offset for v in reader.segments()] == [v.base_offset for v in log.segments()]
    assert reader.offset_at(0) == 0


def test_a_reader_goes_on_behind_what_retention_removed() -> None:
    disk = SimulatedDisk(Random(1))
    log = opened(disk, small(segment_bytes=400, retention_bytes=800))
    for n in range(4):
        commit(log, numbered(1, n))
    reader = reading(disk)
    for n in range(4, 30):
        commit(log, numbered(1, n))
    start = log.run_retention(0).start
    assert rows(reader, 0)[0][0] in (0, 2, start), "what is open stays readable"
    reader.refresh()
    assert reader.start == start
    assert rows(reader, 0) == rows(log)


def test_a_reader_follows_a_writer_that_was_restarted() -> None:
    disk = SimulatedDisk(Random(1))
    log = opened(disk)
    commit(log, numbered(2))
    reader = reading(disk)
    append(log, numbered(3, 2))
    log.close()
    log = opened(disk)
    commit(log, numbered(1, 5))
    assert reader.refresh() == 6
    assert rows(reader) == rows(log)
    disk.life += 1
    disk.locks.clear()
    log = opened(disk, not_below=50)
    commit(log, numbered(1, 6))
    reader = reading(disk)
    assert [row[0] for row in rows(reader)] == [*range(6), 50]


def test_without_a_mark_all_segments_but_the_last_are_read() -> None:
    disk = SimulatedDisk(Random(1))
    log = opened(disk, small(segment_bytes=400))
    for n in range(10):
        commit(log, numbered(1, n))
    last = log.segments()[-1].base_offset
    log.close()
    for data in (b"", b"\xff" * 1096):
        disk.put(MARK, data)
        reader = reading(disk)
        assert (reader.committed, [row[0] for row in rows(reader)]) == (last, list(range(last)))


def test_a_segment_that_is_just_being_created_is_none_yet() -> None:
    disk = SimulatedDisk(Random(1))
    log = opened(disk, small())
    path = segment_path(DIRECTORY, 0)
    disk.put(path, bytes(2000))
    reader = reading(disk)
    assert (reader.committed, rows(reader), reader.damage) == (0, [], [])
    disk.unlink(path)
    commit(log, numbered(3))
    assert (reader.refresh(), len(rows(reader)), reader.damage) == (3, 3, [])


def test_a_reader_of_nothing_says_so() -> None:
    disk = SimulatedDisk(Random(1))
    reader = reading(disk)
    assert (reader.start, reader.committed, rows(reader)) == (0, 0, [])
    opened(disk).close()
    assert reader.refresh() == 0


def test_damage_below_the_mark_is_reported_and_skipped() -> None:
    disk = SimulatedDisk(Random(1))
    log = opened(disk)
    for n in range(4):
        commit(log, numbered(2, 2 * n, topics=2))
    path = f"{DIRECTORY}/{0:020d}.log"
    position = log.segments()[0].batches().positions[2] - 40
    data = bytearray(disk.files()[path])
    data[position] ^= 1
    disk.put(path, bytes(data))
    reader = reading(disk)
    assert [row[0] for row in rows(reader)] == [0, 1, 4, 5, 6, 7]
    assert [(damage.path, damage.from_offset, damage.to_offset) for damage in reader.damage] == [(path, 2, 4)]


def test_a_read_error_is_an_error_and_not_the_end() -> None:
    disk = SimulatedDisk(Random(1))
    log = opened(disk)
    commit(log, numbered(2))
    disk.fault = lambda kind, path: 5 if kind == "read" else None
    with pytest.raises(StorageError, match="reading from"):
        log.read(0, 100)
