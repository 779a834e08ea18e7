"""Copies of a stream's file for a pack, made by SQLite itself while the file may be in use, and the way back.

A copy is a SQLite file without write-ahead log, which anybody can open; `make_live` turns one into a stream's file.
"""

import os
import sqlite3
import time

from everlog.base import StorageError
from everlog.streams.stream_file import FileClosed, StreamFile

COPY_PAGES = 256  # that are copied at once, while others wait
_PAUSE_S = 0.001  # between copies of so many, for others
_MODE_AT, _WITHOUT_WAL, _WITH_WAL = 18, b"\x01\x01", b"\x02\x02"  # of the header: whether there is a log


def copy_out(file: StreamFile, path: str) -> bytes | None:
    """Return a copy of an open file as of now; write one that is large to a new file instead, and return None.

    For any thread. A large one is copied a little at a time, so that whoever wants to write meanwhile waits only for a
    moment. Raises `FileClosed` if the file was closed.
    """
    with file.held() as connection:
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        if pages <= COPY_PAGES:
            data = connection.serialize()
            return data[:_MODE_AT] + _WITHOUT_WAL + data[_MODE_AT + 2 :]
    _copy_slowly(file, path)
    return None


def _copy_slowly(file: StreamFile, path: str) -> None:
    target = sqlite3.connect(path, isolation_level=None)

    def pause(status: int, remaining: int, total: int) -> None:
        file.lock.release()
        time.sleep(_PAUSE_S)
        file.lock.acquire()
        if file.is_closed:
            raise FileClosed(f"{file.path} was closed")

    try:
        with file.held() as connection:
            target.execute("PRAGMA synchronous = OFF")
            connection.backup(target, pages=COPY_PAGES, progress=pause)
        target.execute("PRAGMA journal_mode = DELETE")
    except sqlite3.Error as error:
        raise StorageError(f"{path}: {error}", hint="check that the disk has room and is writable") from error
    finally:
        target.close()


def make_live(path: str) -> None:
    """Make a copy a file that records can be applied to, and sync it."""
    with open(path, "r+b") as file:
        file.seek(_MODE_AT)
        file.write(_WITH_WAL)
        file.flush()
        os.fsync(file.fileno())
