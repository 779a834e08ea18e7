"""The disk is full or fails while the log is written: who waits is told, nothing acknowledged is lost."""

import errno
from random import Random

import pytest
from tests.shard_logs import append, commit, numbered, rows, small
from tests.simulated_disk import SimulatedDisk

from everlog.base import StorageError
from everlog.commitlog import ShardLog
from everlog.store import TopicClasses

DIRECTORY = "data/shard-0"


def opened(disk: SimulatedDisk, **changes: object) -> ShardLog:
    return ShardLog.open(disk, DIRECTORY, small(**changes), background=False, random_bytes=Random(1).randbytes)


def failing(disk: SimulatedDisk, kind: str, suffix: str, number: int) -> None:
    disk.fault = lambda k, path: number if k == kind and path.endswith(suffix) else None


def healed(disk: SimulatedDisk) -> None:
    disk.fault = lambda kind, path: None


FAULTS = [
    ("write", ".log", errno.ENOSPC),
    ("write", ".log", errno.EIO),
    ("sync", ".log", errno.ENOSPC),
    ("sync", ".log", errno.EIO),
]


@pytest.mark.parametrize(("kind", "suffix", "number"), FAULTS)
@pytest.mark.parametrize("crash", [False, True])
def test_a_failed_commit_is_refused_and_takes_nothing_with_it(kind: str, suffix: str, number: int, crash: bool) -> None:
    disk = SimulatedDisk(Random(1))
    log = opened(disk)
    commit(log, numbered(4))
    kept = rows(log)
    failing(disk, kind, suffix, number)
    told: list[StorageError] = []
    log.on_failure = lambda _, failure: told.append(failure)
    append(log, numbered(3, 4))
    log.commit_step()
    assert log.committed == 4
    with pytest.raises(StorageError, match="writing to data/shard-0 failed") as failure:
        log.wait_committed(7)
    assert "read-only until it is reopened" in str(failure.value)
    assert told == [log.failure]
    healed(disk)
    with pytest.raises(StorageError):
        append(log, numbered(1))
    assert rows(log) == kept
    log.close()
    if crash:
        disk.crash()
    again = opened(disk)
    assert rows(again)[:4] == kept
    assert again.failure is None
    commit(again, numbered(1, 100))
    assert rows(again)[-1][2] == b"payload 100"


def test_a_failed_sync_is_not_tried_again() -> None:
    disk = SimulatedDisk(Random(1))
    log = opened(disk)
    commit(log, numbered(2))
    syncs: list[str] = []

    def fault(kind: str, path: str) -> int | None:
        if kind == "sync" and path.endswith(".log"):
            syncs.append(path)
            append(log, numbered(1, 9))  # gathers while the group is written
            return errno.EIO
        return None

    disk.fault = fault
    append(log, numbered(2, 2))
    log.commit_step()
    assert not log.commit_step()
    assert not log.seal_step()
    log.close()
    assert len(syncs) == 1


def test_what_a_failed_sync_forgot_is_written_again_before_it_counts() -> None:
    disk = SimulatedDisk(Random(1))
    log = opened(disk)
    commit(log, numbered(2))
    failing(disk, "sync", ".log", errno.EIO)
    append(log, numbered(2, 2))
    log.commit_step()
    healed(disk)
    log.close()
    again = opened(disk)
    seen = rows(again)
    disk.crash()
    assert rows(opened(disk)) == seen


@pytest.mark.parametrize("kind", ["create", "write", "sync", "sync_directory"])
def test_a_segment_that_can_not_be_created_fails_the_commit_that_needs_it(kind: str) -> None:
    disk = SimulatedDisk(Random(1))
    log = opened(disk, segment_bytes=200)
    commit(log, numbered(5))
    suffix = "" if kind == "sync_directory" else ".log"
    failing(disk, kind, suffix, errno.ENOSPC)
    append(log, numbered(1, 5))
    log.commit_step()
    assert (log.committed, log.failure is None) == (5, False)
    healed(disk)
    log.close()
    disk.crash()
    again = opened(disk, segment_bytes=200)
    assert rows(again)[:5] == [(n, b"t/%d" % (n % 5), b"payload %d" % n) for n in range(5)]
    commit(again, numbered(1, 50))
    assert rows(again)[-1][2] == b"payload 50"


