"""The store over shard logs: indexes used and distrusted, steps, reopening, retention, other processes, threads."""

import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from unittest.mock import patch

import pytest
from tests.messages import Message, to_columns
from tests.shard_logs import columns_of
from tests.simulated_disk import SimulatedDisk
from tests.stores import PLENTY, Row, append, drain, fill, filters, numbered, open_store, rows_of, settle, small

from everlog.base import EverlogError, Records, StorageError, TopicTable, UsageError
from everlog.commitlog import RealDisk, ShardLog
from everlog.store import MAX_SHARDS, LogStore, Lost, Positions, shard_of
from everlog.store.recent_batches import RecentBatches
from everlog.store.selection import Selection


@pytest.fixture(autouse=True)
def _new_indexes_are_used_at_once() -> Iterator[None]:
    with patch("everlog.store.sealed_segment.LOOK_AGAIN_RECORDS", 1):
        yield


class Spy:
    """Counts the plain reads of a store."""

    def __init__(self, store: LogStore) -> None:
        self.reads: list[int] = []
        for log in store.shards:
            log.read = self._spied(log)  # type: ignore[assignment,method-assign]

    def _spied(self, log: ShardLog) -> Callable[[int, int], list[Records]]:
        plain = log.read

        def read(offset: int, max_bytes: int) -> list[Records]:
            self.reads.append(offset)
            return plain(offset, max_bytes)

        return read


def sealed_end(store: LogStore, shard: int = 0) -> int:
    return max(view.end_offset for view in store.shards[shard].segments() if view.sealed)


@pytest.mark.parametrize("shards", [1, 4])
def test_sealed_segments_are_read_by_their_indexes_alone(shards: int) -> None:
    store = open_store(shards)
    fill(store, numbered(400, topics=20))
    ends = tuple(sealed_end(store, shard) for shard in range(shards))
    everything = drain(store.reader(None), (0,) * shards)
    spy = Spy(store)
    reader = store.reader(filters("t/3/x", "t/4/+"))
    for shard in range(shards):
        offset, found = 0, []
        while offset < ends[shard]:
            result = reader.read_shard(shard, offset, 5, PLENTY)
            found += [row for row in rows_of(result) if row[1] < ends[shard]]
            (offset,) = result.positions
        wanted = [row for row in everything if row[0] == shard and row[3] in (b"t/3/x", b"t/4/x")]
        assert found == [row for row in wanted if row[1] < ends[shard]]
    assert all(offset in ends for offset in spy.reads)
    store.close()


def test_a_filter_that_matches_nothing_reads_no_sealed_batch() -> None:
    store = open_store()
    fill(store, numbered(400))
    spy = Spy(store)
    result = store.reader(filters("t/9/x", "+/x")).read((0,), 10, PLENTY)
    assert result.caught_up
    assert result.batches == []
    assert spy.reads == [sealed_end(store)]
    store.close()


def test_a_filter_that_matches_everything_passes_batches_on_as_they_are() -> None:
    store = open_store()
    fill(store, numbered(400))
    whole = store.reader(None).read((0,), PLENTY, PLENTY)
    filtered = store.reader(filters("#")).read((0,), PLENTY, PLENTY)
    assert [(batch.start, batch.stop, batch.rows) for batch in filtered.batches] == [
        (0, batch.records.count, None) for batch in whole.batches
    ]
    store.close()


def test_few_rows_are_copied_and_many_are_pointed_out() -> None:
    store = open_store(segment_bytes=1 << 20)
    fill(store, numbered(100, topics=10), each=50)
    few = store.reader(filters("t/3/x")).read((0,), PLENTY, PLENTY)
    assert all(batch.rows is None and batch.records.with_offsets for batch in few.batches)
    many = store.reader(filters(*(f"t/{n}/x" for n in range(8)))).read((0,), PLENTY, PLENTY)
    assert all(batch.rows is not None for batch in many.batches)
    assert (few.count, many.count) == (10, 80)
    store.close()


