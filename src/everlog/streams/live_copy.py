"""A private copy of a SQLite file that its owner, another process, may be writing to at this moment.

An owner holds its files exclusively, so SQLite can't read them in place. While a file has one and the same write-ahead
log, everything that is written into the file itself is in that log too. So the file is copied first and the log after
it: if the log is still the one that it was before, file and log together are what SQLite recovers after a crash, as of
the last transaction in the log. Otherwise the copy is made anew.
"""

import os
import shutil
import time
from contextlib import suppress

from everlog.base import StorageError, Unavailable

ATTEMPTS = 50
_PAUSE_S = 0.02  # more than a tick of the clock by which a file system notes changes
_HEAD_BYTES = 32  # of a write-ahead log: its header, with two numbers that no other log of the file has

Sign = tuple[int, ...] | bytes  # what tells whether a file was changed: its log's header, or what its directory says


def copy_live(path: str, target: str) -> bool:
    """Copy a file with its write-ahead log to a new place; False if there is no file."""
    try:
        for _ in range(ATTEMPTS):
            if _is_settled(path) and _copy_once(path, target):
                return True
            time.sleep(_PAUSE_S)
    except FileNotFoundError:
        for leftover in (target, target + "-wal"):
            with suppress(FileNotFoundError):
                os.unlink(leftover)
        return False
    except OSError as error:
        raise StorageError(f"{path} can't be copied: {error}", hint="check that this user may read it") from error
    raise Unavailable(f"{path} changes faster than it can be copied", hint="try again")


def _copy_once(path: str, target: str) -> bool:
    """Return whether the file that was copied and the log that was copied belong together."""
    before = _sign(path)
    with open(path, "rb") as source, open(target, "wb") as copy:
        number = os.fstat(source.fileno()).st_ino
        shutil.copyfileobj(source, copy, 1 << 20)
    try:
        shutil.copyfile(path + "-wal", target + "-wal")
    except FileNotFoundError:
        with suppress(FileNotFoundError):
            os.unlink(target + "-wal")
    return _sign(path) == before and os.stat(path).st_ino == number


def _sign(path: str) -> Sign:
    """Return the header of the file's log; without a log, when the file was written to."""
    with suppress(FileNotFoundError), open(path + "-wal", "rb") as file:
        head = file.read(_HEAD_BYTES)
        if len(head) == _HEAD_BYTES:
            return head
    known = os.stat(path)
    return known.st_ino, known.st_size, known.st_mtime_ns


def _is_settled(path: str) -> bool:
    """Return whether a further change would be seen: of a file with a log always, else once its time is over."""
    return isinstance(_sign(path), bytes) or abs(time.time() - os.stat(path).st_mtime) > _PAUSE_S
