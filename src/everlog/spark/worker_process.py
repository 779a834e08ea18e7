"""Sets up a process that Spark forks to run Python tasks, once, before its first task.

A task allocates as much memory as the one before it. If that were given back to the system in between, page faults
would cost a quarter of the CPU time of a compaction's tasks. And Spark collects garbage after every task, which would
visit all objects of the libraries: what exists before the first task stays, and need not be visited. At its end it
says nothing of a socket that Spark has closed.
"""

import builtins
import ctypes
import gc
import sys
import traceback
from types import SimpleNamespace
from typing import Any

import pyarrow as pa

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's mallopt
_NEVER = (1 << 31) - 1

_done: list[bool] = []


def settle() -> None:
    """Keep freed memory and exempt loaded modules from garbage collection; does nothing in other processes."""
    if _done or not _is_worker():
        return
    _done.append(True)
    hush()
    _keep_memory()
    gc.collect()
    gc.freeze()


def _is_worker() -> bool:
    """Return whether this process was forked by Spark to run tasks or plans one after the other."""
    return getattr(getattr(sys.modules["__main__"], "__spec__", None), "name", "") == "pyspark.daemon"


def hush() -> None:
    """Have this process end without a word when Spark has closed its socket; does nothing in other processes.

    Spark ends workers that were idle for a minute by closing their socket; with Unix sockets, that leaves a traceback.
    """
    if _is_worker():
        names = vars(sys.modules["__main__"])
        names["print"] = _print
        names["traceback"] = SimpleNamespace(print_exc=_print_exc, format_exc=traceback.format_exc)


def _print(*words: Any, **options: Any) -> None:
    if not (words and "failed to flush" in str(words[0]) and "BrokenPipeError" in str(words[0])):
        builtins.print(*words, **options)


def _print_exc() -> None:
    if not isinstance(sys.exception(), BrokenPipeError):
        traceback.print_exc()


def _keep_memory() -> None:
    """Allocate with glibc's malloc and have it keep freed memory; does nothing with another C library."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    if mallopt(_M_MMAP_THRESHOLD, 1 << 30) and mallopt(_M_TRIM_THRESHOLD, _NEVER):
        pa.set_memory_pool(pa.system_memory_pool())
