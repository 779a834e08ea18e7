"""Lets a batch begin a segment: it then carries the names of all topics so far, not only those that are new in it."""

import struct

import crc32c

from everlog.base.records import Layout, Records

_CHECK_AT = 12
_COUNTS = struct.Struct("<I")


def with_all_names(records: Records) -> Records:
    """Return a batch with the same rows that names every topic of its table up to the last one that is new in it."""
    names = records.table.all_names()[: records.first_new_topic + records.new_topics]
    sizes = sum(map(len, names))
    theirs, data = records.layout, bytes(records.to_bytes())
    plan = Layout(
        records.count, len(names), sizes, records.property_bytes, records.payload_bytes, records.with_properties
    )
    block = bytearray(plan.end)
    block[: theirs.name_ends] = data[: theirs.name_ends]
    for at, number in ((8, plan.end), (28, len(names)), (48, 0), (52, sizes)):
        _COUNTS.pack_into(block, at, number)
    end = 0
    for place, name in enumerate(names, 1):
        block[plan.names + end : plan.names + end + len(name)] = name
        end += len(name)
        _COUNTS.pack_into(block, plan.name_ends + 4 * place, end)
    block[plan.properties :] = data[theirs.properties :]
    _COUNTS.pack_into(block, _CHECK_AT, crc32c.crc32c(bytes(block[16 : plan.properties])))
    return Records(bytes(block), 0, records.table)
