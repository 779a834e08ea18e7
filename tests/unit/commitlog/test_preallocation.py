"""Zeros ahead of small commits: nobody takes them for damage, a complete segment has none, nor has a full disk."""

import errno
from pathlib import Path
from random import Random

import pytest
from tests.shard_logs import DIRECTORY, Message, append, commit, numbered, opened, rows, small
from tests.simulated_disk import SimulatedDisk

from everlog.commitlog import LogSettings, RealDisk, ShardLog, verify_directory

LOG = f"{DIRECTORY}/{0:020d}.log"
STEP = 4000


def ahead(**changes: object) -> LogSettings:
    return small(**{"segment_bytes": 1 << 20, "batch_bytes": 1 << 20, "preallocate_bytes": STEP, **changes})


def written(log: ShardLog) -> int:
    """Where the open segment's batches end."""
    return log.segments()[-1].size_bytes


def large(size: int) -> list[Message]:
    return [(b"t", b"x" * size)]


def test_a_file_keeps_its_length_over_small_commits() -> None:
    disk = SimulatedDisk(Random(1))
    log = opened(disk, ahead())
    lengths = set()
    for n in range(60):
        commit(log, numbered(1, n))
        lengths.add(len(disk.files()[LOG]))
        assert not any(disk.files()[LOG][written(log) :])
    assert written(log) > 2 * STEP
    assert len(lengths) == 1 + written(log) // STEP
    assert len(rows(log)) == 60


def test_every_commit_is_still_one_sync() -> None:
    disk = SimulatedDisk(Random(1))
    log = opened(disk, ahead())
    calls: list[str] = []
    disk.fault = lambda kind, path: calls.append(kind) if path == LOG else None
    for n in range(60):
        commit(log, numbered(1, n))
    assert calls.count("sync") == 60
    assert calls.count("allocate") == 1 + written(log) // STEP


def test_readers_beside_the_writer_take_zeros_for_no_damage() -> None:
    disk = SimulatedDisk(Random(1))
    log = opened(disk, ahead())
    commit(log, numbered(5))
    reader = ShardLog.open(disk, DIRECTORY, ahead(), writable=False)
    assert (rows(reader), reader.damage) == (rows(log), [])
    commit(log, numbered(5, 5))
    reader.refresh()
    assert (rows(reader), reader.damage) == (rows(log), [])
    (view,) = reader.segments()
    assert view.size_bytes == written(log) < len(disk.files()[LOG])
    assert verify_directory(disk, DIRECTORY).damage == ()


@pytest.mark.parametrize("crash", [False, True])
def test_an_unclean_stop_goes_on_where_the_batches_end(crash: bool) -> None:
    disk = SimulatedDisk(Random(1))
    log = opened(disk, ahead())
    commit(log, numbered(5))
    found, end = rows(log), written(log)
    disk.life += 1
    disk.locks.clear()
    if crash:
        disk.crash()
    again = opened(disk, ahead())
    assert (rows(again), again.end, again.damage) == (found, 5, [])
    assert len(disk.files()[LOG]) == end
    commit(again, numbered(1, 5))
    assert len(again.segments()) == 1
    assert len(disk.files()[LOG]) == end + STEP


def test_a_clean_stop_leaves_no_zeros() -> None:
    disk = SimulatedDisk(Random(1))
    log = opened(disk, ahead())
    commit(log, numbered(5))
    end = written(log)
    log.close()
    disk.crash()
    assert len(disk.files()[LOG]) == end
    assert verify_directory(disk, DIRECTORY).damage == ()


def test_a_segment_is_cut_before_the_next_is_created() -> None:
    disk = SimulatedDisk(Random(1))
    log = opened(disk, ahead(segment_us=100))
    commit(log, numbered(5), 1000)
    end = written(log)
    commit(log, numbered(1, 5), 2000)  # old enough: the segment is complete with it
    calls: list[str] = []
    disk.fault = lambda kind, path: calls.append(kind) if path.endswith(".log") else None
    commit(log, numbered(1, 6), 2001)
    assert calls[:3] == ["truncate", "sync", "create"]
    first, second = log.segments()
    assert len(disk.files()[LOG]) == first.size_bytes > end
    assert (first.end_offset, second.base_offset) == (6, 6)
    while log.seal_step():
        pass
    disk.crash()
    assert verify_directory(disk, DIRECTORY).damage == ()


@pytest.mark.parametrize(
    "changes", [{"durability": "flush"}, {"durability": "memory"}, {"preallocate_bytes": 0}, {"segment_bytes": 1000}]
)
def test_there_are_no_zeros_where_they_save_nothing(changes: dict[str, object]) -> None:
    disk = SimulatedDisk(Random(1))
    log = opened(disk, ahead(**changes))
    for n in range(3):
        commit(log, large(300))
        assert len(disk.files()[LOG]) == log.segments()[0].size_bytes, n


def test_a_large_commit_is_written_without_zeros() -> None:
    disk = SimulatedDisk(Random(1))
    log = opened(disk, ahead())
    commit(log, large(STEP))
    assert len(disk.files()[LOG]) == written(log)
    commit(log, numbered(1))
    assert len(disk.files()[LOG]) > written(log)
    commit(log, large(2 * STEP))
    assert len(disk.files()[LOG]) == written(log)


@pytest.mark.parametrize(
    ("seed", "number"), [(0, errno.ENOSPC), (1, errno.EDQUOT), (2, errno.EFBIG), (3, errno.ENOSPC)]
)
@pytest.mark.parametrize("truncates", [True, False])
def test_a_disk_without_room_for_zeros_takes_batches(seed: int, number: int, truncates: bool) -> None:
    disk = SimulatedDisk(Random(seed))  # some of the zeros are written all the same
    log = opened(disk, ahead(segment_us=100))
    refused: list[str] = []

    def fault(kind: str, path: str) -> int | None:
        if kind == "allocate":
            refused.append(path)
        return number if kind == "allocate" or (kind == "truncate" and not truncates) else None

    disk.fault = fault
    for n in range(5):
        commit(log, numbered(1, n), 1000)
    assert (log.failure, log.committed, len(refused)) == (None, 5, 1)
    if truncates:
        assert len(disk.files()[LOG]) == written(log)
    disk.fault = lambda kind, path: None
    commit(log, numbered(1, 5), 2000)
    commit(log, numbered(1, 6), 2001)
    assert len(log.segments()) == 2
    assert len(disk.files()[f"{DIRECTORY}/{6:020d}.log"]) == STEP, "the next segment tries again"
    assert verify_directory(disk, DIRECTORY).damage == ()
    assert [row[0] for row in rows(log)] == list(range(7))


def test_a_real_file_is_as_long_as_its_batches_once_it_is_closed(tmp_path: Path) -> None:
    directory = f"{tmp_path}/shard"
    log = ShardLog.open(RealDisk(), directory, background=False)
    commit(log, numbered(5))
    path = Path(f"{directory}/{0:020d}.log")
    assert path.stat().st_size == LogSettings().preallocate_bytes
    append(log, numbered(5, 5))
    log.close()
    assert path.stat().st_size == written(log)
    assert len(rows(ShardLog.open(RealDisk(), directory, writable=False))) == 10
