"""The local copy of a shard, which is trusted only as far as it fits what the database says was committed.

A file counts if it is a listed segment, byte for byte behind its header, or if each of its batches is a row of the
tail. The first that does not, and all behind it, are removed and read again. It is written after a commit is confirmed,
so a copy that goes further than the database shows that commits were lost there.
"""

import contextlib
import logging
from collections.abc import Mapping

import crc32c

from everlog.base import StorageError
from everlog.cluster.rows import ListedSegment, RowFacts
from everlog.commitlog import HEADER_BYTES, MARK, Disk, Origin, read_segment, segment_bases, segment_path, side_path

_log = logging.getLogger("everlog.cluster")


def keep_what_fits(
    disk: Disk,
    directory: str,
    origin: Origin,
    salt: int,
    rows: list[RowFacts],
    listed: list[ListedSegment],
    end: int,
    gaps: Mapping[int, int],
) -> int:
    """Remove what can't be trusted, and return the epoch of the last segment that stays, 0 if there is none.

    `end` is where the database ends; raise StorageError if a file of this shard goes further. Files follow each other
    but for `gaps`, which were never given out.
    """
    disk.make_directory(directory)
    names = disk.list(directory)
    if MARK in names:
        disk.unlink(f"{directory}/{MARK}")  # it says what this process thought, and the database knows better
    bases = segment_bases(names)
    by_base = {segment.base: segment for segment in listed}
    by_row = {row.base: row for row in rows}
    here, epoch = None, 0
    for place, base in enumerate(bases):
        path = segment_path(directory, base)
        fitting = _fits(disk, path, base, origin, salt, by_base.get(base), by_row, end)
        if fitting is None or here not in (None, base):
            _log.warning("%s does not fit what the database has committed: it is read again from there", path)
            _remove(disk, directory, bases[place:])
            break
        here, epoch = gaps.get(fitting[0], fitting[0]), fitting[1]
    disk.sync_directory(directory)
    return epoch


def _fits(
    disk: Disk,
    path: str,
    base: int,
    origin: Origin,
    salt: int,
    listed: ListedSegment | None,
    rows: dict[int, RowFacts],
    database_end: int,
) -> tuple[int, int] | None:
    """Return where a file's batches end and their epoch, or None if it is not what was committed."""
    file = disk.open(path)
    try:
        data = file.read_at(0, file.size())
        header, batches = read_segment(data, path)
    except (OSError, StorageError):
        return None
    finally:
        file.close()
    if header.salt != salt or header.base_offset != base or header.is_foreign(origin):
        return None
    if batches and batches[-1][0] + batches[-1][1] > database_end:
        raise commits_lost(origin.shard, database_end, batches[-1][0] + batches[-1][1])
    if listed is not None and header.origin.epoch == listed.epoch and crc32c.crc32c(data[HEADER_BYTES:]) == listed.crc:
        return listed.end, listed.epoch
    end = base
    for first, count, body in batches:
        row = rows.get(first)
        if row is None or (row.segment, row.epoch) != (base, header.origin.epoch):
            return None
        if first != end or row.count != count or row.crc != crc32c.crc32c(body):
            return None
        end = row.end
    return (end, header.origin.epoch) if batches else None


def commits_lost(shard: int, end: int, here: int) -> StorageError:
    """Return what to say when a local copy goes further than the database."""
    return StorageError(
        f"shard {shard} ends at {end} in the database, and at {here} here: commits were lost",
        hint="look which database this is and what its failover lost; after a restore from a backup run: "
        "everlog cluster restored DATABASE",
    )


def _remove(disk: Disk, directory: str, bases: list[int]) -> None:
    """Remove segments, the last first, so that what is left never has a gap."""
    for base in reversed(bases):
        disk.unlink(segment_path(directory, base))
        with contextlib.suppress(FileNotFoundError):
            disk.unlink(side_path(directory, base))
