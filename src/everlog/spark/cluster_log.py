"""The driver's side of a cluster: what its shards have, as a snapshot, and the rows of the tail for the tasks.

A connection stays open in the driver's process, one for each cluster. A snapshot is pinned after it was taken: that
makes it certain, and its objects stay. Rows of the tail go to the tasks with the plan, or by objects below `pins/` if
they are many, which go with the pin.
"""

import atexit
import secrets
import struct
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import replace

import msgspec

from everlog.base import StorageError
from everlog.cluster import ClusterDatabase, Left, ListedSegment, LogReader, RowRun, TailSegment, pin_folder
from everlog.commitlog import FRAME_BYTES, HEADER_BYTES
from everlog.spark.bucket_slices import open_address, pack_rows, read_held
from everlog.spark.cluster_place import ClusterPlace
from everlog.spark.snapshot import SegmentFile, ShardSnapshot, Slice, Snapshot
from everlog.store import LAKE_RECORD, LakeRecord, Positions
from everlog.tiering import Bucket

INLINE_BYTES = 4 << 20  # of rows that go to the tasks with the plan of a frame; more go by objects
_TIMES = struct.Struct("<QQ")  # of a batch's first and last record, at byte 32 of its header
_HEAD_BYTES = 64
_LOOKS = 20

_readers: dict[ClusterPlace, LogReader] = {}
_pins: dict[ClusterPlace, int] = {}  # of streams, renewed by each look


def open_reader(place: ClusterPlace) -> LogReader:
    """Return this process's reader of a cluster."""
    if place not in _readers:
        if not _readers:
            atexit.register(close_readers)
        _readers[place] = LogReader(ClusterDatabase(place.url, place.schema))
    return _readers[place]


def close_readers() -> None:
    """Close all connections of this process."""
    while _readers:
        _readers.popitem()[1].close()
    _pins.clear()


def take_cluster_snapshot(place: ClusterPlace, *, again: bool = False) -> Snapshot:
    """Return a cluster's log as it is committed now, pinned; who looks `again` and again renews one pin."""
    reader = open_reader(place)
    identity = f"{reader.store.identity:016x}"
    extents = reader.look()
    seconds = place.pin_hours * 3600.0
    pin = _pins.get(place, 0) if again else 0
    if not pin or not reader.renew(pin, seconds):
        pin = reader.pin("spark", seconds)
    if again:
        _pins[place] = pin
    shards = []
    for one in extents:
        segments = [*map(_listed_file, one.listed), *map(_tail_file, one.tail)]
        start = segments[0].base_offset if segments else one.end
        shards.append(ShardSnapshot(one.shard, f"{one.salt:016x}", start, one.end, tuple(segments)))
    return Snapshot(place.title, identity, tuple(shards), place.bucket, pin)


def unpin(place: ClusterPlace) -> None:
    """Let go of the pin that `again` and again was renewed."""
    pin = _pins.pop(place, 0)
    if pin:
        open_reader(place).unpin(pin)


def _listed_file(one: ListedSegment) -> SegmentFile:
    return SegmentFile(one.name, one.base, one.end, 0, 0, one.size, True, one.crc)


def _tail_file(one: TailSegment) -> SegmentFile:
    return SegmentFile("", one.base, one.end, 0, 0, max(1, one.size), False, batches=one.rows)


def fill_tails(place: ClusterPlace, pin: int, slices: Sequence[Slice]) -> list[Slice]:
    """Return the slices with all that tasks need: rows of the tail, or the objects that have these rows by now."""
    bucket = open_address(place.bucket)
    room = INLINE_BYTES
    filled = []
    for piece in slices:
        for part in _by_segment(piece):
            if part.segments[-1].sealed:
                filled.append(part)
                continue
            for held in _rows_of(open_reader(place), part):
                if held.segments[-1].rows:
                    packed = held.segments[-1].rows
                    if len(packed) > room:
                        held = _stored(bucket, pin, held)
                    else:
                        room -= len(packed)
                filled.append(held)
    return filled


def _by_segment(piece: Slice) -> Iterator[Slice]:
    """Yield a slice's segments in the bucket as one slice, and each of those in the tail as another."""
    sealed = tuple(one for one in piece.segments if one.sealed)
    if len(sealed) == len(piece.segments):
        yield piece
        return
    if sealed:
        yield _part(piece, max(piece.start, sealed[0].base_offset), min(piece.stop, sealed[-1].end_offset), sealed)
    for one in piece.segments[len(sealed) :]:
        yield _part(piece, max(piece.start, one.base_offset), min(piece.stop, one.end_offset), (one,))


def _part(piece: Slice, start: int, stop: int, segments: tuple[SegmentFile, ...]) -> Slice:
    whole = sum(one.end_offset - one.base_offset for one in segments)
    size = sum(one.size_bytes for one in segments) * max(0, stop - start) // max(1, whole)
    return replace(piece, start=start, stop=stop, size_bytes=max(1, size), segments=segments)


