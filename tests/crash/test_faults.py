"""The disk is full or fails while the log is written: who waits is told, nothing acknowledged is lost, it goes on."""

import errno
from random import Random

import pytest
from tests.shard_logs import append, commit, numbered, rows, small
from tests.simulated_disk import SimulatedDisk

from everlog.base import StorageError
from everlog.commitlog import ShardLog, verify_directory
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
@pytest.mark.parametrize("durability", ["fsync", "flush", "memory"])
def test_a_log_goes_on_by_itself_when_its_disk_does(
    kind: str, suffix: str, number: int, crash: bool, durability: str
) -> None:
    disk = SimulatedDisk(Random(1))
    log = opened(disk, durability=durability)
    told: list[StorageError | None] = []
    log.on_trouble = lambda _, trouble: told.append(trouble)
    commit(log, numbered(4))
    failing(disk, kind, suffix, number)
    append(log, numbered(3, 4))
    log.commit_step()
    if durability == "fsync":
        assert (log.committed, len(rows(log))) == (4, 4)
    if kind == "sync" and durability != "fsync":
        assert told == []
        return
    append(log, numbered(2, 7))  # gathers behind what could not be written
    log.commit_step()
    with pytest.raises(StorageError, match="writing to data/shard-0 failed") as trouble:
        log.wait_committed(9)
    assert "tries again by itself" in str(trouble.value)
    assert told == [log.trouble]
    healed(disk)
    log.commit_step()
    assert (log.committed, log.trouble, told[1:]) == (9, None, [None])
    everything = [(n, b"t/%d" % (n % 5), b"payload %d" % n) for n in range(9)]
    assert rows(log) == everything
    assert rows(ShardLog.open(disk, DIRECTORY, writable=False)) == everything
    assert verify_directory(disk, DIRECTORY).damage == ()
    if crash and durability == "fsync":
        disk.crash()
    else:
        log.close()
    again = opened(disk, durability=durability)
    assert (rows(again), again.damage) == (everything, [])
    commit(again, numbered(1, 9))
    assert rows(again)[-1][2] == b"payload 9"


def test_after_a_failed_sync_everything_since_the_last_good_one_goes_into_a_new_segment() -> None:
    disk = SimulatedDisk(Random(1))
    log = opened(disk)
    commit(log, numbered(4))
    end = disk.files()[f"{DIRECTORY}/{0:020d}.log"]
    failing(disk, "sync", ".log", errno.EIO)
    append(log, numbered(3, 4))
    log.commit_step()
    healed(disk)
    log.commit_step()
    assert [(one.base_offset, one.end_offset) for one in log.segments()] == [(0, 4), (4, 7)]
    assert disk.files()[f"{DIRECTORY}/{0:020d}.log"] == end
    segment = log.segments()[1]
    assert [name for batch in segment.read(0, 1) for name in batch.new_names()] == [b"t/%d" % n for n in range(5)]
    while log.seal_step():
        pass
    log.close()
    assert [row[0] for row in rows(opened(disk))] == list(range(7))


def test_a_failed_sync_is_not_tried_again() -> None:
    disk = SimulatedDisk(Random(1))
    log = opened(disk)
    commit(log, numbered(2))
    synced: list[tuple[str, bytes]] = []

    def fault(kind: str, path: str) -> int | None:
        if kind == "sync" and path.endswith(".log"):
            synced.append((path, disk.files()[path]))
            if len(synced) == 1:
                append(log, numbered(1, 9))  # gathers while the group is written
                return errno.EIO
        return None

    disk.fault = fault
    append(log, numbered(2, 2))
    log.commit_step()
    log.commit_step()
    (first, doubtful), (cut, kept), (other, _), *_ = synced
    assert first == cut != other
    assert len(kept) < len(doubtful)
    assert doubtful.startswith(kept)
    assert [row[2] for row in rows(log)] == [b"payload %d" % n for n in (0, 1, 2, 3, 9)]


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
def test_a_segment_that_can_not_be_created_holds_up_the_commit_that_needs_it(kind: str) -> None:
    disk = SimulatedDisk(Random(1))
    log = opened(disk, segment_bytes=200)
    commit(log, numbered(5))
    suffix = "" if kind == "sync_directory" else ".log"
    failing(disk, kind, suffix, errno.ENOSPC)
    append(log, numbered(1, 5))
    log.commit_step()
    assert (log.committed, log.trouble is None) == (5, False)
    log.commit_step()
    healed(disk)
    log.commit_step()
    everything = [(n, b"t/%d" % (n % 5), b"payload %d" % n) for n in range(6)]
    assert (log.committed, log.trouble, rows(log)) == (6, None, everything)
    disk.crash()
    again = opened(disk, segment_bytes=200)
    assert rows(again) == everything
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


def test_a_failed_mark_holds_up_the_log_but_not_its_readers() -> None:
    disk = SimulatedDisk(Random(1))
    log = opened(disk)
    commit(log, numbered(2))
    failing(disk, "write", "mark", errno.EIO)
    append(log, numbered(1, 2))
    log.commit_step()
    assert log.trouble is not None
    assert len(rows(log)) == 2
    healed(disk)
    log.commit_step()
    assert (log.trouble, len(rows(log))) == (None, 3)
    assert len(rows(ShardLog.open(disk, DIRECTORY, writable=False))) == 3


def test_a_segment_that_could_not_be_sealed_is_sealed_later(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimulatedDisk(Random(1))
    log = opened(disk, segment_bytes=500)
    for n in range(6):
        commit(log, numbered(1, n))
    failing(disk, "write", ".idx.tmp", errno.ENOSPC)
    while log.seal_step():
        pass
    assert log.statistics().seal_failures
    healed(disk)
    assert not log.seal_step()  # not at once
    monkeypatch.setattr(log._maintenance, "_again_at", 0.0)
    while log.seal_step():
        pass
    assert log.statistics().seal_failures == ()
    assert all(segment.sealed for segment in log.segments()[:-1])


def test_retention_frees_space_on_a_full_disk() -> None:
    disk = SimulatedDisk(Random(1))
    log = opened(disk, segment_bytes=500, retention_us=1)
    for n in range(6):
        commit(log, numbered(3, 3 * n))
    disk.fault = lambda kind, path: errno.ENOSPC if kind in ("write", "create", "allocate") else None
    append(log, numbered(1, 99))
    log.commit_step()
    assert log.trouble is not None
    before = len(disk.files())
    assert log.run_retention(1 << 50).remove
    assert len(disk.files()) < before
    healed(disk)
    log.commit_step()
    assert rows(log)[-1][2] == b"payload 99"


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
