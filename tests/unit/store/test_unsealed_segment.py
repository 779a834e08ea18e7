"""Segments without a side file read by postings in memory: who makes them, what they save, when they are let go."""

import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from random import Random
from unittest.mock import patch

import pytest
from tests.messages import Message, to_columns
from tests.simulated_disk import SimulatedDisk
from tests.stores import PLENTY, Row, append, drain, fill, filters, numbered, open_store, rows_of, settle, small

from everlog.base import Records, TopicTable
from everlog.commitlog import LogSettings, ShardLog
from everlog.store import LogStore

LARGE = {"segment_bytes": 1 << 20, "batch_bytes": 1 << 12}  # one open segment of many batches


@pytest.fixture(autouse=True)
def _segments_are_listed_at_once() -> Iterator[None]:
    with patch("everlog.store.sealed_segment.LOOK_AGAIN_RECORDS", 1):
        yield


class Spy:
    """Counts the batches that a store reads whole."""

    def __init__(self, store: LogStore) -> None:
        self.batches = 0
        for log in store.shards:
            log.read = self._spied(log)  # type: ignore[assignment,method-assign]

    def _spied(self, log: ShardLog) -> Callable[[int, int], list[Records]]:
        plain = log.read

        def read(offset: int, max_bytes: int) -> list[Records]:
            found = plain(offset, max_bytes)
            self.batches += len(found)
            return found

        return read


def opened(count: int = 600, topics: int = 60, **changes: object) -> LogStore:
    """A store whose only segment is open."""
    store = open_store(**{**LARGE, **changes})  # type: ignore[arg-type]
    fill(store, numbered(count, topics), each=10)
    return store


def read(store: LogStore, *texts: str, start: int = 0) -> list[Row]:
    return drain(store.reader(filters(*texts)), (start,))


def plainly(store: LogStore, *topics: bytes) -> list[Row]:
    return [row for row in drain(store.reader(None), (0,)) if row[3] in topics]


def postings_bytes(store: LogStore) -> int:
    return store._unsealed.held_bytes


def covered(store: LogStore) -> int:
    return sum(segment.postings.rows for segment in store._unsealed._segments.values())


def test_a_reader_alone_makes_no_lists() -> None:
    store = opened()
    reader = store.reader(filters("t/3/x"))
    position = 0
    while position < 600:
        (position,) = reader.read((position,), 1, PLENTY).positions
    assert covered(store) < 600
    store = opened()
    assert len(read(store, "t/3/x")) == 10
    assert covered(store) == 0
    store.close()


def test_of_many_readers_the_later_ones_read_only_batches_that_they_want() -> None:
    store = opened()
    assert read(store, "t/3/x") == read(store, "t/3/x") == plainly(store, b"t/3/x")
    assert covered(store) == 600
    spy = Spy(store)
    assert read(store, "t/4/x") == plainly(store, b"t/4/x")
    spy.batches = 0
    assert len(read(store, "t/5/x")) == 10
    assert spy.batches <= 10  # of 60
    assert read(store, "nope") == []
    assert spy.batches <= 10
    store.close()


def test_appended_records_are_found_and_the_lists_follow() -> None:
    store = opened()
    readers = [store.reader(filters(text)) for text in ("t/3/x", "new/#", "new/1")]
    for reader in readers:
        drain(reader, (0,))
    assert covered(store) == 600
    for round_ in range(5):
        more: list[Message] = [(b"new/%d" % round_, 2, b"", b"%d" % n) for n in range(20)]
        append(store, [*more, *numbered(60, 60)])
        settle(store)
        counts = [len(drain(reader, (0,))) for reader in readers]
        assert counts == [11 + round_, 20 * (round_ + 1), 20 if round_ else 0]
    assert covered(store) == store.committed()[0]
    store.close()


def test_wide_filters_read_batch_by_batch() -> None:
    store = opened(topics=4)
    for _ in range(4):
        assert read(store, "t/1/x", "t/2/x") == plainly(store, b"t/1/x", b"t/2/x")
    spy = Spy(store)
    read(store, "t/1/x", "t/2/x")
    assert spy.batches >= 60
    store.close()


