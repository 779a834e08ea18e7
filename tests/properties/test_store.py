"""Whatever is appended, rolled, sealed and reopened: a filtered read finds what a walk over all messages finds."""

from random import Random
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.messages import EXPIRY, Message
from tests.simulated_disk import SimulatedDisk
from tests.stores import PLENTY, Row, append, drain, open_store, settle

from everlog.store import LogStore, StoreReader
from everlog.topics import Filter, matches, parse_filter

LEVELS = ["a", "b", "c", ""]
names = st.lists(st.sampled_from(LEVELS), min_size=1, max_size=4).map("/".join).filter(bool)
topics = st.one_of(names, names.map("$x/".__add__)).map(str.encode)
patterns = st.lists(st.sampled_from([*LEVELS, "+", "$x"]), min_size=1, max_size=4).map("/".join).filter(bool)
texts = st.one_of(patterns, patterns.map(lambda text: text + "/#"), st.just("#"))
messages = st.tuples(topics, st.sampled_from([0, 1, 2, 4, 5]), st.sampled_from([b"", EXPIRY]), st.binary(max_size=40))
runs = st.tuples(st.lists(messages, min_size=1, max_size=12), st.integers(1, 5)).map(lambda drawn: drawn[0] * drawn[1])
steps = st.tuples(runs, st.sampled_from(["gather", "commit", "seal", "seal", "reopen"]))
reads = st.tuples(
    st.lists(texts.map(parse_filter), min_size=1, max_size=3),
    st.floats(0, 1),  # how far into each shard the read begins
    st.sampled_from([1, 2, 5, 30, PLENTY]),
    st.sampled_from([1, 400, PLENTY]),
)


class Model:
    """Every message of every shard, and how many of them are committed."""

    def __init__(self, shards: int) -> None:
        self.shards = shards
        self.rows: list[list[Row]] = [[] for _ in range(shards)]
        self.committed = [0] * shards
        self.now_us = 1_000

    def append(self, store: LogStore, run: list[Message]) -> None:
        self.now_us += 3
        for topic, flags, properties, payload in run:
            shard = store.shard_of(topic)
            offset = len(self.rows[shard])
            self.rows[shard].append((shard, offset, self.now_us, topic, flags, properties, payload))

    def commit(self) -> None:
        self.committed = [len(rows) for rows in self.rows]

    def read(self, filters: list[Filter], positions: tuple[int, ...]) -> list[Row]:
        return [
            row
            for shard, position in enumerate(positions)
            for row in self.rows[shard][position : self.committed[shard]]
            if any(matches(flt, row[3].decode()) for flt in filters)
        ]


@patch("everlog.store.sealed_segment.LOOK_AGAIN_RECORDS", 1)
@given(
    st.sampled_from([1, 4]),
    st.lists(
        st.tuples(runs, st.sampled_from(["gather", "commit", "commit", "commit", "seal", "retain", "reopen"])),
        min_size=1,
        max_size=12,
    ),
    st.lists(reads, min_size=1, max_size=4),
    st.sampled_from([0, 1.5]),  # lists are made at once, or by the second reader
    st.sampled_from([1, 20, PLENTY]),  # with how many rows single ones are taken from the file
    st.sampled_from([1_500, PLENTY]),  # bytes that all lists may take
)
@settings(max_examples=150)
def test_lists_of_unsealed_segments_find_what_a_walk_finds(
    shards: int,
    work: list[tuple[list[Message], str]],
    asked: list[tuple[list[Filter], float, int, int]],
    worth: float,
    mapped_rows: int,
    limit_bytes: int,
) -> None:
    disk = SimulatedDisk(Random(1))
    sizes = {"segment_bytes": 4_000, "batch_bytes": 300, "merge_below": 0, "retention_bytes": 6_000}
    store = open_store(shards, disk, **sizes)
    model = Model(shards)
    readers: list[StoreReader] = []
    for run, then in work:
        model.append(store, run)
        append(store, run, model.now_us)
        if then == "reopen":
            store.close()
            store, readers = open_store(None, disk, **sizes), []
        elif then != "gather":
            settle(store, seal=then == "seal")
            if then == "retain":
                store.run_retention(model.now_us)
        if then != "gather":
            model.commit()
        store._unsealed.limit_bytes = limit_bytes
        starts = [log.start for log in store.shards]
        readers = readers or [store.reader(filters) for filters, *_ in asked for _ in range(2)]
        with (
            patch("everlog.store.unsealed_segment.WORTH", worth),
            patch("everlog.store.unsealed_segment.MAPPED_ROWS", mapped_rows),
            patch("everlog.store.unsealed_segment.EXTEND_BYTES", 1_000),
            patch("everlog.store.open_selection.SPARSE", 1),
            patch("everlog.store.open_selection.WINDOW_ROWS", 3),
        ):
            for reader, (filters, part, max_records, max_bytes) in zip(
                readers, (one for one in asked for _ in range(2)), strict=True
            ):
                positions = tuple(int(part * end) for end in model.committed)
                found = drain(reader, positions, max_records, max_bytes)
                begin = tuple(map(max, positions, starts))
                assert sorted(found) == sorted(model.read(filters, begin))
                for shard in range(shards):
                    offsets = [row[1] for row in found if row[0] == shard]
                    assert offsets == sorted(offsets)
    assert all(one.distrusted == one.damaged == 0 for one in store.statistics())
    store.close()


@patch("everlog.store.sealed_segment.LOOK_AGAIN_RECORDS", 1)  # so that new indexes are used at once
@given(
    st.sampled_from([1, 4]),
    st.lists(steps, min_size=1, max_size=12),
    st.lists(reads, min_size=1, max_size=4),
    st.sampled_from([0, 30]),
    st.sampled_from([1, 4]),
)
@settings(max_examples=150)
def test_a_filtered_read_finds_what_a_walk_finds(
    shards: int,
    work: list[tuple[list[Message], str]],
    asked: list[tuple[list[Filter], float, int, int]],
    merge_below: int,
    sparse: int,
) -> None:
    disk = SimulatedDisk(Random(1))
    sizes = {"segment_bytes": 1_000, "batch_bytes": 300, "merge_below": merge_below}
    store = open_store(shards, disk, **sizes)
    model = Model(shards)
    readers = [store.reader(filters) for filters, *_ in asked]
    for run, then in work:
        model.append(store, run)
        append(store, run, model.now_us)
        if then == "reopen":
            store.close()
            model.commit()
            store = open_store(None, disk, **sizes)
            readers = [store.reader(filters) for filters, *_ in asked]
        elif then != "gather":
            settle(store, seal=then == "seal")
            model.commit()
        with patch("everlog.store.selection.SPARSE", sparse), patch("everlog.store.selection.WINDOW_ROWS", 3):
            for reader, (filters, part, max_records, max_bytes) in zip(readers, asked, strict=True):
                positions = tuple(int(part * end) for end in model.committed)
                found = drain(reader, positions, max_records, max_bytes)
                assert sorted(found) == sorted(model.read(filters, positions))
                for shard in range(shards):
                    offsets = [row[1] for row in found if row[0] == shard]
                    assert offsets == sorted(offsets)
    assert all(one.distrusted == one.damaged == 0 for one in store.statistics())
    store.close()
