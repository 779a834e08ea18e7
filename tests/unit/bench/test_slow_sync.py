"""Syncs below a directory are slow, others are not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from everlog.base import Unavailable
from everlog.bench.load.slow_sync import slow_syncs

SYNC = """
import os, sys, time
with open(sys.argv[1], "w") as file:
    began = time.monotonic()
    os.fsync(file.fileno())
    os.fdatasync(file.fileno())
    print(time.monotonic() - began)
"""


def seconds(folder: Path, below: Path, delay_ms: int) -> float:
    environment = os.environ | slow_syncs(folder, below, delay_ms)
    command = [sys.executable, "-c", SYNC, str(folder / "file")]
    return float(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)


def test_syncs_below_the_directory_wait(tmp_path: Path) -> None:
    assert seconds(tmp_path, tmp_path, 100) >= 0.2


def test_syncs_elsewhere_do_not_wait(tmp_path: Path) -> None:
    assert seconds(tmp_path, tmp_path / "shard-0", 600_000) < 600


def test_no_compiler_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(Unavailable, match="slow syncs"):
        slow_syncs(tmp_path, tmp_path, 1)