def test_lists_end_at_their_limit_and_what_is_behind_is_read_plainly() -> None:
    store = opened()
    store._unsealed.limit_bytes = 1 << 10
    with patch("everlog.store.unsealed_segment.EXTEND_BYTES", 1):
        for _ in range(4):
            assert read(store, "t/3/x", "t/59/x") == plainly(store, b"t/3/x", b"t/59/x")
    assert covered(store) < 600
    assert postings_bytes(store) < 4 << 10
    store.close()


def test_the_least_recently_used_lists_make_room() -> None:
    store = open_store(4, **LARGE)
    fill(store, numbered(800, 80), each=40)
    names = sorted(
        {row[3].decode() for row in drain(store.reader(None), (0,) * 4)}, key=lambda n: store.shard_of(n.encode())
    )
    store._unsealed.limit_bytes = 20 << 10
    for name in (name for name in names for _ in range(3)):
        assert len(drain(store.reader(filters(name)), (0,) * 4)) == 10
        assert postings_bytes(store) <= 32 << 10
    store.close()


@pytest.mark.parametrize("shards", [1, 4])
def test_segments_that_wait_to_be_sealed_have_lists_until_they_are_sealed(shards: int) -> None:
    store = open_store(shards)
    for number in range(40):
        append(store, numbered(40, 40), 1_000 + number)
        settle(store, seal=False)
    assert all(len(log.segments()) > 3 for log in store.shards)
    with patch("everlog.store.unsealed_segment.WORTH", 0):
        start = (0,) * shards
        before = drain(store.reader(filters("t/3/x", "t/9/x")), start)
        assert len(before) == 80
        assert covered(store) == 1600
        settle(store)
        append(store, numbered(40, 40), 2_000)
        settle(store)
        assert len(drain(store.reader(filters("t/3/x", "t/9/x")), start)) == 82
        unsealed = sum(
            view.end_offset - view.base_offset for log in store.shards for view in log.segments() if not view.sealed
        )
        assert covered(store) <= unsealed + 40
    store.close()


def test_lists_end_where_their_segment_ends() -> None:
    store = open_store()
    with patch("everlog.store.unsealed_segment.WORTH", 0):
        for number in range(30):
            append(store, numbered(20, 20), 1_000 + number)
            settle(store, seal=False)
            assert len(read(store, "t/3/x")) == number + 1
    bases = [view.base_offset for view in store.shards[0].segments()]
    spans = [(one.base_offset, one.covered) for one in store._unsealed._segments.values()]
    assert sorted(spans) == list(pairwise([*bases, 600]))
    assert len(bases) > 3
    store.close()


def test_removed_segments_have_no_lists() -> None:
    store = open_store(retention_bytes=2_000)
    for number in range(30):
        append(store, numbered(20, 20), 1_000 + number)
        settle(store, seal=False)
    with patch("everlog.store.unsealed_segment.WORTH", 0):
        assert len(read(store, "t/3/x")) == 30
        store.run_retention(5_000)
        start = store.shards[0].start
        assert covered(store) == 600 - start
        result = store.reader(filters("t/3/x")).read((0,), PLENTY, PLENTY)
    assert [(lost.from_offset, lost.to_offset) for lost in result.lost] == [(0, start)]
    assert [row[1] for row in rows_of(result)] == [offset for offset in range(3, 600, 20) if offset >= start]
    store.close()


def test_what_a_damaged_batch_of_the_open_segment_held_is_told() -> None:
    disk = SimulatedDisk(Random(1))
    store = open_store(disk=disk, **LARGE)
    fill(store, numbered(600, 60), each=10)
    place = store.shards[0].segments()[0].batches().positions[30] + 80
    disk.open("/data/shard-0/00000000000000000000.log", write=True).write_at(int(place), [b"!!!"])
    with patch("everlog.store.unsealed_segment.WORTH", 0):
        for _ in range(3):
            result = store.reader(filters("t/3/x")).read((0,), PLENTY, PLENTY)
            assert [row[1] for row in rows_of(result)] == [3 + 60 * n for n in range(10) if n != 5]
            assert [(lost.from_offset, lost.to_offset) for lost in result.lost] == [(300, 310)]
    store.close()


def real_store(where: Path, count: int = 600) -> LogStore:
    store = LogStore.open(str(where), small(durability="flush", **LARGE), background=False)
    fill(store, numbered(count, 60), each=10)
    return store


