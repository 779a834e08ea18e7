"""Has a task's process keep the memory it was given.

A task allocates about the same few hundred megabytes for each file. Given back to the system in between, they come back
as page faults: they were a quarter of the CPU time of a compaction's tasks.
"""

import ctypes

import pyarrow as pa

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's mallopt
_NEVER = (1 << 31) - 1

_done: list[bool] = []


def keep_memory() -> None:
    """Once in a process that lives for its tasks; elsewhere than on glibc nothing is changed."""
    if _done:
        return
    _done.append(True)
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    if mallopt(_M_MMAP_THRESHOLD, 1 << 30) and mallopt(_M_TRIM_THRESHOLD, _NEVER):
        pa.set_memory_pool(pa.system_memory_pool())
