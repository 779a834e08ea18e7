"""The table as the store's cold tier: records by shard, offset and filter, read with Arrow and deltalake alone.

The files of a shard do not overlap by offset, so a read takes one at a time. Rows in a file are sorted by topic, so a
file, or its row groups that may match a filter, is loaded as a whole and cached for the next read.
"""

import threading
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Mapping, Sequence

from everlog.base import StorageError
from everlog.spark.lake.data_file import DataFile, files_of
from everlog.spark.lake.file_reader import LoadedFile, load_file, position_at, range_may_match
from everlog.spark.lake.identity import find_recorded
from everlog.spark.lake.lake_table import Lake, find_lake
from everlog.spark.lake.location import Location
from everlog.store import Found, LakeRecord, Lost, ReadResult
from everlog.topics import Filter

CACHE_BYTES = 512 << 20  # of loaded files; beyond it the least recently used are dropped, except the last one

_Key = tuple[str, tuple[Filter, ...] | None]


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
        files, start, end = version.files.get(shard, []), version.start(shard), version.end(shard)
        lost: tuple[Lost, ...] = ()
        if offset < start:
            lost = (Lost(shard, offset, start),)
            offset = start
        wanted = None if filters is None else tuple(dict.fromkeys(filters))
        batches: list[Found] = []
        while offset < end:
            number = bisect_left(files, offset, key=lambda file: file.last_offset)
            if number == len(files):
                offset = end
            elif wanted is None or range_may_match(wanted, files[number].first_topic, files[number].last_topic):
                offset = self._read_file(shard, files[number], offset, wanted, max_records, max_bytes, batches)
                break
            else:
                offset = files[number].last_offset + 1
        return ReadResult(batches, (offset,), offset >= end, lost)

    def _read_file(
        self,
        shard: int,
        file: DataFile,
        offset: int,
        filters: tuple[Filter, ...] | None,
        max_records: int,
        max_bytes: int,
        batches: list[Found],
    ) -> int:
        """Add what a file has from an offset on; returns where to go on, behind the file when it has no more."""
        loaded = self._load((file.path, filters))
        first = loaded.find(offset)
        if first == len(loaded):
            return file.last_offset + 1
        stop = loaded.rows_within(first, max_records, max_bytes)
        batches += [Found(shard, records, None, 0, records.count) for records in loaded.records(first, stop)]
        return file.last_offset + 1 if stop == len(loaded) else int(loaded.offsets[stop - 1]) + 1

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
            return load_file(self._filesystem, self._root, *key)
        except (OSError, ValueError) as error:
            raise StorageError(
                f"{self._root}/{key[0]} can't be read: {error}",
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
