"""Lets a batch begin a segment: it then carries the names of all topics so far, not only those that are new in it."""

import struct

import crc32c

from everlog.base.records import HEADER_BYTES, Layout, Records

_CHECK_AT = 12
_NUMBER = struct.Struct("<I")


def with_all_names(records: Records) -> Records:
    """Return a batch with the same rows that names every topic of its table up to the last one that is new in it."""
    names = records.table.all_names()[: records.first_new_topic + records.new_topics]
    size = sum(map(len, names))
    theirs, data = records.layout, bytes(records.to_bytes())
    plan = Layout(records.count, len(names), size, records.property_bytes, records.payload_bytes, theirs.kind)
    block = bytearray(plan.end)
    block[: theirs.name_ends] = data[: theirs.name_ends]
    for at, number in ((8, plan.end), (28, len(names)), (48, 0), (52, size)):
        _NUMBER.pack_into(block, at, number)
    end = 0
    for place, name in enumerate(names, 1):
        block[plan.names + end : plan.names + end + len(name)] = name
        end += len(name)
        _NUMBER.pack_into(block, plan.name_ends + 4 * place, end)
    block[plan.properties :] = data[theirs.properties :]
    check = crc32c.crc32c(bytes(block[16:HEADER_BYTES]))
    check = crc32c.crc32c(bytes(block[plan.columns : plan.columns_end]), check)
    _NUMBER.pack_into(block, _CHECK_AT, check)
    return Records(bytes(block), 0, records.table)
