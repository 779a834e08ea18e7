"""Sealing: side files, merged batches, and readers that never notice."""

from collections.abc import Sequence
from random import Random

from tests.shard_logs import DIRECTORY, columns_of, commit, numbered, opened, rows, small
from tests.simulated_disk import SimulatedCrash, SimulatedDisk

from everlog.base import RecordBuilder, Records, TopicTable
from everlog.commitlog import ShardLog
from everlog.commitlog.sealer import each_batch

FIRST = f"{DIRECTORY}/{0:020d}"


class Recorder:
    """An indexer that shows what it was given."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[bytes], list[list[int]]]] = []

    def build(self, names: TopicTable, batch_topics: Sequence[memoryview]) -> list[bytes]:
        self.calls.append((names.all_names(), [list(column) for column in batch_topics]))
        return [b"section ", b"%d" % len(names)]


def filled(
    disk: SimulatedDisk, *, merge_below: int = 0, indexer: Recorder | None = None, **changes: object
) -> ShardLog:
    log = opened(disk, small(segment_bytes=1000, merge_below=merge_below, **changes), indexer=indexer)
    for n in range(20):
        commit(log, numbered(2, 2 * n, topics=7), 1000 + n)
    return log


def seal(log: ShardLog) -> None:
    while log.seal_step():
        pass


def test_complete_segments_are_sealed_and_the_last_is_not() -> None:
    log = filled(SimulatedDisk(Random(1)))
    assert not any(view.sealed for view in log.segments())
    seal(log)
    assert [view.sealed for view in log.segments()] == [True] * (len(log.segments()) - 1) + [False]
    assert log.segments()[-1].side() is None


def test_the_indexer_is_given_names_and_the_topics_of_each_batch() -> None:
    indexer = Recorder()
    log = filled(SimulatedDisk(Random(1)), indexer=indexer)
    seal(log)
    view = log.segments()[0]
    names, batches = indexer.calls[0]
    assert names == view.table.all_names()
    assert len(batches) == len(view.batches())
    assert [[names[topic] for topic in column] for column in batches] == [
        [records.table.name(row[2]) for row in records.rows()] for records in view.read(0, len(view.batches()))
    ]
    section = view.side("topics")
    assert section is not None
    assert section.read_at(0, 100) == b"section %d" % len(names)


def test_small_batches_are_merged_and_read_as_before() -> None:
    disk = SimulatedDisk(Random(1))
    log = filled(disk, merge_below=50, merge_records=6)
    before, held = rows(log), log.segments()[0]
    batches = held.batches()
    seal(log)
    merged = log.segments()[0]
    assert len(merged.batches()) < len(batches)
    assert max(merged.batches().counts) <= 6
    assert rows(log) == before
    assert merged.size_bytes < held.size_bytes
    assert [r.base_offset for r in held.read(0, len(batches))] == list(batches.offsets), "the old file reads on"
    assert log.statistics().merges == len(log.segments()) - 1
    log.close()
    assert rows(opened(disk)) == before


def test_merging_keeps_times_and_stays_within_their_span() -> None:
    disk = SimulatedDisk(Random(1))
    log = opened(disk, small(segment_bytes=900, merge_below=50))
    for n in range(8):
        commit(log, numbered(1, n), 1000 + (n << 31))
    times = [row[1] for n in range(8) for r in log.read(n, 1) for row in r.rows()]
    seal(log)
    found = {row[0]: row[1] for view in log.segments() for r in view.read(0, len(view.batches())) for row in r.rows()}
    assert [found[n] for n in range(8)] == times


def test_large_batches_are_not_merged() -> None:
    disk = SimulatedDisk(Random(1))
    log = filled(disk, merge_below=2)
    before = disk.files()[FIRST + ".log"]
    seal(log)
    assert disk.files()[FIRST + ".log"] == before


def heavy(disk: SimulatedDisk, indexer: Recorder | None = None) -> ShardLog:
    """Return a log whose batches have two records of 20,000 bytes each."""
    settings = small(segment_bytes=200_000, batch_bytes=1 << 20, merge_below=50, merge_below_bytes=30_000)
    log = opened(disk, settings, indexer=indexer)
    for n in range(20):
        commit(log, [(b"t/%d" % (n % 3), bytes(20_000)), (b"u/%d" % n, bytes(20_000))], 1000 + n)
    return log


def test_batches_of_few_large_records_are_not_merged_and_their_payloads_not_read() -> None:
    disk, indexer = SimulatedDisk(Random(1)), Recorder()
    log = heavy(disk, indexer)
    before = disk.files()[FIRST + ".log"]
    view = log.segments()[0]
    disk.read_bytes = 0
    seal(log)
    assert disk.files()[FIRST + ".log"] == before
    assert log.statistics().merges == 0
    assert disk.read_bytes < len(before), "of four segments only the columns were read"
    names, batches = indexer.calls[0]
    assert [[names[topic] for topic in column] for column in batches] == [
        [records.table.name(row[2]) for row in records.rows()] for records in view.read(0, len(view.batches()))
    ]


def test_a_log_that_never_merges_reads_no_batch_of_some_size_to_seal_it() -> None:
    disk, indexer = SimulatedDisk(Random(1)), Recorder()
    log = opened(disk, small(segment_bytes=200_000, batch_bytes=1 << 20, merge_below=0), indexer=indexer)
    for n in range(45):
        size = 20 if n == 7 else 200  # one of nine is small, and read by itself
        commit(log, [(b"t/%d" % (k % 3), bytes(size)) for k in range(100 + n)], 1000 + n)
    view = log.segments()[0]
    disk.read_bytes = 0
    seal(log)
    assert disk.read_bytes < 10_000, "all but the columns of one batch were in memory"
    names, batches = indexer.calls[0]
    assert [[names[topic] for topic in column] for column in batches] == [
        [records.table.name(row[2]) for row in records.rows()] for records in view.read(0, len(view.batches()))
    ]


def test_damaged_columns_of_a_large_batch_are_reported_and_leave_the_segment_without_an_index() -> None:
    disk, indexer = SimulatedDisk(Random(1)), Recorder()
    log = heavy(disk, indexer)
    view = log.segments()[0]
    damaged = view.batches().positions[1] + view.read(1, 2)[0].layout.topics
    disk.open(FIRST + ".log", write=True).write_at(damaged, [b"\xff"])
    seal(log)
    assert [(found.from_offset, found.to_offset) for found in log.damage] == [(2, 4)]
    assert len(indexer.calls) == len(log.segments()) - 2


def test_a_seal_stopped_anywhere_leaves_one_whole_file_or_the_other() -> None:
    expected = rows(filled(SimulatedDisk(Random(1))))
    for stop in range(40):
        disk = SimulatedDisk(Random(stop))
        log = filled(disk, merge_below=50)
        disk.crash_after = stop
        try:
            seal(log)
        except SimulatedCrash:
            pass
        disk.crash()
        log = opened(disk, small(segment_bytes=1000, merge_below=50))
        assert rows(log) == expected
        seal(log)
        assert rows(log) == expected
        assert log.damage == []


def test_a_side_file_that_is_lost_or_damaged_is_made_again() -> None:
    for spoil in (None, 4, 100, 530, 600, -12):
        disk, indexer = SimulatedDisk(Random(1)), Recorder()
        log = filled(disk, indexer=indexer)
        seal(log)
        before = rows(log)
        log.close()
        whole = disk.files()[FIRST + ".idx"]
        if spoil is None:
            disk.unlink(FIRST + ".idx")
        else:
            data = bytearray(whole)
            data[spoil] ^= 0xFF
            disk.put(FIRST + ".idx", bytes(data))
        log = opened(disk, small(segment_bytes=1000), indexer=indexer)
        assert rows(log) == before
        log.repair()
        assert disk.files()[FIRST + ".idx"] == whole
        section = log.segments()[0].side()
        assert section is not None
        assert section.read_at(0, 7) == b"section"
        assert len(log.damage) == (spoil is not None)
        assert log.repair() == 0


def test_every_batch_is_walked_once() -> None:
    log = filled(SimulatedDisk(Random(1)))
    seal(log)
    segment = log._catalog.segments[0]
    found: list[Records] = list(each_batch(log._catalog.reader(segment)))
    assert [r.base_offset for r in found] == list(log.segments()[0].batches().offsets)


def test_the_cache_lets_go_of_what_was_not_used() -> None:
    log = filled(SimulatedDisk(Random(1)), cache_bytes=0)
    seal(log)
    before = rows(log)
    assert len(log._catalog._cache) == 1
    assert rows(log) == before


def test_a_merged_batch_is_what_one_append_would_have_made() -> None:
    disk, table, builder = SimulatedDisk(Random(1)), TopicTable(), RecordBuilder()
    log = opened(disk, small(segment_bytes=500, merge_below=50))
    for n in range(8):
        commit(log, numbered(1, n))
    seal(log)
    (records,) = log.segments()[0].read(0, 1)
    builder.append(columns_of(numbered(records.count), table), 0, records.count, 1, table)
    assert bytes(records.data[records.start :][: records.size]) == builder.take(0).to_bytes()


def test_a_batch_found_damaged_while_sealing_stops_the_merge_and_nothing_else() -> None:
    for row in range(3):
        disk = SimulatedDisk(Random(1))
        log = opened(disk, small(segment_bytes=500, merge_below=50))
        for n in range(8):
            commit(log, numbered(1, n, topics=1))
        assert len(log.segments()[0].batches()) == 3
        kept = [found for found in rows(log) if found[0] != row]
        position = log.segments()[0].batches().positions[row]
        inode = disk._names[FIRST + ".log"]
        inode.seen[position + 70] ^= 1
        inode.durable[position + 70] ^= 1
        before = disk.files()[FIRST + ".log"]
        seal(log)
        assert log.failure is None
        assert disk.files()[FIRST + ".log"] == before
        assert rows(log) == kept
        assert [(damage.position, damage.from_offset) for damage in log.damage] == [(position, row)]
        log.close()
        assert rows(opened(disk)) == kept


def test_a_segment_that_was_removed_is_not_sealed() -> None:
    disk = SimulatedDisk(Random(1))
    log = filled(disk, retention_bytes=1)
    log.run_retention(0)
    assert not log.seal_step()
    assert disk.list(DIRECTORY) == [f"{log.start:020d}.log", "mark"]


def test_what_stands_in_a_large_batch_is_not_read_to_seal_it() -> None:
    indexer = Recorder()
    log = opened(SimulatedDisk(Random(1)), small(segment_bytes=1 << 20, batch_bytes=1 << 20), indexer=indexer)
    for n in range(3):
        commit(log, [(b"a/%d" % k, bytes(30_000)) for k in range(n, n + 3)], 1000 + n)
    commit(log, numbered(2, 0, topics=7), 2000)
    reader = log._committer.segment.reader
    kept, reader.kept = reader.kept, {}
    assert list(kept) == [0, 1, 2]
    assert kept == {row: reader.columns(row) for row in kept}  # as it is in the file
    reader.kept, read = kept, []
    reader.file.read_at = lambda position, size: read.append(position)
    assert [reader.columns(row) for row in kept] == list(kept.values())
    assert read == []