def test_single_rows_are_taken_from_the_file_of_the_open_segment(tmp_path: Path) -> None:
    store = real_store(tmp_path)
    with patch("everlog.store.unsealed_segment.MAPPED_ROWS", 1), patch("everlog.store.unsealed_segment.WORTH", 0):
        wanted = plainly(store, b"t/3/x", b"t/4/x")
        assert read(store, "t/3/x", "t/4/x") == wanted
        spy = Spy(store)
        for most in (1, 3, PLENTY):
            assert drain(store.reader(filters("t/3/x", "t/4/+")), (0,), most) == wanted
        assert spy.batches == 0
        fill(store, numbered(60, 60))
        assert len(read(store, "t/3/x")) == 11
    store.close()


def test_a_row_that_is_damaged_in_the_file_is_never_given(tmp_path: Path) -> None:
    store = real_store(tmp_path)
    reader = store.reader(filters("t/3/x"))
    with patch("everlog.store.unsealed_segment.MAPPED_ROWS", 1), patch("everlog.store.unsealed_segment.WORTH", 0):
        assert len(drain(reader, (0,))) == 10
        (path,) = tmp_path.glob("shard-0/*.log")
        data = path.read_bytes()
        place = data.index(b"payload 303")
        with path.open("r+b") as file:
            file.seek(place)
            file.write(b"P")
        result = reader.read((0,), PLENTY, PLENTY)
        found = rows_of(result)
        while not result.caught_up:
            result = reader.read(result.positions, PLENTY, PLENTY)
            found += rows_of(result)
    assert [row[1] for row in found] == [3 + 60 * n for n in range(10) if n != 5]
    store.close()


def test_a_reader_beside_the_writer_has_lists_too(tmp_path: Path) -> None:
    writer = real_store(tmp_path)
    other = LogStore.open(str(tmp_path), writable=False)
    with patch("everlog.store.unsealed_segment.WORTH", 0), patch("everlog.store.unsealed_segment.MAPPED_ROWS", 1):
        assert len(read(other, "t/3/x")) == 10
        assert covered(other) == 600
        fill(writer, numbered(60, 60))
        other.refresh()
        assert len(read(other, "t/3/x")) == 11
        assert covered(other) == 660
    other.close()
    writer.close()


@pytest.mark.parametrize("shards", [1, 4])
def test_threads_read_by_lists_while_records_come(tmp_path: Path, shards: int) -> None:
    settings = LogSettings(durability="flush", segment_bytes=20_000, batch_bytes=4_000, tail_bytes=8_000)
    store = LogStore.open(str(tmp_path), settings, shards=shards)
    table = TopicTable()
    columns = to_columns(numbered(60, 60), table)
    found: dict[str, list[Row]] = {}
    done = threading.Event()
    changed = threading.Condition()

    def tell(shard: int = 0) -> None:
        with changed:
            changed.notify_all()

    def follow(text: str) -> None:
        reader, positions, rows = store.reader(filters(text)), (0,) * shards, []
        while True:
            ended = done.is_set()
            result = reader.read(positions, 7, PLENTY)
            rows += rows_of(result)
            positions = result.positions
            if ended and result.caught_up and positions == store.committed():
                found[text] = rows
                return
            with changed:
                while not done.is_set() and result.caught_up and positions == store.committed():
                    changed.wait(30)

    store.on_commit(tell)
    threads = [threading.Thread(target=follow, args=(text,)) for text in ("t/3/x", "t/+/x", "t/4/x", "nope")]
    with patch("everlog.store.unsealed_segment.WORTH", 0), patch("everlog.store.unsealed_segment.MAPPED_ROWS", 100):
        for thread in threads:
            thread.start()
        for number in range(30):
            for shard, end in store.append(columns, 0, 60, 1_000 + number, table):
                store.shards[shard].commit()
                store.shards[shard].wait_committed(end, 30)
        done.set()
        tell()
        for thread in threads:
            thread.join(60)
    counts = {text: len(rows) for text, rows in found.items()}
    assert counts == {"t/3/x": 30, "t/+/x": 1800, "t/4/x": 30, "nope": 0}
    for rows in found.values():
        for shard in range(shards):
            offsets = [row[1] for row in rows if row[0] == shard]
            assert offsets == sorted(set(offsets))
    store.close()