def test_small_steps_read_each_batch_once() -> None:
    store = open_store(segment_bytes=1 << 20, batch_bytes=1 << 19)
    append(store, numbered(900))
    settle(store)
    spy = Spy(store)
    for texts in (("t/+/x",), ("t/1/x",)):
        assert drain(store.reader(filters(*texts)), (0,), 7) == drain(store.reader(filters(*texts)), (0,))
    assert len(spy.reads) <= 4
    store.close()


def test_a_step_that_finds_nothing_ends_and_says_where_it_is() -> None:
    store = open_store(segment_bytes=1 << 20)
    fill(store, numbered(300), each=10)
    with patch("everlog.store.shard_reader.SCAN_BYTES", 1), patch("everlog.store.shard_reader.SMALL_CHUNK_BYTES", 1):
        first = store.reader(filters("nope")).read((0,), 1, 1)
        assert not first.caught_up
        assert 0 < first.positions[0] < 300
        assert drain(store.reader(filters("nope")), (0,)) == []
    store.close()


@pytest.mark.parametrize("shards", [1, 4])
def test_a_store_is_there_again_when_it_is_opened_again(shards: int) -> None:
    disk = SimulatedDisk(Random(1))
    store = open_store(shards, disk)
    fill(store, numbered(100))
    before = drain(store.reader(None), (0,) * shards)
    store.close()
    again = open_store(None, disk)
    assert len(again.shards) == shards
    assert sorted(drain(again.reader(filters("#")), (0,) * shards)) == sorted(before)
    append(again, numbered(3))
    settle(again)
    assert sum(again.committed()) == 103
    again.close()


def test_the_number_of_shards_never_changes() -> None:
    disk = SimulatedDisk(Random(1))
    open_store(4, disk).close()
    with pytest.raises(UsageError, match="4 shards, not 2"):
        open_store(2, disk)
    open_store(4, disk).close()
    for wrong in (0, MAX_SHARDS + 1):
        with pytest.raises(UsageError):
            open_store(wrong)


def test_a_damaged_store_file_is_reported() -> None:
    disk = SimulatedDisk(Random(1))
    open_store(4, disk).close()
    file = disk.open("/data/store", write=True)
    clean = file.read_at(0, 100)
    for position in range(len(clean)):
        wrong = bytearray(clean)
        wrong[position] ^= 0x20
        file.write_at(0, [bytes(wrong)])
        with pytest.raises(StorageError, match="/data/store"):
            open_store(None, disk)


def test_reading_where_no_store_is_is_refused() -> None:
    with pytest.raises(UsageError, match="holds no store"):
        LogStore.open("/data", disk=SimulatedDisk(Random(1)), writable=False)


def test_a_topics_shard_is_the_same_for_ever() -> None:
    assert [shard_of(b"a/b/%d" % n, 4) for n in range(12)] == [3, 0, 1, 3, 1, 0, 0, 0, 2, 0, 2, 3]
    assert shard_of("ü/+".encode(), 254) == 99
    counts = [0] * 4
    for n in range(10_000):
        counts[shard_of(b"site/%d/t" % n, 4)] += 1
    assert min(counts) > 2_300


def test_a_source_with_new_names_for_its_ids_is_routed_by_the_new_ones() -> None:
    store = open_store(4)
    table = TopicTable()
    for names in ([b"a", b"b", b"c"], [b"x", b"y", b"z", b"w"], [b"x", b"q"]):
        messages: list[Message] = [(name, 2, b"", name) for name in names]
        store.append(to_columns(messages, table), 0, len(names), 5, table)
        settle(store)
        if names[0] == b"a":
            table.reset()
    for row in drain(store.reader(None), (0,) * 4):
        assert row[0] == store.shard_of(row[3])
        assert row[3] == row[6]
    store.close()