def _rows_of(reader: LogReader, piece: Slice) -> Iterator[Slice]:
    """Yield slices with the rows of one segment of the tail; what has left the tail is in an object."""
    held = piece.segments[0]
    segment = TailSegment(held.base_offset, held.end_offset, held.size_bytes, held.batches)
    at = piece.start
    for _ in range(_LOOKS):
        try:
            for run in reader.runs(piece.shard, segment, at, piece.stop):
                stop = min(run.end, piece.stop)
                yield _of_run(piece, run, at, stop)
                at = stop
            return
        except Left:
            listed = reader.place_of(piece.shard, at)
            if listed is not None:
                yield _part(piece, at, min(piece.stop, listed.end), (_listed_file(listed),))
                at = min(piece.stop, listed.end)
                if at >= piece.stop:
                    return
    raise StorageError(
        f"offset {at} of shard {piece.shard} is in neither tail nor bucket",
        hint="restore database and bucket from backups of the same time",
    )


def _of_run(piece: Slice, run: RowRun, start: int, stop: int) -> Slice:
    packed = pack_rows(run.rows)
    held = replace(piece.segments[0], base_offset=run.base, end_offset=run.end, size_bytes=len(packed), rows=packed)
    return replace(piece, start=start, stop=stop, size_bytes=len(packed), segments=(held,))


def _stored(bucket: Bucket, pin: int, piece: Slice) -> Slice:
    """Store the rows of a slice in an object that goes with the pin."""
    held = piece.segments[-1]
    name = f"{pin_folder(pin)}/{piece.shard}-{held.base_offset:020d}-{secrets.token_hex(8)}.rows"
    bucket.put(name, held.rows)
    return replace(piece, segments=(replace(held, path=name, rows=b""),))


def delete_rows(place: ClusterPlace, names: Sequence[str]) -> None:
    """Delete objects with rows that nobody reads any more."""
    for name in names:
        open_address(place.bucket).delete(name)


def read_cluster_record(place: ClusterPlace) -> LakeRecord | None:
    """Return what the cluster's bucket says of its table, or None."""
    data = open_address(place.bucket).get(LAKE_RECORD)
    if data is None:
        return None
    try:
        return msgspec.json.decode(data, type=LakeRecord)
    except msgspec.DecodeError as error:
        raise StorageError(f"{LAKE_RECORD} in {place.bucket.place}: {error}", hint="remove it, compact again") from None


def write_cluster_record(place: ClusterPlace, record: LakeRecord) -> None:
    """Say in the cluster's bucket where its table is."""
    open_address(place.bucket).put(LAKE_RECORD, msgspec.json.encode(record))


def positions_at(place: ClusterPlace, snapshot: Snapshot, time_us: int) -> Positions:
    """Return for each shard the first offset that is not older than a time, or its end."""
    return tuple(_Times(place, shard).find(time_us) for shard in snapshot.shards)


def time_of(place: ClusterPlace, shard: ShardSnapshot, offset: int) -> int | None:
    """Return the time of a record, or None if it can't be told."""
    return _Times(place, shard).of(offset)


class _Times:
    """The times of a shard's records, which never go back."""

    def __init__(self, place: ClusterPlace, shard: ShardSnapshot) -> None:
        self._place = place
        self._shard = shard
        self._bucket = open_address(place.bucket)

    def find(self, time_us: int) -> int:
        """Return the first offset that is not older than a time, or the end."""
        segments = self._shard.segments
        at = bisect_left(segments, time_us, key=self._first)
        if at:  # the one before begins earlier, and may end later
            for base, time in self._rows(segments[at - 1]):
                if time >= time_us:
                    return base
        return segments[at].base_offset if at < len(segments) else self._shard.end

    def of(self, offset: int) -> int | None:
        """Return the time of the record at an offset."""
        for segment in self._shard.segments:
            if segment.base_offset <= offset < segment.end_offset:
                return dict(self._rows(segment)).get(offset)
        return None

    def _first(self, segment: SegmentFile) -> int:
        """Return the time of a segment's first record."""
        if segment.sealed:
            head = self._bucket.get_range(segment.path, HEADER_BYTES + FRAME_BYTES, _HEAD_BYTES)
        else:
            tail = TailSegment(segment.base_offset, segment.end_offset, segment.size_bytes, segment.batches)
            reader = open_reader(self._place)
            head = reader.first_head(self._shard.shard, tail)
            listed = None if head else reader.place_of(self._shard.shard, segment.base_offset)
            if listed is not None:
                head = self._bucket.get_range(listed.name, HEADER_BYTES + FRAME_BYTES, _HEAD_BYTES)
        if not head or len(head) < _HEAD_BYTES:
            raise StorageError(f"{segment.path or 'the tail'} can't be read", hint="load the frame again")
        return int(_TIMES.unpack_from(head, 32)[0])

    def _rows(self, segment: SegmentFile) -> Iterator[tuple[int, int]]:
        """Yield offset and time of each record of a segment."""
        piece = Slice("", self._shard.shard, "", segment.base_offset, segment.end_offset, 1, (segment,))
        for part in [piece] if segment.sealed else _rows_of(open_reader(self._place), piece):
            held = part.segments[0]
            for records in read_held(self._bucket, held):
                for row in records.rows():
                    yield row[0], row[1]
