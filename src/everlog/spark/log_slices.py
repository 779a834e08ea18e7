"""Slices of the log as Arrow batches, straight from the log's columns.

Filters are answered by the store's reader, so by the topic index where a segment has one. Offsets that are damaged or
that retention removed are an error, or left out and counted if asked; those that no record was ever given are no loss.
"""

import logging
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import pyarrow as pa

from everlog.base import Piece, StorageError, Unavailable
from everlog.commitlog import Damage
from everlog.spark.arrow_batch import ColumnMaker
from everlog.spark.bucket_slices import find_in_bucket
from everlog.spark.schema import DEFAULT_COLUMNS, check_columns
from everlog.spark.snapshot import Slice, check_identity
from everlog.spark.store_cache import open_store
from everlog.store import Found, LogStore, Lost
from everlog.topics import Filter, parse_filter

log = logging.getLogger(__name__)

BATCH_ROWS = 16_384
BATCH_BYTES = 32 << 20  # of log for each batch; a batch ends early at it, though never within a record
STEP_RECORDS = 1 << 20
STEP_BYTES = 8 << 20

OnDamage = Literal["fail", "skip"]
OnLost = Literal["fail", "skip"]


@dataclass(slots=True)
class ReadReport:
    """How many rows were read, and what was left out because it is damaged or removed."""

    rows: int = 0
    lost: int = 0  # offsets that are damaged
    removed: int = 0  # offsets that retention removed before they were read
    damage: list[Damage] = field(default_factory=list)


def read_slice(
    piece: Slice,
    columns: Sequence[str] | None = None,
    filters: Iterable[str] | None = None,
    *,
    on_damage: OnDamage = "fail",
    on_lost: OnLost = "fail",
    report: ReadReport | None = None,
    batch_rows: int = BATCH_ROWS,
    batch_bytes: int = BATCH_BYTES,
) -> Iterator[pa.RecordBatch]:
    """Yield the records of a slice whose topic matches any of the filters, by rising offset."""
    chosen = DEFAULT_COLUMNS if columns is None else check_columns(columns)
    wanted = None if filters is None else parse_filters(filters)
    report = report if report is not None else ReadReport()
    if piece.bucket is not None:
        found_ones = find_in_bucket(piece, wanted, on_damage, on_lost, report)
    else:
        store = open_store(piece.path, piece.shard, piece.stop)
        check_identity(piece, store.shards[piece.shard].identity)
        found_ones = _found(store, piece, wanted, "client_id" in chosen, on_damage, on_lost, report)
    maker = ColumnMaker(piece.shard, chosen)
    pending: list[Piece] = []
    rows = held = 0
    for found in found_ones:
        start = found.start
        held += found.records.size
        while found.stop - start >= batch_rows - rows:
            stop = start + batch_rows - rows
            pending.append((found.records, found.rows, start, stop))
            yield from _batches(maker, pending, report)
            pending, rows, held, start = [], 0, 0, stop
        if start < found.stop:
            pending.append((found.records, found.rows, start, found.stop))
            rows += found.stop - start
        if held >= batch_bytes and pending:
            yield from _batches(maker, pending, report)
            pending, rows, held = [], 0, 0
    if pending:
        yield from _batches(maker, pending, report)


def parse_filters(texts: Iterable[str]) -> tuple[Filter, ...]:
    """Parse topic filters."""
    return tuple(parse_filter(text, allow_shared=False) for text in texts)


def _batches(maker: ColumnMaker, pieces: list[Piece], report: ReadReport) -> Iterator[pa.RecordBatch]:
    """Yield the pieces as one batch, or as two halves when they are too large for one."""
    try:
        batch = maker.make(pieces)
    except OverflowError:
        for half in _halves(pieces):
            yield from _batches(maker, half, report)
        return
    report.rows += batch.num_rows
    yield batch


def _halves(pieces: list[Piece]) -> tuple[list[Piece], list[Piece]]:
    middle = sum(stop - start for _, _, start, stop in pieces) // 2
    if middle == 0:
        raise StorageError("a record is too large for a column of Arrow")
    first: list[Piece] = []
    second: list[Piece] = []
    for records, rows, start, stop in pieces:
        cut = min(stop, start + middle)
        middle -= cut - start
        if cut > start:
            first.append((records, rows, start, cut))
        if stop > cut:
            second.append((records, rows, cut, stop))
    return first, second


def _found(
    store: LogStore,
    piece: Slice,
    filters: tuple[Filter, ...] | None,
    publishers: bool,
    on_damage: OnDamage,
    on_lost: OnLost,
    report: ReadReport,
) -> Iterator[Found]:
    """Yield what the store finds in a slice, a step at a time."""
    reader = store.reader(filters, publishers=publishers)
    offset = piece.start
    while offset < piece.stop:
        most = min(STEP_RECORDS, piece.stop - offset)
        result = reader.read_shard(piece.shard, offset, most, STEP_BYTES)
        for lost in result.lost:
            _account(store, piece, lost, on_damage, on_lost, report)
        for found in result.batches:
            clipped = _below(found, piece.stop)
            if clipped is None:
                return
            yield clipped
        if result.positions[0] <= offset:
            raise StorageError(f"shard {piece.shard} in {piece.path} can't be read after offset {offset}")
        offset = result.positions[0]


def _below(found: Found, end: int) -> Found | None:
    """Return the part of what was found that lies below an offset, or None."""
    numbers = found.row_numbers()
    records = found.records
    if records.offset(numbers[-1]) < end:
        return found
    fewer = bisect_left(numbers, end, key=records.offset)
    return Found(found.shard, records, found.rows, found.start, found.start + fewer) if fewer else None


def _account(
    store: LogStore, piece: Slice, lost: Lost, on_damage: OnDamage, on_lost: OnLost, report: ReadReport
) -> None:
    """Account for offsets that can't be read: damaged, or removed by retention."""
    first, last = max(lost.from_offset, piece.start), min(lost.to_offset, piece.stop)
    shard = store.shards[piece.shard]
    at = first
    for damage in sorted(shard.damage, key=lambda one: one.from_offset):
        if damage.from_offset < last and damage.to_offset > at:
            _gap(piece, at, damage.from_offset, on_lost, report)
            behind = max(at, min(damage.to_offset, last))
            report.lost += behind - max(at, damage.from_offset)
            at = behind
            if on_damage == "fail":
                hint = 'read the rest with the option "onDamage" set to "skip", compact it with --skip-damaged'
                raise StorageError(str(damage), hint=hint)
            log.warning("left out of what is read: %s", damage)
            report.damage.append(damage)
    _gap(piece, at, last, on_lost, report)


def _gap(piece: Slice, first: int, last: int, on_lost: OnLost, report: ReadReport) -> None:
    """Raise, or count, offsets that a segment of the snapshot held and that are neither readable nor damaged."""
    for segment in piece.segments:
        start, stop = max(first, segment.base_offset), min(last, segment.end_offset)
        if start < stop and on_lost == "skip":
            report.removed += stop - start
        elif start < stop:
            raise Unavailable(
                f"retention removed offsets {start} to {stop - 1} of shard {piece.shard} before they were read",
                hint="load the frame again, or keep more: --retention-age and --retention-bytes",
            )
