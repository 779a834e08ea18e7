"""A log with its threads on a real directory: waiting, waking, sealing behind the writer's back, failing."""

import threading
from pathlib import Path

import pytest
from tests.shard_logs import append, numbered, rows, small

from everlog.base import StorageError, Unavailable
from everlog.commitlog import RealDisk, ShardLog
from everlog.commitlog.waiters import Waiters
from everlog.commitlog.worker import Worker


def opened(path: Path, **changes: object) -> ShardLog:
    return ShardLog.open(RealDisk(), f"{path}/a/shard", small(**changes))


def test_many_producers_each_wait_for_their_own_commit(tmp_path: Path) -> None:
    log = opened(tmp_path, segment_bytes=5000, merge_below=100)

    def produce(number: int) -> None:
        for n in range(20):
            with guard:
                first = append(log, [(b"p/%d" % number, b"%d" % n)])
            if n % 2:
                log.commit()
            log.wait_committed(first + 1, 60)
            assert log.committed > first

    guard = threading.Lock()
    threads = [threading.Thread(target=produce, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = rows(log)
    assert [row[0] for row in found] == list(range(320))
    for number in range(16):
        assert [row[2] for row in found if row[1] == b"p/%d" % number] == [b"%d" % n for n in range(20)]
    log.close()
    again = opened(tmp_path)
    assert rows(again) == found
    again.close()


def test_what_nobody_asked_to_commit_is_committed_at_the_close(tmp_path: Path) -> None:
    log = opened(tmp_path)
    append(log, numbered(3))
    assert log.committed == 0
    log.close()
    assert log.committed == 3


@pytest.mark.parametrize("listening", [False, True])
def test_who_waits_need_not_ask(tmp_path: Path, listening: bool) -> None:
    log = opened(tmp_path)
    callers: list[str] = []
    if listening:
        log.on_commit = lambda _, committed: callers.append(threading.current_thread().name)
    for n in range(5):
        append(log, numbered(1, n))
        log.wait_committed(n + 1, 60)
    with pytest.raises(Unavailable, match=r"offset 6 was not committed in 0\.01 s"):
        log.wait_committed(6, 0.01)
    log.close()
    assert set(callers) <= {"everlog-commit-shard"}
    assert len(rows(log)) == 5


def test_segments_are_sealed_by_the_second_thread(tmp_path: Path) -> None:
    log = opened(tmp_path, segment_bytes=500)
    sealed = threading.Event()
    maintenance = log._maintenance
    assert maintenance is not None
    seal = maintenance.sealer.seal

    def notice(segment: object, *, again: bool = False) -> None:
        seal(segment, again=again)  # type: ignore[arg-type]
        sealed.set()

    maintenance.sealer.seal = notice  # type: ignore[method-assign]
    for n in range(10):
        append(log, numbered(2, 2 * n))
        log.commit()
        log.wait_committed(log.end, 60)
    assert sealed.wait(60)
    view = log.segments()[0]
    mapped, section = view.mapped(), view.side("batches")
    assert mapped is not None
    assert bytes(mapped) == view.read_at(0, view.size_bytes)
    assert section is not None
    assert bytes(section.mapped() or b"") == section.read_at(0, section.size)
    log.close()
    assert rows(log) == [(n, b"t/%d" % (n % 5), b"payload %d" % n) for n in range(20)]


def test_who_waits_is_told_of_trouble_and_the_log_goes_on_by_itself(tmp_path: Path) -> None:
    log = opened(tmp_path)
    append(log, numbered(1))
    log.commit()
    log.wait_committed(1, 60)
    told, over = threading.Event(), threading.Event()
    log.on_trouble = lambda _, trouble: (over if trouble is None else told).set()
    segment = log._catalog.segments[-1]
    assert segment.reader is not None
    segment.reader.file.close()
    append(log, numbered(1, 1))
    log.commit()
    with pytest.raises(StorageError, match="Bad file descriptor"):
        log.wait_committed(2, 60)
    assert told.wait(60)
    append(log, numbered(1, 2))
    log.commit()
    assert over.wait(60)
    log.wait_committed(3, 60)
    assert [segment.base_offset for segment in log.segments()] == [0, 1]
    log.close()
    again = opened(tmp_path)
    assert (again.damage, rows(again)) == ([], [(n, b"t/%d" % n, b"payload %d" % n) for n in range(3)])
    again.close()


def test_a_callback_that_raises_stops_the_log_and_nobody_waits_forever(tmp_path: Path) -> None:
    log = opened(tmp_path)

    def broken(_: ShardLog, committed: int) -> None:
        raise ValueError("not my day")

    log.on_commit = broken
    append(log, numbered(1))
    log.commit()
    log.wait_committed(1, 60)
    with pytest.raises(StorageError, match="not my day"):
        log.wait_committed(2, 60)
    log.close()


def test_a_close_wakes_who_waits(tmp_path: Path) -> None:
    log = opened(tmp_path)
    errors: list[Exception] = []

    def wait() -> None:
        try:
            log.wait_committed(5)
        except Unavailable as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    log.close()
    thread.join()
    assert "closed" in str(errors[0])


def test_waiters_are_woken_when_their_own_offset_is_reached() -> None:
    waiters = Waiters()
    committed = 0
    passed: list[int] = []
    threads = []
    for offset in (5, 3, 8):

        def wait(offset: int = offset) -> None:
            waiters.wait(offset, lambda: committed >= offset, None)
            passed.append(offset)

        threads.append(threading.Thread(target=wait))
        threads[-1].start()
    while len(waiters.waiting) < 3:
        pass
    committed = 5
    waiters.wake(5)
    threads[0].join()
    threads[1].join()
    assert sorted(passed) == [3, 5]
    waiters.wake()
    threads[2].join()
    waiters.wait(8, lambda: False, 0.001)
    assert waiters.waiting == []


def test_a_worker_runs_a_step_for_every_wake_and_reports_its_end() -> None:
    done = threading.Semaphore(0)
    failed: list[Exception] = []
    left = [3]

    def step() -> bool:
        done.release()
        left[0] -= 1
        if left[0] < 0:
            raise ValueError("enough")
        return left[0] % 2 == 0

    worker = Worker("test", step, failed.append)
    worker.wake()
    done.acquire()
    done.acquire()
    worker.wake()
    worker.wake()
    done.acquire()
    done.acquire()
    worker.stop()
    assert [str(error) for error in failed] == ["enough"]
