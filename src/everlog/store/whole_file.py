"""Small files in a data directory that are replaced whole: a reader sees the old one or the new one."""

import os
import uuid
from pathlib import Path
from typing import TypeVar

import msgspec

from everlog.base import StorageError

T = TypeVar("T", bound=msgspec.Struct)


def read_record(data: str, name: str, kind: type[T], versions: tuple[int, ...], hint: str) -> T | None:
    """Return the record in a file of JSON, or None if there is no file; refuse one with an unknown `version`.

    `hint` says what to do with a file that can't be read.
    """
    path = Path(data) / name
    try:
        record = msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise StorageError(f"{path}: {error}", hint=hint) from None
    version = getattr(record, "version", None)
    if version not in versions:
        raise StorageError(f"{path}: version {version} is not known", hint="read it with a newer Everlog")
    return record


def write_record(data: str, name: str, record: msgspec.Struct) -> None:
    """Replace a file by a record as JSON, durably."""
    _replace(data, name, msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n")


def _replace(data: str, name: str, content: bytes) -> None:
    """Replace a file of a data directory durably."""
    path = Path(data) / name
    temporary = path.with_name(f".{name}.{uuid.uuid4().hex}")
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
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
