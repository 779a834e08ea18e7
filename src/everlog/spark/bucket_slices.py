"""The tasks' side of a cluster: slices whose segments are objects of a bucket, or rows of the tail that came along.

An object is read whole, checked, and let go of before the next one; tasks know nothing of the database.
"""

import logging
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import crc32c
import msgspec

from everlog.base import Records, StorageError, Unavailable
from everlog.commitlog import HEADER_BYTES, Damage, read_segment, read_whole
from everlog.spark.snapshot import BucketAddress, SegmentFile, Slice
from everlog.store import BatchFilter, Found
from everlog.tiering import Bucket, open_bucket
from everlog.topics import Filter

if TYPE_CHECKING:
    from everlog.spark.log_slices import OnDamage, OnLost, ReadReport

log = logging.getLogger(__name__)

ROWS_VERSION = 1
Rows = Sequence[tuple[bytes, bytes]]  # bodies, and the names that each needs


@lru_cache(maxsize=4)
def open_address(address: BucketAddress) -> Bucket:
    """Return a bucket, opened once a process."""
    return open_bucket(address.place, dict(address.options))


def pack_rows(rows: Rows) -> bytes:
    """Return rows of the tail as bytes, for a plan or an object."""
    return msgspec.msgpack.encode((ROWS_VERSION, rows))


def unpack_rows(data: bytes) -> list[tuple[bytes, bytes]]:
    """Return the rows in such bytes."""
    version, rows = msgspec.msgpack.decode(data, type=tuple[int, list[tuple[bytes, bytes]]])
    if version != ROWS_VERSION:
        raise StorageError(f"rows of version {version} are not known", hint="use one Everlog on driver and workers")
    return rows


def read_object(data: bytes, segment: SegmentFile) -> list[Records]:
    """Return the batches of a segment's object, checked."""
    if len(data) != segment.size_bytes or crc32c.crc32c(data[HEADER_BYTES:]) != segment.crc:
        raise StorageError(f"{segment.path} is not what was stored", hint="restore it from a backup")
    _, batches = read_segment(data, segment.path)
    return read_whole([body for _, _, body in batches], segment.base_offset)


def find_in_bucket(
    piece: Slice,
    filters: tuple[Filter, ...] | None,
    on_damage: "OnDamage",
    on_lost: "OnLost",
    report: "ReadReport",
) -> Iterator[Found]:
    """Yield the wanted records of a slice, by rising offset."""
    assert piece.bucket is not None
    bucket = open_address(piece.bucket)
    chosen = BatchFilter(filters)
    for segment in piece.segments:
        start, stop = max(piece.start, segment.base_offset), min(piece.stop, segment.end_offset)
        if start >= stop:
            continue
        try:
            batches = _read(bucket, segment)
        except StorageError as error:
            if on_damage == "fail":
                hint = 'restore it from a backup, or read the rest with the option "onDamage" set to "skip"'
                raise StorageError(error.message, hint=hint) from error
            report.lost += stop - start
            report.damage.append(Damage(segment.path, 0, error.message, start, stop))
            continue
        if batches is None:
            _removed(piece.shard, start, stop, on_lost, report)
            continue
        for records in batches:
            found = chosen.choose(piece.shard, records, start, stop)
            if found is not None:
                yield found


def read_held(bucket: Bucket, segment: SegmentFile) -> list[Records]:
    """Return a segment's batches; raise `Unavailable` if its object is gone."""
    batches = _read(bucket, segment)
    if batches is None:
        raise Unavailable(f"{segment.path} was deleted from the bucket", hint="load the frame again")
    return batches


def _read(bucket: Bucket, segment: SegmentFile) -> list[Records] | None:
    """Return a segment's batches, or None if its object is gone."""
    if segment.rows:
        return _read_rows(segment.rows)
    data = bucket.get(segment.path)
    if data is None:
        return None
    return read_object(data, segment) if segment.sealed else _read_rows(data)


def _read_rows(data: bytes) -> list[Records]:
    from everlog.cluster import read_together

    return read_together(unpack_rows(data))


def _removed(shard: int, start: int, stop: int, on_lost: "OnLost", report: "ReadReport") -> None:
    if on_lost == "skip":
        report.removed += stop - start
        return
    raise Unavailable(
        f"offsets {start} to {stop - 1} of shard {shard} were deleted from the bucket before they were read",
        hint="load the frame again, with a longer pinHours",
    )
