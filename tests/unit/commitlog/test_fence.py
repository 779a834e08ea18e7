"""A commit takes what was appended when it was asked for, and nothing that came later."""

import threading
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
from tests.shard_logs import append, numbered, opened, rows, small

from everlog.commitlog import RealDisk, ShardLog
from everlog.commitlog.ports import Block, Note
from everlog.commitlog.real_disk import RealFile


class SlowDisk(RealDisk):
    """A disk whose commits wait until they may go on."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.go_on = threading.Semaphore(0)

    def create(self, path: str) -> RealFile:
        disk, commit_at = self, RealFile.commit_at

        class SlowFile(RealFile):
            def commit_at(
                self, position: int, blocks: Sequence[Block], note: Note | None = None, *, padded: bool = False
            ) -> None:
                disk.begun.release()
                disk.go_on.acquire()
                commit_at(self, position, blocks, note, padded=padded)

        file = super().create(path)
        if path.endswith(".log"):
            file.__class__ = SlowFile
        return file


@pytest.mark.parametrize("inline", [False, True])
def test_what_comes_after_the_asking_waits_for_the_next(tmp_path: Path, inline: bool) -> None:
    disk = SlowDisk()
    log = ShardLog.open(disk, f"{tmp_path}/shard", small())
    ask = log.commit_here if inline else log.commit
    append(log, numbered(1))
    log.commit()
    disk.begun.acquire()
    append(log, numbered(2, 1))
    ask()  # the thread that commits is still at the first
    append(log, numbered(3, 3))
    disk.go_on.release()
    disk.begun.acquire()
    disk.go_on.release(10)
    log.wait_committed(3, 60)
    assert log.committed == 3
    log.commit()
    log.wait_committed(6, 60)
    assert [row[2] for row in rows(log)] == [b"payload %d" % n for n in range(6)]
    log.close()


def test_a_batch_that_grew_too_large_is_split_where_a_commit_was_asked_for(tmp_path: Path) -> None:
    disk = SlowDisk()
    log = ShardLog.open(disk, f"{tmp_path}/shard", small(batch_bytes=500, segment_bytes=1 << 20))
    append(log, numbered(1))
    log.commit()
    disk.begun.acquire()
    append(log, numbered(2, 1))
    log.commit()
    append(log, numbered(30, 3))  # closes the batch that holds what was asked for
    disk.go_on.release(10)
    log.wait_committed(3, 60)
    assert log.committed == 3
    log.close()
    assert len(rows(log)) == 33


def test_a_close_asks_for_everything() -> None:
    log = opened()
    append(log, numbered(2))
    log.wait_committed(1, 0)
    assert log.committed == 1
    log.close()
    assert log.committed == 2


@pytest.mark.parametrize("seed", range(30))
def test_any_number_of_records_can_be_asked_for(seed: int) -> None:
    random = Random(seed)
    batch_bytes = random.choice((100, 300, 50_000))
    segment_bytes = random.choice((600, 3000, 1 << 20))
    log = opened(settings=small(segment_bytes=segment_bytes, batch_bytes=batch_bytes))
    number = time = 0
    for _ in range(60):
        time += random.randrange(1000)
        if random.random() < 0.6:
            count = random.randrange(1, 6)
            append(log, numbered(count, number), time)
            number += count
        elif log.committed < log.end:
            asked = random.randrange(log.committed, log.end) + 1
            log.wait_committed(asked, 0)
            assert log.committed >= asked
            small_batches = min(batch_bytes, segment_bytes) < 50_000
            assert log.committed == asked or small_batches, "only a batch that was closed before is taken whole"
            assert len(rows(log)) == log.committed
    log.commit_step()
    assert [row[2] for row in rows(log)] == [b"payload %d" % n for n in range(number)]
    assert not log.damage
    log.close()
