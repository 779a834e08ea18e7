"""A state shard whose process is killed again and again: every value that it said was committed is there, once."""

import os
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from random import Random

import pytest
from tests.crash.shard_process import SETTINGS, SMALL, STREAMS
from tests.state_shards import Owner
from tests.tiered_owner import TieredOwner

from everlog.streams import AsOf, Checked, GetAll, LocalJournal, check_shard_in_bucket, restore_stream
from everlog.tiering import DirectoryBucket

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("with_bucket", [False, True])
def test_what_was_acknowledged_survives_kills(tmp_path, with_bucket):
    random = Random(3)
    directory = tmp_path / "shard"
    directory.mkdir()
    bucket = str(tmp_path / "bucket")
    acked: dict[tuple[str, int], str] = {}
    for _ in range(2):
        command = [sys.executable, "-m", "tests.crash.shard_process", str(directory), *([bucket] * with_bucket)]
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}/src:{ROOT}"}
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        guard = threading.Timer(60, process.kill)  # a shard that hangs fails the test
        guard.start()
        for _ in range(random.randrange(800, 1500)):
            line = process.stdout.readline()
            assert line, "the shard ended by itself"
            _note(acked, line)
        process.kill()
        guard.cancel()
        for line in process.stdout.read().splitlines(keepends=True):
            if line.endswith("\n"):
                _note(acked, line)
        process.stdout.close()
        process.wait()
        journal = LocalJournal.open(f"{directory}/journal", settings=SMALL)
        if with_bucket:
            damage = list(check_shard_in_bucket(DirectoryBucket(bucket), "shard-0", Checked()))
            assert damage == []
            owner = TieredOwner(directory, DirectoryBucket(bucket), journal, settings=SETTINGS, is_copied=True)
        else:
            owner = Owner(directory, journal, settings=SETTINGS)
        found = {}
        for n in range(STREAMS):
            for chunk in owner.series(GetAll(f"s/{n}")):
                found |= {(f"s/{n}", one.seq): one.value.decode() for one in chunk.messages}
        assert {key: found.get(key) for key in acked} == acked
        assert len(set(found.values())) == len(found)
        trimmed = owner.journal.start
        packed = owner.packs().files if with_bucket else {}
        owner.shard.close()
    assert trimmed > 0
    if with_bucket:
        assert len(packed) == STREAMS
        _restore_and_compare(DirectoryBucket(bucket), tmp_path / "restored", found)


def _restore_and_compare(bucket: DirectoryBucket, directory: Path, found: dict[tuple[str, int], str]) -> None:
    """Compare what the bucket alone has, after a clean stop, with what the disk had."""
    for n in range(STREAMS):
        path = directory.with_suffix(f".{n}")
        restore_stream(bucket, "shard-0", f"s/{n}", str(path), AsOf())
        connection = sqlite3.connect(path)
        rows = connection.execute("SELECT seq, value FROM messages").fetchall()
        connection.close()
        assert {(f"s/{n}", seq): value.decode() for seq, value in rows} == {
            key: value for key, value in found.items() if key[0] == f"s/{n}"
        }


def _note(acked: dict[tuple[str, int], str], line: str) -> None:
    stream, seq, value = line.split()
    assert acked.setdefault((stream, int(seq)), value) == value
