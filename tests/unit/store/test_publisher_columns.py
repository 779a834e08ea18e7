"""Records that say who published them are found, sealed and emptied like any others, in the store as a whole."""

import struct
from random import Random

from tests.messages import to_columns
from tests.simulated_disk import SimulatedDisk
from tests.stores import Row, append, drain, filters, numbered, open_store, settle, small

from everlog.base import NO_PUBLISHER, PublisherName, TopicTable
from everlog.commitlog import verify_directory
from everlog.store import LogStore, TopicClasses


def fill(store: LogStore, count: int = 120) -> None:
    """Append messages of some clients and of nobody, a few at a time."""
    for first in range(0, count, 6):
        table, messages = TopicTable(), numbered(count)[first : first + 6]
        columns = to_columns(messages, table)
        for n in range(len(messages)):
            struct.pack_into("<H", columns.packet_ids, 2 * n, first + n + 1)
        who = PublisherName(b"client %d" % (first % 4), keeps_ids=True) if first % 18 else None
        store.append(columns, 0, len(messages), 1_000 + first, table, publisher=who)
        settle(store)


def without(shards: int) -> list[Row]:
    store = open_store(shards)
    for first in range(0, 120, 6):
        append(store, numbered(120)[first : first + 6], 1_000 + first)
        settle(store)
    return drain(store.reader(None), (0,) * shards)


def test_what_is_found_by_filter_is_the_same_with_and_without_publishers() -> None:
    for shards in (1, 4):
        for merge_below in (0, 1000):
            store = open_store(shards, merge_below=merge_below)
            fill(store)
            expected, start = without(shards), (0,) * shards
            assert sorted(drain(store.reader(None), start)) == sorted(expected)
            wanted = [row for row in expected if row[3] in (b"t/1/x", b"t/4/x")]
            assert sorted(drain(store.reader(filters("t/1/#", "+/4/x")), start)) == sorted(wanted)
            assert sorted(drain(store.reader(filters("t/1/#", "+/4/x")), start, 3, 200)) == sorted(wanted)
            assert [(one.damaged, one.distrusted) for one in store.statistics()] == [(0, 0)] * shards


def test_thinned_segments_name_only_the_publishers_of_what_is_left() -> None:
    disk = SimulatedDisk(Random(1))
    classes = TopicClasses((("t/0/#", 1_000), ("#", 1_000_000)))
    store = LogStore.open("/data", small(thin_percent=0), disk=disk, classes=classes, background=False)
    for n in range(60):
        table = TopicTable()
        columns = to_columns([(b"t/%d/x" % (n % 2), 2, b"", b"%030d" % n)], table)
        store.append(columns, 0, 1, 1_000 + n, table, publisher=PublisherName(b"client %d" % (n % 4)))
        settle(store)
    assert store.thin(100_000)
    log = store.shards[0]
    for view in log.segments()[:-1]:
        publishers = view.table.publishers
        assert publishers is not None
        assert sorted(publishers.all_names()) == [b"client 1", b"client 3"]
        for records in view.read(0, len(view.batches())):
            for k in range(len(records)):
                offset, who = records.offset(k), records.publisher(k)
                if offset % 2:
                    assert publishers.name(who) == b"client %d" % (offset % 4)
                else:
                    assert who == NO_PUBLISHER
    store.close()
    assert verify_directory(disk, "/data/shard-0").damage == ()
