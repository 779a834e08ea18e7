"""`lake.json` in a data directory: where the store's table is, and how far it goes.

Derived data, replaced whole after a commit; the table is the truth. An end in it is never ahead of the table's, so
what lies below it may be dropped from the log. The path of a table inside the directory is relative, so that both can
be moved or copied together; whoever reads the record gets the full path.
"""

import os

import msgspec

from everlog.store.whole_file import read_record, write_record

FILE_NAME = "lake.json"
VERSION = 2
_ABSOLUTE = 1  # the version in which every path was absolute

_HINT = "remove it, and run: everlog spark compact DATA --table ..., with its place"


class LakeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of the file; `options` are the names of the storage options by which the table is reached."""

    table: str
    store: str
    ends: dict[int, int]
    options: list[str] = []
    version: int = VERSION


def write_lake_record(data: str, record: LakeRecord) -> None:
    """Replace the file whole and durably."""
    written = msgspec.structs.replace(record, table=_relative(data, record.table))
    write_record(data, FILE_NAME, written)


def read_lake_record(data: str) -> LakeRecord | None:
    """Return the contents of the file, or None if there is none; refuse an unknown version."""
    record = read_record(data, FILE_NAME, LakeRecord, (_ABSOLUTE, VERSION), _HINT)
    if record is None:
        return None
    return msgspec.structs.replace(record, table=_resolve(data, record), version=VERSION)


def _relative(data: str, table: str) -> str:
    """Return a path inside the data directory relative to it, and any other as it is."""
    if "://" in table or not os.path.isabs(table):
        return table
    for whole in (os.path.abspath, os.path.realpath):
        inside = os.path.relpath(whole(table), whole(data))
        if inside.split(os.sep)[0] not in (os.pardir, os.curdir):
            return inside
    return table


def _resolve(data: str, record: LakeRecord) -> str:
    """Return where the table is now."""
    table = record.table
    if "://" in table:
        return table
    own = os.path.join(os.path.abspath(data), table if not os.path.isabs(table) else os.path.basename(table))
    if not os.path.isabs(table):
        return own
    # the directory was moved if the table has gone, or copied if it lies in another data directory
    elsewhere = not _is_table(table) or os.path.exists(os.path.join(os.path.dirname(table), "store"))
    return own if record.version == _ABSOLUTE and elsewhere and _is_table(own) else table


def _is_table(path: str) -> bool:
    return os.path.isdir(os.path.join(path, "_delta_log"))
