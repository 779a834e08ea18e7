"""The journal of a state shard in a local directory: a shard log, whose lock on the directory is the fence.

A record's topic is the stream's name, its payload the encoded effect. The epoch is a number in a small file beside the
log, one more at each opening. Commits run on the log's own thread, or here when they are likely to be quick.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

from msgspec import Struct

from everlog.base import EverlogError, MessageColumns, StorageError, TopicTable, Unavailable
from everlog.commitlog import Disk, LogSettings, RealDisk, ShardLog
from everlog.store import read_record, write_record
from everlog.streams.journal_rows import fill_columns

READ_BYTES = 1 << 20
_MOST_NAMES = 1 << 18  # of streams in the table of names; at the limit it begins anew
_EPOCH_FILE = "epoch.json"
_GROUP = 1_000  # records that are written together when a journal is restored

Done = Callable[[int], None]
Failed = Callable[[EverlogError], None]


class EpochFile(Struct):
    """The epoch of the last opening."""

    epoch: int
    version: int = 1


class LocalJournal:
    """A journal in a directory that this process alone has open; made by `open`."""

    def __init__(self, log: ShardLog, epoch: int) -> None:
        self.epoch = epoch
        self._log = log
        self._table = TopicTable(0, _MOST_NAMES)
        self._columns = MessageColumns(64)
        self._numbers: dict[str, int] = {}  # of names in the table
        self._gate = threading.Lock()  # guards who waits
        self._waiting: deque[tuple[int, Done, Failed]] = deque()
        log.on_commit = self._committed
        log.on_failure = self._failed

    @classmethod
    def open(
        cls,
        directory: str,
        *,
        disk: Disk | None = None,
        settings: LogSettings | None = None,
        epoch: int | None = None,
        background: bool = True,
        not_below: int = 0,
    ) -> "LocalJournal":
        """Open the journal in a directory, or make one; without `epoch`, the file beside it tells.

        The next position is at least `not_below`.
        """
        settings = settings or LogSettings(retention_bytes=0, merge_below=0)
        log = ShardLog.open(disk or RealDisk(), directory, settings, background=background, not_below=not_below)
        try:
            if epoch is None:
                known = read_record(directory, _EPOCH_FILE, EpochFile, (1,), "restore it from a backup")
                epoch = known.epoch + 1 if known is not None else 1
                write_record(directory, _EPOCH_FILE, EpochFile(epoch))
        except BaseException:
            log.close()
            raise
        return cls(log, epoch)

    @classmethod
    def restore(cls, directory: str, epoch: int, start: int, records: Iterable[tuple[str, bytes]]) -> int:
        """Make a journal of records from a position on, whose last owner had an epoch; return where it ends."""
        failures: list[EverlogError] = []
        journal = cls.open(directory, epoch=epoch, not_below=start)
        try:
            records = iter(records)
            while group := list(islice(records, _GROUP)):
                journal.append(group)
                journal.commit(lambda end: None, failures.append)
        finally:
            journal.close()
        if failures:
            raise failures[0]
        write_record(directory, _EPOCH_FILE, EpochFile(epoch))
        return journal.committed

    @classmethod
    def follow(cls, directory: str) -> "LocalJournal":
        """Open the journal in a directory beside its owner, to read what is committed by now."""
        return cls(ShardLog.open(RealDisk(), directory, writable=False), 0)

    @property
    def start(self) -> int:
        """The first position that can still be read."""
        return self._log.start

    @property
    def end(self) -> int:
        """The position after the last appended record."""
        return self._log.end

    @property
    def committed(self) -> int:
        """The position after the last committed record."""
        return self._log.committed

    def append(self, records: Sequence[tuple[str, bytes]]) -> int:
        """Append records of (stream name, effect) and return the position of the first."""
        table, columns, count = self._table, self._columns, len(records)
        if len(table) + count > _MOST_NAMES:
            table.reset()
            self._numbers.clear()
        fill_columns(columns, records, table, self._numbers)
        first = self._log.end
        self._log.append(columns, 0, count, 0, table)
        columns.source = b""
        return first

    def commit(self, done: Done, failed: Failed) -> None:
        """Ask for a commit of all that was appended; `done` or `failed` tells the end of it."""
        log, end = self._log, self._log.end
        with self._gate:
            if log.failure is None and log.committed < end:
                self._waiting.append((end, done, failed))
                end = -1
        if end >= 0:
            self._answer(done, failed)
            return
        log.commit_here()
        if log.failure is not None:
            self._failed(log, log.failure)

    def _answer(self, done: Done, failed: Failed) -> None:
        if self._log.failure is not None:
            failed(self._log.failure)
        else:
            done(self._log.committed)

    def _committed(self, log: ShardLog, committed: int) -> None:
        reached: list[Done] = []
        with self._gate:
            while self._waiting and self._waiting[0][0] <= committed:
                reached.append(self._waiting.popleft()[1])
        for done in reached:
            done(committed)

    def _failed(self, log: ShardLog, failure: StorageError) -> None:
        with self._gate:
            waiting, self._waiting = list(self._waiting), deque()
        for _, _, failed in waiting:
            failed(failure)

    def read(self, position: int, end: int, stream: str | None = None) -> Iterator[tuple[int, str, bytes]]:
        """Yield committed records from `position` to before `end`, of one stream or of all."""
        log = self._log
        if position < log.start:
            raise StorageError(f"position {position} is below {log.start}, where the journal begins")
        end = min(end, log.committed)
        wanted = None if stream is None else stream.encode()
        names: dict[int, str] = {}
        table = None
        while position < end:
            batches = log.read(position, READ_BYTES)
            if not batches or batches[0].base_offset > position:
                raise StorageError(f"position {position} of the journal can't be read", hint="run: everlog verify")
            for records in batches:
                if records.base_offset > position:
                    raise StorageError(f"position {position} of the journal can't be read", hint="run: everlog verify")
                if records.table is not table:
                    table, names = records.table, {}
                only = None if wanted is None else table.lookup(wanted)
                stop = min(end, records.end_offset)
                if only is None or only >= 0:
                    for row in range(position - records.base_offset, stop - records.base_offset):
                        offset, _, topic, _, _, effect = records.row(row)
                        if only is None or topic == only:
                            name = names.get(topic)
                            if name is None:
                                name = names[topic] = table.name(topic).decode()
                            yield offset, name, effect
                position = stop
                if position >= end:
                    return

    def trim(self, below: int) -> None:
        """Remove whole segments that end at or below a position."""
        self._log.run_retention(0, keep_from=below)

    def close(self) -> None:
        """Commit what was appended and let go of the directory."""
        self._log.close()
        self._fail_rest()

    def _fail_rest(self) -> None:
        with self._gate:
            waiting, self._waiting = list(self._waiting), deque()
        for end, done, failed in waiting:
            if end <= self._log.committed:
                done(self._log.committed)
            else:
                failed(self._log.failure or Unavailable("the journal was closed"))
