"""The table as the store's cold tier: records by shard, offset and filter, read with Arrow and deltalake alone.

The files of a shard do not overlap by offset, unless another program rewrote them, so a read takes one at a time. Rows
in a file are sorted by topic, so a file, or its row groups that may match a filter, is loaded as a whole and cached for
the next read.
"""

import threading
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from everlog.base import StorageError
from everlog.spark.lake.data_file import DataFile, files_of
from everlog.spark.lake.file_reader import LoadedFile, load_files, position_at, range_may_match
from everlog.spark.lake.identity import find_recorded
from everlog.spark.lake.lake_table import Lake, find_lake
from everlog.spark.lake.location import Location
from everlog.store import Found, LakeRecord, Lost, ReadResult
from everlog.topics import Filter

CACHE_BYTES = 512 << 20  # of loaded files; beyond it the least recently used are dropped, except the last one

_Key = tuple[tuple[DataFile, ...], tuple[Filter, ...] | None]


@dataclass(frozen=True, slots=True)
class FileRun:
    """A file of a shard, or several that overlap by offset and so are read as one."""

    files: tuple[DataFile, ...]

    @property
    def last_offset(self) -> int:
        """The last offset that any of them has."""
        return max(file.last_offset for file in self.files)

    def may_match(self, filters: Sequence[Filter]) -> bool:
        """Return whether any of them may have wanted topics."""
        return any(range_may_match(filters, file.first_topic, file.last_topic) for file in self.files)


def runs_of(files: Sequence[DataFile]) -> list[FileRun]:
    """Return the files of a shard, which come by offset, those together that overlap."""
    found: list[FileRun] = []
    for file in files:
        if found and file.first_offset <= found[-1].last_offset:
            found[-1] = FileRun((*found[-1].files, file))
        else:
            found.append(FileRun((file,)))
    return found


class Version:
    """A version of the table: the files of each shard by offset, and where they begin and end."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._table = lake.load()
        self._starts: dict[int, int] = {}
        self._ends: dict[int, int] = {}
        self.files: dict[int, list[DataFile]] = {}
        for file in files_of(self._table):
            self.files.setdefault(file.shard, []).append(file)
        self.runs = {shard: runs_of(files) for shard, files in self.files.items()}

    def start(self, shard: int) -> int:
        """Return the first offset of a shard, or its end if it is empty."""
        if shard not in self._starts:
            self._starts[shard] = self._lake.starts([shard], self.files.get(shard, []), self._table)[shard]
        return self._starts[shard]

    def end(self, shard: int) -> int:
        """Return the first offset of a shard that is not in the table."""
        if shard not in self._ends:
            self._ends[shard] = self._lake.ends([shard], self._table)[shard] or 0
        return self._ends[shard]


class LakeStore:
    """A `ColdStore`. Any thread may call it; loading a file blocks only the threads that want that file."""

    def __init__(self, location: Location, cache_bytes: int = CACHE_BYTES, lake: Lake | None = None) -> None:
        self._lake = find_lake(location) if lake is None else lake
        self._filesystem, self._root = location.filesystem()
        self._cache_bytes = cache_bytes
        self._cache: OrderedDict[_Key, LoadedFile] = OrderedDict()
        self._lock = threading.Lock()
        self._loading: dict[_Key, threading.Lock] = {}
        self._version = Version(self._lake)

    @classmethod
    def of_record(cls, record: LakeRecord, options: Mapping[str, str] | None = None) -> "LakeStore":
        """Return the table that a data directory names; secrets come from the environment or the options."""
        lake = find_recorded(record, options)
        return cls(lake.location, lake=lake)

    @property
    def store(self) -> str:
        """The identity of the store that the table belongs to."""
        return self._lake.store

    def refresh(self) -> None:
        """See what was committed since; a read that is under way goes on with the version that it began with."""
        self._version = Version(self._lake)

    def start(self, shard: int) -> int:
        """Return the first offset that the table has."""
        return self._version.start(shard)

    def end(self, shard: int) -> int:
        """Return the first offset that is not in the table yet."""
        return self._version.end(shard)

    def position_at(self, shard: int, time_us: int) -> int:
        """Return the first record that is not older than a time, or the end."""
        version = self._version
        files = version.files.get(shard, [])
        return position_at(files, time_us, version.end(shard), lambda: (self._filesystem, self._root))

    def read(
        self, shard: int, offset: int, filters: Sequence[Filter] | None, max_records: int, max_bytes: int
    ) -> ReadResult:
        """Return records from an offset on; a step opens one file at most, so that it never takes long."""
        version = self._version
        runs, start, end = version.runs.get(shard, []), version.start(shard), version.end(shard)
        lost: tuple[Lost, ...] = ()
        if offset < start:
            lost = (Lost(shard, offset, start),)
            offset = start
        wanted = None if filters is None else tuple(dict.fromkeys(filters))
        batches: list[Found] = []
        while offset < end:
            number = bisect_left(runs, offset, key=lambda run: run.last_offset)
            if number == len(runs):
                offset = end
            elif wanted is None or runs[number].may_match(wanted):
                offset = self._read_run(shard, runs[number], offset, wanted, max_records, max_bytes, batches)
                break
            else:
                offset = runs[number].last_offset + 1
        return ReadResult(batches, (offset,), offset >= end, lost)

    def _read_run(
        self,
        shard: int,
        run: FileRun,
        offset: int,
        filters: tuple[Filter, ...] | None,
        max_records: int,
        max_bytes: int,
        batches: list[Found],
    ) -> int:
        """Add what a run has from an offset on; returns where to go on, behind the run when it has no more."""
        loaded = self._load((run.files, filters))
        first = loaded.find(offset)
        if first == len(loaded):
            return run.last_offset + 1
        stop = loaded.rows_within(first, max_records, max_bytes)
        batches += [Found(shard, records, None, 0, records.count) for records in loaded.records(first, stop)]
        return run.last_offset + 1 if stop == len(loaded) else int(loaded.offsets[stop - 1]) + 1

    def _load(self, key: _Key) -> LoadedFile:
        """Return a file's wanted rows, loaded once for all who want them at the same time."""
        with self._lock:
            loaded = self._cache.get(key)
            if loaded is not None:
                self._cache.move_to_end(key)
                return loaded
            turn = self._loading.setdefault(key, threading.Lock())
        with turn:
            with self._lock:
                loaded = self._cache.get(key)
            try:
                if loaded is None:
                    loaded = self._read(key)
                    self._keep(key, loaded)
            finally:
                with self._lock:
                    self._loading.pop(key, None)
        return loaded

    def _read(self, key: _Key) -> LoadedFile:
        try:
            return load_files(self._filesystem, self._root, *key)
        except (OSError, ValueError) as error:
            raise StorageError(
                f"{self._root}/{key[0][0].path} can't be read: {error}",
                hint="if it was vacuumed, read again after a refresh",
            ) from error

    def _keep(self, key: _Key, loaded: LoadedFile) -> None:
        with self._lock:
            self._cache[key] = loaded
            while len(self._cache) > 1 and sum(one.size_bytes for one in self._cache.values()) > self._cache_bytes:
                self._cache.popitem(last=False)

    def close(self) -> None:
        """Drop what was loaded."""
        with self._lock:
            self._cache.clear()
