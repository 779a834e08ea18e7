"""Retention of the table by whole days, and removal of files that nothing refers to any more."""

from collections.abc import Sequence

from deltalake import DeltaTable
from pyarrow import fs

from everlog.base import UsageError
from everlog.spark.lake.data_file import DataFile
from everlog.spark.lake.lake_table import Lake
from everlog.spark.lake.location import Location
from everlog.spark.lake.table_layout import DAY_US, TOPIC_DIRECTORY, data_path_of, day_number, day_text

VACUUM_HOURS = 168  # readers have a week to finish with what was removed


def plan_retention(files: Sequence[DataFile], now_us: int, retain_us: int) -> list[DataFile]:
    """Return the files of days that ended longer ago than `retain_us`."""
    oldest = day_text(day_number(max(0, now_us - retain_us)))  # this day is kept: some of it is young enough
    return [file for file in files if file.day < oldest]


def parse_days(seconds: float) -> int:
    """Return a retention time in microseconds; at least a day, as whole days are dropped."""
    retain_us = int(seconds * 1_000_000)
    if retain_us < DAY_US:
        raise UsageError("the table is kept by whole days", hint="retain 1d or more")
    return retain_us


def vacuum(lake: Lake, hours: int = VACUUM_HOURS, *, dry_run: bool = False, force: bool = False) -> list[str]:
    """Remove files that no version of the last `hours` refers to, also those of failed attempts; returns their paths.

    Topic files go with their data files, which are written before them, and are not among the paths. A task that takes
    longer than `hours` from its file to its commit would lose it, so short times need `force`.
    """
    _check_hours(hours, force)
    found = lake.load().vacuum(hours, dry_run=dry_run, enforce_retention_duration=False, full=True)
    if not dry_run:
        _remove_topic_files(lake.location)
    return sorted(found)


def keep_plain(
    location: Location, hours: int = VACUUM_HOURS, *, merge: bool = False, dry_run: bool = False, force: bool = False
) -> tuple[list[str], int]:
    """Vacuum a table that the sink writes, after its small files were put together where that is asked for.

    Returns the paths of what was removed, and how many files were merged. Which batches the table has stays known.
    """
    _check_hours(hours, force)
    table = DeltaTable(location.uri, storage_options=dict(location.options) or None)
    merged = 0
    if merge and not dry_run:
        merged = int(table.optimize.compact()["numFilesRemoved"])
    return sorted(table.vacuum(hours, dry_run=dry_run, enforce_retention_duration=False, full=True)), merged


def _check_hours(hours: int, force: bool) -> None:
    if hours < 24 and not force:
        raise UsageError(
            f"{hours} hours may be too few for readers and compactions that are under way",
            hint="give 24 or more, or --force when nothing else uses the table",
        )


def _remove_topic_files(location: Location) -> None:
    """Remove the topic files whose data file is gone."""
    filesystem, root = location.filesystem()
    found = filesystem.get_file_info(fs.FileSelector(f"{root}/{TOPIC_DIRECTORY}", allow_not_found=True, recursive=True))
    paths = [file.path.removeprefix(f"{root}/") for file in found if file.type == fs.FileType.File]
    data = filesystem.get_file_info([f"{root}/{data_path_of(path)}" for path in paths])
    for path, file in zip(paths, data, strict=True):
        if file.type == fs.FileType.NotFound:
            filesystem.delete_file(f"{root}/{path}")
