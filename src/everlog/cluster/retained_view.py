"""Retained messages as a view of the log: every broker takes them in as it routes them, in the log's order."""

from everlog.base import NO_PUBLISHER, RETAIN, PublishRun, Records, split_publisher
from everlog.broker import RetainedMessages
from everlog.cluster.forwarded_rows import columns_of


def retain_routed(retained: RetainedMessages, records: Records, first: int) -> None:
    """Retain the messages of a batch that ask for it, from a row on; those of the broker itself stay where they are."""
    columns = columns_of(records)
    table, publishers = records.table, records.table.publishers
    routes = bytearray(4 * table.count)  # all of them are kept
    topics = memoryview(columns.topics).cast("I")
    for row in range(first, records.count):
        if not columns.flags[row] & RETAIN or table.name(topics[row]).startswith(b"$"):
            continue
        who = records.publisher(row)
        known = publishers is not None and who != NO_PUBLISHER
        client = split_publisher(publishers.name(who))[0] if known and publishers is not None else None
        run = PublishRun(columns, row, row + 1, columns.flags[row])
        retained.take_run(run, records.row(row)[1], table, client, routes)
