"""Small files in a data directory that are replaced whole: a reader sees the old one or the new one."""

import os
import uuid
from pathlib import Path

from everlog.base import StorageError


def replace_file(data: str, name: str, content: bytes) -> None:
    """Replace a file of a data directory durably."""
    path = Path(data) / name
    temporary = path.with_name(f".{name}.{uuid.uuid4().hex}")
    try:
        with temporary.open("xb") as file:
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