@pytest.mark.parametrize("what", ["plan_retention", "run_retention", "thin"])
def test_retention_that_can_not_read_says_so_and_takes_nothing(what: str) -> None:
    disk = SimulatedDisk(Random(1))
    log = opened(disk, segment_bytes=500)
    for n in range(6):
        commit(log, numbered(3, 3 * n))
    kept = rows(log)
    log.close()
    classes = TopicClasses([("t/1", None)])
    log = ShardLog.open(disk, DIRECTORY, small(segment_bytes=500, retention_us=1), background=False, classes=classes)
    for kind in ("open", "read"):
        disk.fault = lambda k, path, kind=kind: errno.EIO if k == kind else None
        with pytest.raises(StorageError, match="data/shard-0 failed"):
            getattr(log, what)(1 << 50)
        healed(disk)
    assert rows(log) == kept


@pytest.mark.parametrize("suffix", [".idx.tmp", ".log.tmp"])
@pytest.mark.parametrize("kind", ["create", "write", "sync", "rename"])
def test_a_seal_that_fails_leaves_the_segment_as_it_was(kind: str, suffix: str) -> None:
    disk = SimulatedDisk(Random(1))
    log = opened(disk, segment_bytes=500, merge_below=100)
    for n in range(6):
        commit(log, numbered(1, n))
    kept = rows(log)
    failing(disk, kind, suffix, errno.ENOSPC)
    while log.seal_step():
        pass
    assert log.statistics().seal_failures
    assert rows(log) == kept
    commit(log, numbered(1, 6))
    healed(disk)
    log.close()
    again = opened(disk, segment_bytes=500, merge_below=100)
    assert not [name for name in disk.list(DIRECTORY) if name.endswith(".tmp")]
    while again.seal_step():
        pass
    assert again.statistics().seal_failures == ()
    assert rows(again)[:6] == kept


def test_a_failed_mark_stops_the_log_but_not_its_readers() -> None:
    disk = SimulatedDisk(Random(1))
    log = opened(disk)
    commit(log, numbered(2))
    failing(disk, "write", "mark", errno.EIO)
    append(log, numbered(1, 2))
    log.commit_step()
    assert log.failure is not None
    assert len(rows(log)) == 2


def test_a_directory_that_can_not_be_opened_says_so_and_releases_its_lock() -> None:
    disk = SimulatedDisk(Random(1))
    failing(disk, "create", "mark", errno.EACCES)
    with pytest.raises(StorageError, match="could not be opened"):
        opened(disk)
    healed(disk)
    opened(disk).close()


@pytest.mark.parametrize("durability", ["memory", "flush", "fsync"])
@pytest.mark.parametrize(("kind", "suffix"), [("sync", ".log"), ("sync", "mark"), ("write", "mark")])
def test_a_close_that_fails_says_so_and_does_not_pretend_to_be_clean(durability: str, kind: str, suffix: str) -> None:
    disk = SimulatedDisk(Random(1))
    log = opened(disk, durability=durability)
    commit(log, numbered(3))
    failing(disk, kind, suffix, errno.EIO)
    with pytest.raises(StorageError, match="failed"):
        log.close()
    log.close()
    with pytest.raises(StorageError):
        append(log, numbered(1))
    healed(disk)
    again = opened(disk, durability=durability)
    assert [row[0] for row in rows(again)] == [0, 1, 2]
    assert again.end >= 3
    again.close()


def test_records_that_a_close_can_not_commit_are_reported() -> None:
    disk = SimulatedDisk(Random(1))
    log = opened(disk)
    commit(log, numbered(3))
    append(log, numbered(1, 3))
    failing(disk, "write", ".log", errno.ENOSPC)
    with pytest.raises(StorageError, match="No space left"):
        log.close()
    assert log.committed == 3