def test_a_reader_is_told_what_retention_took_from_it() -> None:
    store = open_store(retention_bytes=3_000)
    fill(store, numbered(400))
    reader = store.reader(filters("t/3/x"))
    reader.read((0,), 3, PLENTY)
    store.run_retention(1 << 50)
    start = store.shards[0].start
    assert start > 100
    result = reader.read((10,), PLENTY, PLENTY)
    assert result.lost == (Lost(0, 10, start),)
    assert [row[1] for row in rows_of(result)] == [offset for offset in range(start, 400) if offset % 5 == 3]
    store.close()


def test_a_store_is_read_beside_its_writer() -> None:
    disk = SimulatedDisk(Random(1))
    writer = open_store(4, disk)
    fill(writer, numbered(100))
    beside = LogStore.open("/data", small(), disk=disk, writable=False)
    reader = beside.reader(filters("t/1/#", "t/2/#"))
    found = reader.read((0,) * 4, PLENTY, PLENTY)
    assert found.count == 40
    fill(writer, numbered(100))
    append(writer, numbered(50))  # not committed
    assert reader.read(found.positions, PLENTY, PLENTY).batches == []
    assert beside.refresh() == writer.committed()
    assert reader.read(found.positions, PLENTY, PLENTY).count == 40
    with pytest.raises(Exception, match="read-only"):
        append(beside, numbered(1))
    beside.close()
    writer.close()


def test_no_flipped_byte_gives_a_wrong_answer() -> None:
    disk = SimulatedDisk(Random(1))
    store = open_store(1, disk)
    fill(store, numbered(60, topics=12), each=6)
    store.close()
    texts = [("t/3/x",), ("t/+/x",), ("t/1/x", "t/5/#")]
    clean = open_store(None, disk)
    truth = [drain(clean.reader(filters(*each)), (0,)) for each in texts]
    damaged_answers = 0
    names = [name for name in disk.list("/data/shard-0") if name.endswith((".log", ".idx"))]
    for name in sorted(names)[:4]:
        file = disk.open(f"/data/shard-0/{name}", write=True)
        for position in range(0, file.size(), 3):
            (byte,) = file.read_at(position, 1)
            file.write_at(position, [bytes((byte ^ 0x08,))])
            beside = LogStore.open("/data", small(), disk=disk, writable=False)
            for each, expected in zip(texts, truth, strict=True):
                reader = beside.reader(filters(*each))
                positions: Positions = (0,)
                found: list[Row] = []
                lost: list[Lost] = []
                caught_up = False
                while not caught_up:
                    result = reader.read(positions, 9, PLENTY)
                    found += rows_of(result)
                    lost += result.lost
                    positions, caught_up = result.positions, result.caught_up
                gone = {offset for one in lost for offset in range(one.from_offset, one.to_offset)}
                assert found == [row for row in expected if row[1] not in gone], (name, position)
                damaged_answers += bool(gone)
            beside.close()
            file.write_at(position, [bytes((byte,))])
    assert damaged_answers > 0
    clean.close()


def test_what_a_sealed_segment_lost_is_told_to_readers_with_filters() -> None:
    disk = SimulatedDisk(Random(1))
    store = open_store(1, disk)
    fill(store, numbered(60, topics=12), each=6)
    bad = store.shards[0].segments()[0].batches()
    lost = Lost(0, bad.offsets[1], bad.offsets[1] + bad.counts[1])
    store.close()
    disk.unlink("/data/shard-0/00000000000000000000.idx")
    file = disk.open("/data/shard-0/00000000000000000000.log", write=True)
    file.write_at(bad.positions[1] + bad.sizes[1] - 12, [b"!"])
    again = open_store(None, disk)
    settle(again)
    for texts in (("t/3/x",), ("#",)):
        assert again.reader(filters(*texts)).read((0,), PLENTY, PLENTY).lost == (lost,)
    assert again.statistics()[0].damaged == 1
    assert again.shards[0].segments()[0].sealed
    again.close()


