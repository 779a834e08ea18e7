"""Processes that Spark forks for tasks settle in; others are left as they are."""

import gc
import os
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from tests.listening import eventually

from everlog.spark.worker_process import settle

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def settled(number: int) -> tuple[int, str]:
    settle()
    settle()
    return gc.get_freeze_count(), pa.default_memory_pool().backend_name


def test_a_worker_keeps_its_memory_and_leaves_what_is_loaded_alone(spark: "SparkSession") -> None:
    ((frozen, pool),) = spark.sparkContext.parallelize([0], 1).map(settled).collect()
    assert frozen > 10_000
    assert pool == "system"


def test_a_process_of_another_kind_stays_as_it_is() -> None:
    before = gc.get_freeze_count(), pa.default_memory_pool().backend_name
    assert settled(0) == before


IDLE = """
from everlog.spark.worker_process import settle
def main(infile, outfile):
    settle()
    outfile.write(b"nobody reads this")
    infile.read()  # until Spark closes the socket
"""


@pytest.mark.parametrize("killing", [{}, {"PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1"}], ids=["kept", "killed"])
def test_an_idle_worker_whose_socket_is_closed_ends_without_a_word(tmp_path: Path, killing: dict[str, str]) -> None:
    (tmp_path / "pyspark_idle.py").write_text(IDLE)
    environment = {"PYTHON_UNIX_DOMAIN_ENABLED": "true", "PYTHON_WORKER_FACTORY_SOCK_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "pyspark.daemon", "pyspark_idle"]
    environment |= {"PYTHONPATH": str(tmp_path), **killing}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env={**os.environ, **environment}, **pipes) as daemon:
        assert daemon.stdin is not None
        assert daemon.stdout is not None
        assert daemon.stderr is not None
        try:
            (size,) = struct.unpack("!i", daemon.stdout.read(4))
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as end:
                end.connect(daemon.stdout.read(size).decode())
                (worker,) = struct.unpack("!i", end.recv(4))
            eventually(lambda: not Path(f"/proc/{worker}").exists(), "the worker's end")
        finally:
            daemon.kill()
        assert daemon.stderr.read() == b""
