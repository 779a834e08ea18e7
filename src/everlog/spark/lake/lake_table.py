"""The table and its commits: which offsets of each shard it has, and how files are added and removed exactly once.

The table's own log is the truth. A commit checks the transaction versions that it was planned on and is made on that
very state: another commit to the same transaction in between makes it fail. Only files that a task reported and that
are there as reported are committed.
"""

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from deltalake import DeltaTable, Schema
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, CommitProperties, RemoveAction, Transaction

from everlog.base import Unavailable, UsageError
from everlog.spark.file_sync import sync_path
from everlog.spark.lake.data_file import DataFile, files_of
from everlog.spark.lake.file_check import check_files
from everlog.spark.lake.location import Location
from everlog.spark.lake.table_layout import (
    FORMAT,
    FORMAT_PROPERTY,
    PARTITION,
    PROPERTIES,
    STORE_PROPERTY,
    TABLE_SCHEMA,
    hole_transactions,
    lost_transaction,
    rewrite_transaction,
    shard_transaction,
    start_transaction,
)
from everlog.store import Lost


class Overtaken(Unavailable):
    """Another writer committed first; what was written is not in the table: plan again on what it holds now."""


class NoTable(UsageError):
    """There is no table in a place."""


@dataclass(frozen=True, slots=True)
class Lake:
    """A table that exists, and the store that it belongs to."""

    location: Location
    store: str

    def load(self) -> DeltaTable:
        """Return the table as it is now."""
        return DeltaTable(self.location.uri, storage_options=dict(self.location.options) or None)

    def ends(self, shards: Iterable[int], table: DeltaTable | None = None) -> dict[int, int | None]:
        """Return for each shard the first offset that is not in the table; None where it never had any."""
        table = self.load() if table is None else table
        return {shard: table.transaction_version(shard_transaction(self.store, shard)) for shard in shards}

    def files(self, table: DeltaTable | None = None) -> list[DataFile]:
        """Return the files of the table by shard and offset."""
        return files_of(self.load() if table is None else table)

    def starts(self, shards: Iterable[int], files: Sequence[DataFile], table: DeltaTable) -> dict[int, int]:
        """Return where each shard begins in the table: at or before its first record, or at its end if it is empty."""
        firsts = {file.shard: file.first_offset for file in reversed(files)}
        found = {}
        for shard, end in self.ends(shards, table).items():
            known = table.transaction_version(start_transaction(self.store, shard))
            found[shard] = firsts.get(shard, end or 0) if known is None else known
        return found

    def lost(self, starts: Mapping[int, int], table: DeltaTable) -> list[Lost]:
        """Return the holes of shards after their start, by offset: what retention removed before it was compacted."""
        found: list[Lost] = []
        for shard, start in starts.items():
            holes: list[Lost] = []
            for number in range(table.transaction_version(lost_transaction(self.store, shard)) or 0, 0, -1):
                names = hole_transactions(self.store, shard, number)
                first, stop = (table.transaction_version(name) or 0 for name in names)
                if stop <= start:  # so do the older ones
                    break
                holes.append(Lost(shard, max(first, start), stop))
            found += reversed(holes)
        return found

    def append(
        self,
        files: Sequence[DataFile],
        ranges: Mapping[int, tuple[int | None, int]],
        starts: Mapping[int, int] | None = None,
        lost: Iterable[Lost] = (),
    ) -> int:
        """Commit files that move shards from one end to another; returns the version. `Overtaken` if an end has moved.

        `starts` says where shards begin that are new to the table, `lost` what will never be in it.
        """
        check_files(self.location, files)
        table = self.load()
        ends = self.ends(ranges, table)
        for shard, (expected, _) in ranges.items():
            if ends[shard] != expected:
                raise Overtaken(f"shard {shard} was expected to end at {expected} in the table, it is {ends[shard]}")
        moved = [Transaction(shard_transaction(self.store, shard), to) for shard, (_, to) in ranges.items()]
        moved += [Transaction(start_transaction(self.store, shard), start) for shard, start in (starts or {}).items()]
        for hole in lost:
            count = lost_transaction(self.store, hole.shard)
            number = (table.transaction_version(count) or 0) + 1
            first, stop = hole_transactions(self.store, hole.shard, number)
            moved += [Transaction(count, number)]
            moved += [Transaction(first, hole.from_offset), Transaction(stop, hole.to_offset)]
        return self._commit(table, [file.added() for file in files], moved, "compact")

    def rewrite(self, old: Sequence[DataFile], new: Sequence[DataFile], why: str) -> int:
        """Replace files by others with the same rows and return the version; raises `Overtaken` if one is gone."""
        check_files(self.location, new)
        now_ms = time.time_ns() // 1_000_000
        gone = [file.removed(now_ms, moved=True) for file in old]
        return self._replace(old, [*gone, *(file.added(moved=True) for file in new)], why)

    def drop(self, old: Sequence[DataFile], why: str) -> int:
        """Remove files from the table and return the version; raises `Overtaken` if one is gone."""
        now_ms = time.time_ns() // 1_000_000
        once = {file.path: file for file in old}
        return self._replace(old, [file.removed(now_ms) for file in once.values()], why, is_loss=True)

    def _replace(
        self, old: Sequence[DataFile], actions: list[AddAction | RemoveAction], why: str, is_loss: bool = False
    ) -> int:
        table = self.load()
        files = self.files(table)
        present = {file.path for file in files}
        missing = [file.path for file in old if file.path not in present]
        if missing:
            raise Overtaken(f"{len(missing)} files to be replaced are no longer in the table, as {missing[0]}")
        name = rewrite_transaction(self.store)
        counted = Transaction(name, (table.transaction_version(name) or 0) + 1)
        moved = self._later(table, files, {file.path for file in old}) if is_loss else []
        return self._commit(table, actions, [counted, *moved], why)

    def _later(self, table: DeltaTable, files: Sequence[DataFile], gone: set[str]) -> list[Transaction]:
        """Return where shards begin once some files are gone."""
        shards = {file.shard for file in files if file.path in gone}
        firsts = {file.shard: file.first_offset for file in reversed(files) if file.path not in gone}
        ends = self.ends(shards, table)
        return [
            Transaction(start_transaction(self.store, shard), firsts.get(shard, ends[shard] or 0)) for shard in shards
        ]

    def _commit(
        self, table: DeltaTable, actions: list[AddAction | RemoveAction], moved: list[Transaction], why: str
    ) -> int:
        about = CommitProperties(custom_metadata={"userMetadata": f"everlog {why}"}, app_transactions=moved)
        try:
            table.create_write_transaction(actions, "append", TABLE_SCHEMA, [PARTITION], commit_properties=about)
        except CommitFailedError as error:
            raise Overtaken(f"another writer committed first: {error}") from error
        table.update_incremental()
        version = table.version()
        if self.location.is_local:
            sync_log(self.location.uri)
        return version


