"""Shards on disks of their own: `shard-K` in the data directory is a link to where it is.

Whoever opens the data directory, such as `everlog verify` and Spark, finds them there. A shard that exists stays where
it is, whatever the settings say by now.
"""

import os
from collections.abc import Sequence

from everlog.base import StorageError


def place_shards(data: str, shards: int, directories: Sequence[str]) -> None:
    """Make the shards of a store that are not there yet in these directories, by turns, and links to them."""
    for number in range(shards):
        link = os.path.join(data, f"shard-{number}")
        if os.path.islink(link) and not os.path.isdir(link):
            raise StorageError(f"{link} is a link to {os.readlink(link)}, which is not there", hint="mount its disk")
        if directories and not os.path.isdir(link):
            place = os.path.join(os.path.abspath(directories[number % len(directories)]), f"shard-{number}")
            if os.path.exists(place):
                raise StorageError(
                    f"{place} is there, and {link} is not", hint=f"if it is this store's: ln -s {place} {link}"
                )
            _make(place)
            _make(data)
            os.symlink(place, link)
            _sync(data)


def _make(directory: str) -> None:
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        _sync(os.path.dirname(os.path.abspath(directory)))
    except OSError as error:
        raise StorageError(f"{directory} can't be made: {error.strerror}", hint="check log.directories") from error


def _sync(directory: str) -> None:
    number = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