def test_an_index_that_does_not_fit_is_left_aside_and_counted() -> None:
    store = open_store()
    fill(store, numbered(200, topics=20))
    truth = drain(store.reader(filters("t/3/x")), (0,))

    def disagree(self: Selection, offset: int, *_: int) -> tuple[None, int]:
        self.fits = False
        return None, offset

    with patch.object(Selection, "take", disagree):
        assert drain(store.reader(filters("t/3/x")), (0,)) == truth
    (numbers,) = store.statistics()
    assert numbers.distrusted == numbers.sealed > 2
    assert drain(store.reader(filters("t/3/x")), (0,)) == truth
    store.close()


def test_recent_batches_stay_below_their_limit() -> None:
    store = open_store(segment_bytes=1 << 20)
    fill(store, numbered(200), each=10)
    batches = [batch.records for batch in store.reader(None).read((0,), PLENTY, PLENTY).batches]
    recent = RecentBatches(3 * (batches[0].size + 520))
    recent.put(0, batches[:2], 0)
    assert recent.get(0, 0, 5) == batches[:2]
    assert recent.get(0, 0, 10) == batches[1:2]
    assert recent.get(1, 0, 5) == []
    recent.put(0, batches, 0)
    assert recent.held_bytes <= recent.limit_bytes
    assert recent.get(0, 0, 0) == []
    recent.clear()
    assert recent.held_bytes == 0
    store.close()


@pytest.mark.parametrize("shards", [1, 4])
def test_threads_commit_and_seal_on_a_real_disk(tmp_path: Path, shards: int) -> None:
    settings = small(durability="flush", segment_bytes=20_000, batch_bytes=5_000)
    store = LogStore.open(str(tmp_path / "data"), settings, shards=shards, disk=RealDisk())
    called: set[int] = set()
    store.on_commit(called.add)
    for step in range(30):
        ends = append(store, numbered(100, topics=50), 1_000 + step)
        store.commit()
    for shard, end in ends:
        store.shards[shard].wait_committed(end, 30)
    assert called == set(range(shards))
    reader = store.reader(filters("t/7/x", "t/8/+"))
    assert len(drain(reader, (0,) * shards)) == 120
    store.close()
    again = LogStore.open(str(tmp_path / "data"), settings)
    rows = drain(again.reader(filters("t/7/x", "t/8/+")), (0,) * shards, 13)
    assert sorted(row[6] for row in rows) == sorted(30 * [b"payload 7", b"payload 8", b"payload 57", b"payload 58"])
    assert [one.distrusted for one in again.statistics()] == [0] * shards
    again.close()


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.EACCES, UsageError), (errno.EROFS, UsageError), (errno.EIO, StorageError)]
)
def test_a_directory_that_can_not_be_used_is_named_with_a_hint(number: int, kind: type[EverlogError]) -> None:
    disk = SimulatedDisk(Random(1))
    disk.fault = lambda what, path: number if path.startswith("/data/store") else None
    with pytest.raises(kind, match=r"^/data can't be used as a data directory: /data/store") as caught:
        LogStore.open("/data", disk=disk)
    assert caught.value.hint


@pytest.mark.parametrize("where", ["file", "file/within"])
def test_a_file_is_no_data_directory(tmp_path: Path, where: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    for writable in (True, False):
        with pytest.raises(UsageError, match="Not a directory"):
            LogStore.open(str(tmp_path / where), writable=writable)


def test_what_commits_take_is_counted(tmp_path: Path) -> None:
    store, table = LogStore.open(str(tmp_path)), TopicTable()
    store.append(columns_of([(b"a", b"x")], table), 0, 1, 1, table)
    store.commit()
    store.shards[0].wait_committed(1, 10)
    (found,) = store.statistics()
    store.close()
    assert (found.commits, found.write_s > 0) == (1, True)


def test_what_small_commits_take_is_counted_too(tmp_path: Path) -> None:
    store, table = LogStore.open(str(tmp_path)), TopicTable()
    shard, before = store.shards[0], 0.0
    for number in range(1, 200):
        store.append(columns_of([(b"a", b"x")], table), 0, 1, number, table)
        shard.commit_here()  # beside this thread while the disk is quick
        shard.wait_committed(number, 10)
        (found,) = store.statistics()
        assert found.write_s > before
        before = found.write_s
    store.close()
