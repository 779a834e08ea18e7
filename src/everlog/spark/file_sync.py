"""Makes files and directories durable."""

import os

from everlog.base import StorageError


def sync_path(path: str) -> None:
    """Have a file, or the names in a directory, on the disk."""
    try:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        raise StorageError(f"{path} can't be synced to the disk: {error.strerror}") from error
