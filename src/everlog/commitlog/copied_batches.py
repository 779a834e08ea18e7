"""Batches of a segment that another process has written, as bytes, made readable with the segment's names."""

import struct
from collections.abc import Sequence

import cython

from everlog.base import StorageError
from everlog.commitlog.scan import new_table

if not cython.compiled:
    from everlog.base import Records, TopicTable


_PLACE = struct.Struct("<QI")  # base offset, count
_PLACE_AT = 16


def end_of(body: bytes, start: int) -> int:
    """Return the offset after a batch that begins behind `start` bytes, as it says, which is not checked here."""
    if len(body) < start + _PLACE_AT + _PLACE.size:
        return 0
    base, count = _PLACE.unpack_from(body, start + _PLACE_AT)
    return int(base + count)


def read_batches(
    bodies: Sequence[bytes], base_offset: int, table: TopicTable, *, start: int = 0, is_checked: bool = False
) -> list[Records]:
    """Return batches that follow each other from an offset on; their new names are added to the table.

    They are checked, or if every byte was found to be as it was sent, only where their columns lie.
    """
    batches = []
    for body in bodies:
        records = _read(body, start, base_offset, table, is_checked)
        base_offset = records.end_offset
        batches.append(records)
    return batches


def _read(body: bytes, start: int, base_offset: int, table: TopicTable, is_checked: bool) -> Records:
    records = Records(body, start, table)
    is_whole = records.verify_columns() if is_checked else records.verify()
    if records.base_offset != base_offset or records.with_offsets or not is_whole:
        raise StorageError(f"the batch at offset {base_offset} is damaged or another one", hint="read it again")
    _learn(table, records)
    return records


def read_whole(bodies: Sequence[bytes], base_offset: int) -> list[Records]:
    """Return all batches of a segment, checked, with a table of their own."""
    return read_batches(bodies, base_offset, new_table())


def _learn(table: TopicTable, records: Records) -> int:
    """Add the names that a batch brings; raise if it is not the one that follows."""
    plan = records.layout
    if records.new_topics:
        _add(table, records.first_new_topic, records.new_names())
    if plan.publishers:
        if table.publishers is None:
            table.publishers = new_table()
        if plan.new_publishers:
            _add(table.publishers, plan.first_publisher, records.new_publishers())
    return 0


def _add(table: TopicTable, first: int, names: list[bytes]) -> int:
    for number, name in enumerate(names, first):
        if table.intern(name) != number:
            raise StorageError("a batch does not fit the names of its segment", hint="read the segment from its start")
    return 0
