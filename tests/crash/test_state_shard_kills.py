"""A state shard whose process is killed again and again: every value that it said was committed is there, once."""

import os
import subprocess
import sys
import threading
from pathlib import Path
from random import Random

from tests.crash.shard_process import SETTINGS, SMALL, STREAMS
from tests.state_shards import Owner

from everlog.streams import GetAll, LocalJournal

ROOT = Path(__file__).parents[2]


def test_what_was_acknowledged_survives_kills(tmp_path):
    random = Random(3)
    directory = tmp_path / "shard"
    directory.mkdir()
    acked: dict[tuple[str, int], str] = {}
    for _ in range(2):
        command = [sys.executable, "-m", "tests.crash.shard_process", str(directory)]
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
        owner = Owner(directory, LocalJournal.open(f"{directory}/journal", settings=SMALL), settings=SETTINGS)
        found = {}
        for n in range(STREAMS):
            for chunk in owner.series(GetAll(f"s/{n}")):
                found |= {(f"s/{n}", one.seq): one.value.decode() for one in chunk.messages}
        assert {key: found.get(key) for key in acked} == acked
        assert len(set(found.values())) == len(found)
        trimmed = owner.journal.start
        owner.shard.close()
    assert trimmed > 0


def _note(acked: dict[tuple[str, int], str], line: str) -> None:
    stream, seq, value = line.split()
    assert acked.setdefault((stream, int(seq)), value) == value
