"""Builds the row postings of a sealed segment: for each topic its name and the numbers of its rows, rising.

A row's number counts the records of the segment's trusted batches from 0. By the postings a filtered read finds its
rows without looking at any column; `row_finder` reads them. The layout is in `docs/formats/row-postings.md`. An entry's
check covers topic id, ranges, rows and name, so that a reader verifies only the topics that it takes.
"""

from collections.abc import Sequence

import cython

from everlog.base import UsageError

if not cython.compiled:
    from everlog.base import TopicTable
    from everlog.base.memory import blank, check_of, copy, filled, pointer, put32, put64, u32s

_MAGIC = 0x4C525645  # "EVRL"
_VERSION = 1
_HEADER_BYTES = 32
_ENTRY_BYTES = 12
_MARK_BYTES = 20


def build_row_postings(names: TopicTable, batch_topics: Sequence[memoryview]) -> bytes:
    """Return the postings of topics, whose ids are those of the table, given each batch's column of topic ids."""
    topics = names.count
    counts = bytearray(4 * (topics + 1))
    rows = 0
    for column in batch_topics:
        rows += count_topics(column, counts, topics)
    name_bytes = names.name_bytes
    if rows > 0xFFFFFFFF or name_bytes > 0xFFFFFFFF:
        raise UsageError(f"a segment of {rows} records with {name_bytes} bytes of names is too large for row postings")
    rows_at = _HEADER_BYTES + _ENTRY_BYTES * topics
    names_at = rows_at + 4 * rows
    block = blank(names_at + name_bytes)
    out = pointer(block)
    put32(out, 0, _MAGIC)
    put32(out, 4, _VERSION)
    put32(out, 8, topics)
    put32(out, 12, rows)
    put64(out, 16, name_bytes)
    put32(out, 24, 0)
    put32(out, 28, check_of(out, 0, 28, 0))
    next_place = u32s(counts)
    place = 0
    for topic in range(topics + 1):
        here = next_place[topic]
        next_place[topic] = place
        place += here
    first = 0
    for column in batch_topics:
        first += place_rows(column, counts, out, rows_at, first)
    write_entries(names, counts, out, rows_at, names_at)
    return filled(block)


def count_topics(column: memoryview, counts: bytearray, topics: int) -> int:
    """Count the rows of each topic in a batch, and return how many rows it has."""
    ids = column
    count = u32s(counts)
    total = len(ids)
    for i in range(total):
        topic = ids[i]
        if topic >= topics:
            raise UsageError(f"a batch uses topic {topic} of a segment with {topics} topics")
        count[topic] += 1
    return total


def place_rows(column: memoryview, places: bytearray, out: bytearray, rows_at: int, first: int) -> int:
    """Write the number of each row of a batch to its topic's list, and return how many rows it has."""
    ids = column
    place = u32s(places)
    total = len(ids)
    for i in range(total):
        topic = ids[i]
        put32(out, rows_at + 4 * place[topic], first + i)
        place[topic] += 1
    return total


def write_entries(names: TopicTable, ends: bytearray, out: bytearray, rows_at: int, names_at: int) -> int:
    """Write names and entries; after the rows were placed, a topic's next place is where its list ends."""
    holder = bytearray(_MARK_BYTES)
    mark = pointer(holder)
    end = u32s(ends)
    name_ends = u32s(names.ends)
    begin = 0
    name_begin = 0
    copy(out, names_at, pointer(names.names), 0, names.name_bytes)
    for topic in range(names.count):
        stop = end[topic]
        name_end = name_ends[topic + 1]
        check = entry_check(mark, topic, begin, stop, name_begin, name_end)
        check = check_of(out, rows_at + 4 * begin, 4 * (stop - begin), check)
        check = check_of(out, names_at + name_begin, name_end - name_begin, check)
        at = _HEADER_BYTES + _ENTRY_BYTES * topic
        put32(out, at, stop)
        put32(out, at + 4, name_end)
        put32(out, at + 8, check)
        begin = stop
        name_begin = name_end
    return 0


def entry_check(mark: bytearray, topic: int, begin: int, end: int, name_begin: int, name_end: int) -> int:
    """Return the start of an entry's check: its topic id and ranges."""
    put32(mark, 0, topic)
    put32(mark, 4, begin)
    put32(mark, 8, end)
    put32(mark, 12, name_begin)
    put32(mark, 16, name_end)
    return check_of(mark, 0, 20, 0)