def open_lake(location: Location, store: str, *, make: bool = True) -> Lake:
    """Open the table of a store in a place; made if there is none, unless `make` is False."""
    for _ in range(3):
        try:
            lake = Lake(location, store)
            _check(lake)
            return lake
        except TableNotFoundError:
            if not make:
                raise NoTable(f"{location.uri} holds no table") from None
            _create(location, store)
    raise Unavailable(f"{location.uri} can't be opened as a table")


def find_lake(location: Location) -> Lake:
    """Open the table in a place, whatever store it belongs to."""
    try:
        table = Lake(location, "").load()
    except TableNotFoundError:
        raise NoTable(
            f"{location.uri} holds no table", hint="make one with: everlog spark compact DATA --table ..."
        ) from None
    lake = Lake(location, table.metadata().configuration.get(STORE_PROPERTY, ""))
    _check(lake, table)
    return lake


def _check(lake: Lake, table: DeltaTable | None = None) -> None:
    """Refuse a table of another making, another version or another store."""
    known = (lake.load() if table is None else table).metadata().configuration
    if known.get(FORMAT_PROPERTY) != FORMAT:
        raise UsageError(
            f"{lake.location.uri} is a table, and not one of this version of Everlog",
            hint="give another --table, or read it with a newer Everlog",
        )
    if known.get(STORE_PROPERTY) != lake.store:
        raise UsageError(
            f"{lake.location.uri} is the table of another store ({known.get(STORE_PROPERTY)}, not {lake.store})",
            hint="give another --table",
        )


def _create(location: Location, store: str) -> None:
    """Make an empty table; another writer may do so at the same time."""
    try:
        DeltaTable.create(
            location.uri,
            Schema.from_arrow(TABLE_SCHEMA),
            mode="error",
            partition_by=[PARTITION],
            name="everlog",
            description="Messages of an Everlog store",
            configuration={**PROPERTIES, STORE_PROPERTY: store},
            storage_options=dict(location.options) or None,
            raise_if_key_not_exists=False,
        )
    except CommitFailedError:
        return
    except DeltaError as error:
        if "already exists" not in str(error):
            raise


def sync_log(root: str) -> None:
    """Sync the newest commits of a local table to the disk, as segments may be deleted because of them."""
    directory = f"{root}/_delta_log"
    newest = sorted(name for name in os.listdir(directory) if name.endswith(".json"))[-2:]
    for path in (*(f"{directory}/{name}" for name in newest), directory, root):
        sync_path(path)
