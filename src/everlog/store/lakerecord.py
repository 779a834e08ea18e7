"""`lake.json` in a data directory: where the store's table is, and how far it goes.

Derived data, replaced whole after a commit; the table is the truth. An end in it is never ahead of the table's, so
what lies below it may be dropped from the log.
"""

import os
import uuid
from pathlib import Path

import msgspec

from everlog.base import StorageError

FILE_NAME = "lake.json"
VERSION = 1


class LakeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What the file says; `options` are the names of the storage options that the table was reached with."""

    table: str
    store: str
    ends: dict[int, int]
    options: list[str] = []
    version: int = VERSION


def write_lake_record(data: str, record: LakeRecord) -> None:
    """Replace the file whole, and have it on the disk."""
    path = Path(data) / FILE_NAME
    temporary = path.with_name(f".{FILE_NAME}.{uuid.uuid4().hex}")
    try:
        with temporary.open("xb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        handle = os.open(data, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise StorageError(f"{path} can't be written: {error.strerror}") from error


def read_lake_record(data: str) -> LakeRecord | None:
    """What the file says; None when there is none. A version that is not known is refused."""
    path = Path(data) / FILE_NAME
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        record = msgspec.json.decode(content, type=LakeRecord)
    except msgspec.DecodeError as error:
        raise StorageError(f"{path}: {error}", hint="run: everlog spark compact DATA") from None
    if record.version != VERSION:
        raise StorageError(f"{path}: version {record.version} is not known", hint="read it with a newer Everlog")
    return record
