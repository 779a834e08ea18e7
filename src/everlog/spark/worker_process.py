"""Has a process that lives for tasks settle in: once, in what Spark forks for Python's part of them.

A task allocates what the one before it did. Given back to the system in between, memory comes back as page faults: a
quarter of the CPU time of a compaction's tasks. And Spark collects garbage behind every task, which looks at all that
the libraries brought: what is there by the first task is there for good and need not be looked at.
"""

import ctypes
import gc
import sys

import pyarrow as pa

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's mallopt
_NEVER = (1 << 31) - 1

_done: list[bool] = []


def settle() -> None:
    """Keep memory and leave what is loaded alone; in any other process nothing is changed."""
    if _done or not _is_worker():
        return
    _done.append(True)
    _keep_memory()
    gc.collect()
    gc.freeze()


def _is_worker() -> bool:
    """Whether this process was forked by Spark to run tasks or plans one after the other."""
    return getattr(getattr(sys.modules["__main__"], "__spec__", None), "name", "") == "pyspark.daemon"


def _keep_memory() -> None:
    """Take memory from glibc and have it keep what it was given; with another C library all stays as it is."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    if mallopt(_M_MMAP_THRESHOLD, 1 << 30) and mallopt(_M_TRIM_THRESHOLD, _NEVER):
        pa.set_memory_pool(pa.system_memory_pool())
