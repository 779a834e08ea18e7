"""Commits beside the thread that asks for them: the thread on both twins, and a log whose disk is slow this time."""

import errno
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.shard_logs import append, numbered, rows, small
from tests.twins import TWINS

from everlog.commitlog import RealDisk, ShardLog
from everlog.commitlog.ports import Block, Note
from everlog.commitlog.real_disk import RealFile

FOREVER_NS = 60_000_000_000


@pytest.fixture(params=TWINS, ids=repr)
def aside(request: pytest.FixtureRequest) -> Iterator[Any]:
    made = request.param.Aside()
    yield made
    made.close()


@pytest.fixture
def fds(tmp_path: Path) -> Iterator[tuple[int, int]]:
    opened = [os.open(tmp_path / name, os.O_RDWR | os.O_CREAT) for name in ("file", "mark")]
    yield opened[0], opened[1]
    for fd in opened:
        os.close(fd)


def test_what_is_done_in_time_is_there(aside: Any, fds: tuple[int, int]) -> None:
    file, mark = fds
    for number in range(50):
        assert aside.begin(file, 3 * number, [b"a", bytearray(b"bc")], mark, b"mark %02d" % number, FOREVER_NS)
    assert os.pread(file, 200, 0) == b"abc" * 50
    assert os.pread(mark, 20, 0) == b"mark 49"


def test_what_is_not_waited_for_is_there_at_the_end(aside: Any, fds: tuple[int, int]) -> None:
    file, mark = fds
    for number in range(200):
        if not aside.begin(file, 3 * number, [b"a", bytearray(b"bc")], mark, b"mark %03d" % number, 0):
            aside.end()
        assert os.pread(file, 3, 3 * number) == b"abc"
        assert os.pread(mark, 20, 0) == b"mark %03d" % number
    aside.end()  # nothing is under way


@pytest.mark.parametrize("patience_ns", [0, FOREVER_NS])
def test_errors_are_those_of_the_system(aside: Any, fds: tuple[int, int], patience_ns: int) -> None:
    _, mark = fds
    pipe = os.pipe()

    def fail() -> None:
        aside.begin(pipe[1], 0, [b"x"], mark, b"mark", patience_ns)
        aside.end()

    with pytest.raises(OSError, match="llegal seek") as failed:
        fail()
    assert failed.value.errno == errno.ESPIPE
    assert os.pread(mark, 20, 0) == b""
    for fd in pipe:
        os.close(fd)


def test_a_close_waits_for_what_is_under_way(aside: Any, fds: tuple[int, int]) -> None:
    file, mark = fds
    aside.begin(file, 0, [b"x" * 100_000], mark, b"mark", 0)
    aside.close()
    assert os.pread(mark, 20, 0) == b"mark"
    assert aside.begin(file, 0, [b"again"], mark, b"more", FOREVER_NS)


# A log whose disk stalls


class Stall:
    """An end that comes when the test says so."""

    def __init__(self) -> None:
        self.go_on = threading.Semaphore(0)
        self.commit: Callable[[], None] | None = None
        self.error: OSError | None = None

    def end(self) -> None:
        commit, self.commit = self.commit, None
        if commit is not None:
            self.go_on.acquire()
            if self.error is not None:
                error, self.error = self.error, None
                raise error
            commit()

    def close(self) -> None:
        assert self.commit is None, "a commit is under way"


class StallingFile(RealFile):
    def commit_aside(self, aside: Any, position: int, blocks: Sequence[Block], note: Note, patience_ns: int) -> bool:
        aside.commit = lambda: self.commit_at(position, blocks, note)
        return False


class StallingDisk(RealDisk):
    """Every commit that need not be waited for takes longer."""

    def __init__(self) -> None:
        self.stall = Stall()

    def aside(self) -> Any:
        return self.stall

    def create(self, path: str) -> RealFile:
        file = super().create(path)
        file.__class__ = StallingFile
        return file


@pytest.fixture
def disk() -> StallingDisk:
    return StallingDisk()


@pytest.fixture
def log(tmp_path: Path, disk: StallingDisk) -> ShardLog:
    """A log of one message without threads; its next commit that need not be waited for is the first to stall."""
    log = ShardLog.open(disk, f"{tmp_path}/shard", small(segment_bytes=1 << 20), background=False)
    append(log, numbered(1))
    assert log.commit_step()
    return log


def commit_quickly(log: ShardLog) -> int:
    assert log._committer is not None
    return log._committer.quick_step(log.end, 0)


def leave(log: ShardLog, disk: StallingDisk) -> None:
    """Have the commit of two messages take long."""
    append(log, numbered(2, 1))
    assert commit_quickly(log) == -1
    assert (disk.stall.commit is not None, log.committed, len(rows(log))) == (True, 1, 1)


def payloads(log: ShardLog) -> list[bytes]:
    return [row[2] for row in rows(log)]


def test_the_next_step_ends_what_was_left_and_takes_what_was_asked_for_meanwhile(
    log: ShardLog, disk: StallingDisk
) -> None:
    told: list[int] = []
    log.on_commit = lambda _, committed: told.append(committed)
    leave(log, disk)
    append(log, numbered(3, 3))  # goes on meanwhile
    assert commit_quickly(log) == -1
    append(log, numbered(1, 6))
    assert log._committer is not None
    disk.stall.go_on.release()
    assert log._committer.step()
    assert told == [3, 6], "nothing that nobody asked for"
    log.close()
    assert payloads(log) == [b"payload %d" % n for n in range(7)]


def test_a_commit_that_takes_long_and_fails_is_made_again(log: ShardLog, disk: StallingDisk) -> None:
    leave(log, disk)
    disk.stall.error = OSError(errno.EIO, "broken")
    disk.stall.go_on.release()
    assert log._committer is not None
    assert log._committer.step(), "it ended, tried again, and the second time went well"
    assert (log.trouble, log.committed) == (None, 3)
    log.close()
    assert payloads(log) == [b"payload %d" % n for n in range(3)]


def test_a_close_ends_what_was_left(log: ShardLog, disk: StallingDisk) -> None:
    leave(log, disk)
    disk.stall.go_on.release()
    log.close()
    assert payloads(log) == [b"payload %d" % n for n in range(3)]


def test_nobody_waits_for_ever_however_steps_meet(tmp_path: Path, disk: StallingDisk) -> None:
    disk.stall.go_on.release(100_000)
    log = ShardLog.open(disk, f"{tmp_path}/shard", small(segment_bytes=1 << 20))
    committer, done = log._committer, threading.Event()
    assert committer is not None

    def disturb(call: Callable[[], object]) -> None:
        while not done.is_set():
            call()

    others = [threading.Thread(target=disturb, args=(call,)) for call in (committer.roll, committer.remark)]
    for other in others:
        other.start()
    for number in range(400):
        append(log, numbered(1, number))
        if commit_quickly(log) < 0:
            log.commit()
        if number % 7 == 0:
            log.wait_committed(number + 1, 60)
    log.commit()
    log.wait_committed(400, 60)
    done.set()
    for other in others:
        other.join(60)
        assert not other.is_alive()
    log.close()
    assert payloads(log) == [b"payload %d" % n for n in range(400)]
