"""Copies a local journal to a bucket, record by record at the same positions, for writes at the level `archived`.

The copy is a journal of numbered objects (`docs/formats/journal.md`), fenced by the same epochs, so a server that lost
its disk, or another one, can go on from it. Implements the `Archive` port of `everlog.streams`. Objects are written
when somebody waits for one, and otherwise now and then.
"""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Protocol

from everlog.base import EverlogError, Fenced, StorageError
from everlog.tiering.group_journal import GROUP_BYTES, pause_s
from everlog.tiering.journal_format import Record
from everlog.tiering.journal_writer import JournalWriter
from everlog.tiering.ports import Bucket

PERIOD_S = 5.0
IDLE_S = 60.0  # how long records may stay out of the bucket that nobody waits for


class CopiedJournal(Protocol):
    """What is asked of the journal that is copied; others may append to it and read it meanwhile."""

    @property
    def epoch(self) -> int: ...

    @property
    def start(self) -> int: ...

    @property
    def committed(self) -> int: ...

    def read(self, position: int, end: int) -> Iterator[tuple[int, str, bytes]]: ...


class JournalArchive:
    """The copy of one shard's journal, kept by a thread of its own until `close`."""

    def __init__(
        self, journal: CopiedJournal, bucket: Bucket, folder: str, *, period_s: float = PERIOD_S, idle_s: float = IDLE_S
    ) -> None:
        self._journal = journal
        self._writer = JournalWriter(bucket, folder, journal.epoch)
        self._period_s = period_s
        self._idle_s = idle_s
        self._lock = threading.Condition()
        self._wanted: list[tuple[int, Callable[[int], None]]] = []
        self._is_closing = False
        self._trim_below = 0
        self.trouble: EverlogError | None = None  # why nothing reaches the bucket just now, or ever again if `Fenced`
        self._is_open = False
        self._group: list[Record] = []  # of the object that is being written
        self._end = 0
        self._thread = threading.Thread(target=self._run, name=f"archive {folder}", daemon=True)
        self._thread.start()

    @property
    def end(self) -> int:
        """Everything below this position is in the bucket."""
        return self._end

    def want(self, end: int, done: Callable[[int], None]) -> None:
        """Ask that everything below `end` reach the bucket soon; `done` is called with the archived end."""
        with self._lock:
            if end > self._end:
                self._wanted.append((end, done))
                self._lock.notify_all()
                return
        done(self._end)

    def trim(self, below: int) -> None:
        """Let go of records below a position that packs have."""
        with self._lock:
            self._trim_below = max(self._trim_below, below)

    def close(self) -> None:
        """Copy what is committed, if that is possible now, and end the thread."""
        with self._lock:
            self._is_closing = True
            self._lock.notify_all()
        self._thread.join()

    def _run(self) -> None:
        attempt = 0
        while True:
            begun = time.monotonic()
            try:
                self._copy()
            except Fenced as error:
                self.trouble = error
                return
            except EverlogError as error:
                self.trouble = error
                attempt += 1
            else:
                self.trouble = None
                attempt = 0
            with self._lock:
                if self._is_closing:
                    return
                if attempt:
                    self._lock.wait_for(lambda: self._is_closing, pause_s(attempt))
                    continue
                rest = begun + self._idle_s - time.monotonic()
                self._lock.wait_for(lambda: self._wanted or self._is_closing, max(rest, 0))
                rest = begun + self._period_s - time.monotonic()
                self._lock.wait_for(lambda: self._is_closing, max(rest, 0))

    def _copy(self) -> None:
        """Copy all that is committed, and tell who waits."""
        if not self._is_open:
            self._writer.reader.follow()
            self._check_end()
            self._writer.take_over(self._journal.start)
            self._is_open = True
        self._check_end()
        self._reach(self._writer.end)
        while True:
            self._group = self._group or self._next_group()
            if not self._group:
                return
            self._write(self._group)

    def _next_group(self) -> list[Record]:
        """Return the records of the next object; it is written as it is, however long that takes."""
        group: list[Record] = []
        size = 0
        for _, name, effect in self._journal.read(self._writer.end, self._journal.committed):
            group.append((name, effect))
            size += len(effect)
            if size >= GROUP_BYTES:
                break
        return group

    def _check_end(self) -> None:
        if self._writer.end > self._journal.committed:
            raise StorageError(
                f"the bucket has {self._writer.end} records and the journal {self._journal.committed}",
                hint="the local disk lost some: restore the shard from the bucket",
            )

    def _write(self, records: list[Record]) -> None:
        with self._lock:
            below = self._trim_below
        if below > self._writer.reader.start:
            self._writer.trim(below)
        end = self._writer.write(records)
        self._group, self.trouble = [], None
        self._reach(end)
        self._writer.tidy()

    def _reach(self, end: int) -> None:
        """Tell all who wait for no more than what is in the bucket."""
        with self._lock:
            self._end = end
            reached = [done for wanted, done in self._wanted if wanted <= end]
            self._wanted = [(wanted, done) for wanted, done in self._wanted if wanted > end]
        for done in reached:
            done(end)
