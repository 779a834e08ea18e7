"""Lets a batch begin a segment: it then carries all names so far, not only those that are new in it."""

import struct

import crc32c

from everlog.base.records import HEADER_BYTES, VERSION, Layout, Records

_CHECK_AT = 12
_NUMBER = struct.Struct("<I")
_HEAD = struct.Struct("<IIII")  # before the column of publishers


def with_all_names(records: Records) -> Records:
    """Return a batch with the same rows that names every topic and publisher up to the last that is new in it.

    A batch without a column of publishers follows none that has one, so there is none to name.
    """
    theirs, data = records.layout, bytes(records.to_bytes())
    names = records.table.all_names()[: records.first_new_topic + records.new_topics]
    publishers: list[bytes] = []
    if theirs.publishers and records.table.publishers is not None:
        publishers = records.table.publishers.all_names()[: theirs.first_publisher + theirs.new_publishers]
    size, publisher_bytes = sum(map(len, names)), sum(map(len, publishers))
    plan = Layout(
        records.count, len(names), size, records.property_bytes, records.payload_bytes, theirs.kind, VERSION,
        len(publishers), publisher_bytes,
    )  # fmt: skip
    block = bytearray(plan.end)
    block[: theirs.name_ends] = data[: theirs.name_ends]
    for at, number in ((8, plan.end), (28, len(names)), (48, 0), (52, size)):
        _NUMBER.pack_into(block, at, number)
    _write(block, plan.name_ends, plan.names, names)
    if plan.publishers:
        _HEAD.pack_into(block, plan.publishers - _HEAD.size, len(publishers), 0, publisher_bytes, 0)
        column = data[theirs.publishers : theirs.publishers + 4 * records.count]
        block[plan.publishers : plan.publishers + len(column)] = column
        _write(block, plan.publisher_ends(), plan.publisher_names(), publishers)
    block[plan.properties :] = data[theirs.properties :]
    check = crc32c.crc32c(bytes(block[16:HEADER_BYTES]))
    check = crc32c.crc32c(bytes(block[plan.columns : plan.columns_end]), check)
    _NUMBER.pack_into(block, _CHECK_AT, check)
    return Records(bytes(block), 0, records.table)


def _write(block: bytearray, ends_at: int, names_at: int, names: list[bytes]) -> None:
    """Write names into a block of zeros: where each ends, and their bytes."""
    end = 0
    for place, name in enumerate(names, 1):
        block[names_at + end : names_at + end + len(name)] = name
        end += len(name)
        _NUMBER.pack_into(block, ends_at + 4 * place, end)
