"""Two real processes on one log: a reader follows a writer, a writer is killed, a second writer is refused."""

import os
import subprocess
import sys
import threading
from pathlib import Path
from random import Random

import pytest
from tests.crash.writing_process import RUN, SETTINGS, Witness, payload

from everlog.base import StorageError
from everlog.bench.load.slow_sync import slow_syncs
from everlog.commitlog import RealDisk, ShardLog

ROOT = Path(__file__).parents[2]
ROUNDS = 10_000  # enough for rolls, merges and retention


class Writer:
    """The writing process, and the last committed offset that it reported."""

    def __init__(self, directory: Path, rounds: int = 1_000_000, sync_ms: int = 0) -> None:
        self.reported = 0
        self.lines = threading.Semaphore(0)
        command = [sys.executable, "-m", "tests.crash.writing_process", str(directory), str(rounds)]
        slow = slow_syncs(directory, directory, sync_ms) if sync_ms else {}
        environment = {**os.environ, **slow, "PYTHONPATH": f"{ROOT}/src:{ROOT}"}
        self.process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                if line.endswith("\n"):
                    self.reported = int(line)
                    self.lines.release()

    def __enter__(self) -> "Writer":
        self.lines.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        """Kill it where it has not ended."""
        self.process.kill()
        self.finish()

    def finish(self) -> int:
        """Wait for its end; return its exit status."""
        self._thread.join()
        return self.process.wait()


def check(found: list, expected: int) -> int:
    """Batches follow each other and hold what belongs there; where they end."""
    for records in found:
        assert records.base_offset >= expected
        expected = records.base_offset
        for offset, _, topic, _, _, content in records.rows():
            assert content == payload(offset)
            assert records.table.name(topic) == b"t/%d" % (offset % 97)
        expected += records.count
    return expected


@pytest.mark.slow
def test_a_reader_follows_a_writer_across_rolls_merges_and_retention(tmp_path: Path) -> None:
    offset = looks = 0
    with Writer(tmp_path, rounds=ROUNDS) as writer:
        witness = Witness(str(tmp_path))
        reader = ShardLog.open(RealDisk(), f"{tmp_path}/shard", SETTINGS, writable=False)
        while writer.process.poll() is None:
            committed = reader.refresh()
            assert committed <= witness.offset, "the reader sees what is not synced"
            found = reader.read(offset, 1 << 20)
            if found and found[0].base_offset != offset:
                reader.refresh()  # what was removed meanwhile is known only then
                assert offset < reader.start
            offset = check(found, offset)
            assert offset <= committed
            looks += 1
        assert writer.finish() == 0
    reader.refresh()
    while found := reader.read(offset, 1 << 20):
        offset = check(found, offset)
    assert offset == reader.committed == writer.reported == ROUNDS * RUN
    assert looks, "the writer had ended before the reader looked"
    assert reader.start > 0, "retention was at work"
    assert reader.damage == []
    reader.close()


@pytest.mark.slow
@pytest.mark.parametrize(("sync_ms", "kills", "lines"), [(0, 4, 60), (20, 2, 20), (40, 2, 10), (400, 2, 4)])
def test_a_killed_writer_loses_nothing_that_it_reported(tmp_path: Path, sync_ms: int, kills: int, lines: int) -> None:
    random = Random(5)
    for _ in range(kills):
        with Writer(tmp_path, sync_ms=sync_ms) as writer:
            for _ in range(random.randrange(1, lines)):
                writer.lines.acquire()
        log = ShardLog.open(RealDisk(), f"{tmp_path}/shard", SETTINGS, background=False)
        assert log.committed >= writer.reported
        offset = log.start
        while found := log.read(offset, 1 << 20):
            assert found[0].base_offset == offset
            offset = check(found, offset)
        assert offset == log.committed
        assert log.damage == []
        log.close()


def test_a_second_writer_is_refused_and_told_who_holds_the_lock(tmp_path: Path) -> None:
    with Writer(tmp_path) as writer:
        with pytest.raises(StorageError, match=rf"held by process {writer.process.pid}\b") as refused:
            ShardLog.open(RealDisk(), f"{tmp_path}/shard")
        assert "read-only" in refused.value.hint
    ShardLog.open(RealDisk(), f"{tmp_path}/shard").close()
