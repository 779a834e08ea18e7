# cython: boundscheck=True, wraparound=True, cdivision=False
"""Session tables whose changes are durable in a journal first: who waits for them does not wait for SQLite.

Every batch is numbered and goes to the journal; the tables follow now and then, with many batches as one, and store the
number of the last. A batch that the journal can't take (large, or there is no room, or its disk fails) goes straight to
the tables, synced, with all before it; then the journal begins anew. At a start the tables get what only the journal
has. `begin` and `take_behind` are for the thread that asks and not called while `apply` is at it, which may wait in
another; so may `follow` in a third.
"""

import os
import threading
from time import perf_counter

from everlog.base import StorageError
from everlog.commitlog import Disk, RealDisk
from everlog.sessions.change_journal import (
    NEVER_GIVEN,
    ChangeJournal,
    journal_path,
    pack_changes,
    read_journal,
    records_after,
    unpack_changes,
)
from everlog.sessions.merged_changes import MergedChanges
from everlog.sessions.sqlite_tables import SqliteTables
from everlog.sessions.tables import Changes, Refused, Snapshot

_PATIENCE_NS = 2_000_000  # that a batch is waited for where others wait too
_SLOW_S = 0.001  # what a batch takes on a disk that nobody waits for there
_MOST_BEHIND = 50_000  # rows
_RETRY_S = 10.0  # until a journal that could not be made is tried again
_NOTHING = Refused()


class JournaledTables:
    """Session tables in one SQLite file with a journal beside it; `SqliteTables` says what `sync` is."""

    def __init__(self, path: str | os.PathLike[str], *, sync: bool = True, disk: Disk | None = None) -> None:
        disk = RealDisk() if disk is None else disk
        self._tables = SqliteTables(path, sync=sync)
        try:
            self._number = _take_over(self._tables, disk, journal_path(path))  # of the last batch
        except BaseException:
            self._tables.close()
            raise
        self._journal = ChangeJournal(disk, journal_path(path), sync=sync)
        self._behind = MergedChanges()  # what the journal has and the tables do not
        self._following: MergedChanges | None = None  # of that, what they are about to get
        self._follows_to = 0
        self._at_tables = threading.Lock()
        self._left: Changes | None = None  # a batch that `begin` has begun
        self._took_s = 0.0  # a batch in the journal, of late
        self._again_at = 0.0  # when a journal that could not be made is tried again

    @property
    def is_far_behind(self) -> bool:
        """Whether so much waits for the tables that they should follow soon."""
        return len(self._behind) > _MOST_BEHIND // 2

    def load(self) -> Snapshot:
        """Return everything that is stored; nothing may be behind yet."""
        return self._tables.load()

    def begin(self, changes: Changes) -> bool:
        """Store a batch durably, if that is soon done; else return False, and `apply` must be called with it."""
        if self._took_s > _SLOW_S or len(self._behind) > _MOST_BEHIND:
            return False
        payload = pack_changes(changes)
        if not self._journal.takes(len(payload)):
            return False
        self._number += 1
        began = perf_counter()
        try:
            is_done = self._journal.begin(self._number, payload, _PATIENCE_NS)
        except OSError:
            return False  # the tables are next
        self._took(began)
        if not is_done:
            self._left = changes
            return False
        self._behind.add(changes)
        return True

    def apply(self, changes: Changes, durable: bool = False) -> Refused:
        """Store a batch, in the journal if that takes it."""
        if not self._journaled(changes, durable):
            self._store(changes)
        return _NOTHING

    def _journaled(self, changes: Changes, durable: bool) -> bool:
        left, self._left = self._left, None
        began = perf_counter()
        try:
            if left is not None:
                self._journal.end()
            else:
                payload = pack_changes(changes)
                if len(self._behind) > _MOST_BEHIND or not self._journal.takes(len(payload)):
                    return False
                self._number += 1
                self._journal.append(self._number, payload, durable)
                if durable:
                    self._took(began)
        except OSError:
            return False
        self._behind.add(changes)
        return True

    def _took(self, began: float) -> None:
        self._took_s += (perf_counter() - began - self._took_s) / 8

    def _store(self, changes: Changes) -> None:
        """Write a batch, and all that they do not have yet, to the tables, and begin the journal anew."""
        with self._at_tables:
            self._store_alone(changes)

    def _store_alone(self, changes: Changes) -> None:
        self._number += 1
        whole = MergedChanges()
        for some in (self._following, self._behind):
            if some:
                whole.add(some.changes())
        whole.add(changes)
        try:
            self._tables.apply(whole.changes(), True, self._number)
        except StorageError:  # they may have it or not: nothing that builds on that goes to the journal
            self._journal.stop()
            raise
        self._following, self._behind = None, MergedChanges()
        if perf_counter() >= self._again_at:
            try:
                self._journal.restart(self._number)
            except OSError:  # without it, the tables take everything
                self._again_at = perf_counter() + _RETRY_S

    def take_behind(self) -> bool:
        """Set aside what the tables do not have yet; return whether there is any, so that `follow` is to be called."""
        if self._behind:
            if self._following is None:
                self._following = self._behind
            else:
                self._following.add(self._behind.changes())
            self._behind = MergedChanges()
            self._follows_to = self._number
        return self._following is not None

    def follow(self) -> None:
        """Write to the tables what was set aside; it stays so if that fails."""
        with self._at_tables:
            if self._following is not None:
                self._tables.apply(self._following.changes(), False, self._follows_to)
                self._following = None

    def close(self) -> None:
        """Close both files; the tables have everything then."""
        self._journal.close()
        try:
            if self.take_behind():
                self.follow()
        finally:
            self._tables.close()


def saved_tables(path: str | os.PathLike[str], disk: Disk | None = None) -> SqliteTables:
    """Return the tables as they were last stored, to be read: a broker may be at work on them."""
    journal = journal_path(path)
    data = read_journal(RealDisk() if disk is None else disk, journal)  # first: the tables have what is gone from it
    tables = SqliteTables(path)
    try:
        found = records_after(journal, data, tables.number)
        if not found:
            return tables
        copy = tables.copied()
    except BaseException:
        tables.close()
        raise
    tables.close()
    copy.apply(merged(found), False)
    return copy


def _take_over(tables: SqliteTables, disk: Disk, path: str) -> int:
    """Store what only the journal has; return the number that batches go on from."""
    found = records_after(path, read_journal(disk, path), tables.number)
    number = (found[-1][0] if found else tables.number) + NEVER_GIVEN
    tables.apply(merged(found), True, number)
    return number


def merged(records: list[tuple[int, bytes]]) -> Changes:
    """Return journaled batches as one."""
    whole = MergedChanges()
    for _, payload in records:
        whole.add(unpack_changes(payload))
    return whole.changes()
