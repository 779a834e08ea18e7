"""The bare disk, measured beside the brokers: what a sync and a large write cost without any of them."""

import mmap
import os
import tempfile
import time
from typing import Any

from everlog.bench.load.figures import Histogram

_SYNCS = 300
_SYNC_BYTES = 512  # about what a lone message takes
_FILE_BYTES = 1 << 20
_WRITE_S = 0.5


def measure_disk() -> dict[str, Any]:
    """Return the CPU and the time of a small synced write, and the MB/s of synced writes of 1 MiB and 400 KiB."""
    with tempfile.TemporaryDirectory(prefix="everlog-bench-disk-") as folder:
        path = os.path.join(folder, "file")
        return {
            "status": "ok",
            "sync": _sync(path),
            "write": {"1M": _write(path, 1 << 20), "400K": _write(path, 400 << 10)},
        }


def _sync(path: str) -> dict[str, float]:
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    times = Histogram()
    try:
        os.pwrite(file, bytes(_FILE_BYTES), 0)
        os.fsync(file)
        data = bytes(_SYNC_BYTES)
        cpu = time.thread_time()
        for number in range(_SYNCS):
            begin = time.monotonic_ns()
            os.pwrite(file, data, number * _SYNC_BYTES)
            os.fdatasync(file)
            times.add(time.monotonic_ns() - begin)
        cpu = time.thread_time() - cpu
    finally:
        os.close(file)
    return {
        "cpu_us": round(cpu / _SYNCS * 1e6, 1),
        "p50_us": round(times.quantile(0.5) / 1e3, 1),
        "p99_us": round(times.quantile(0.99) / 1e3, 1),
    }


def _write(path: str, block_bytes: int) -> float:
    """Return the MB/s of blocks that are each on the disk before the next, around the page cache where that can be."""
    flags = os.O_RDWR | os.O_CREAT | os.O_DSYNC
    try:
        file = os.open(path, flags | getattr(os, "O_DIRECT", 0), 0o600)
    except OSError:  # not on every file system
        file = os.open(path, flags, 0o600)
    block = mmap.mmap(-1, block_bytes)  # aligned, as direct writes need it
    try:
        begin, written = time.monotonic(), 0
        while time.monotonic() < begin + _WRITE_S:
            written += os.pwrite(file, block, written)
        return round(written / (time.monotonic() - begin) / 1e6, 1)
    finally:
        block.close()
        os.close(file)
