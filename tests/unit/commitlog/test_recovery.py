"""Opening after an unclean stop: what is cut, what is fenced, where the log goes on."""

from collections import Counter
from random import Random

import pytest
from tests.shard_logs import DIRECTORY, Row, append, commit, numbered, opened, rows, small
from tests.simulated_disk import SimulatedDisk

from everlog.base import StorageError
from everlog.commitlog import ShardLog
from everlog.commitlog.mark import read_marks
from everlog.commitlog.segment_format import FRAME_BYTES, HEADER_BYTES

LOG = f"{DIRECTORY}/{0:020d}.log"
MARK = f"{DIRECTORY}/mark"


def stopped(batches: int = 4, keep_mark: bool = True, **changes: object) -> tuple[SimulatedDisk, list[Row], list[int]]:
    """A log of batches of two that was not closed: the disk, its rows, where each batch's frame stands."""
    disk = SimulatedDisk(Random(1))
    log = opened(disk, small(segment_bytes=1 << 20, **changes))
    for n in range(batches):
        commit(log, numbered(2, 2 * n, topics=40), 100 + n)
    (view,) = log.segments()
    frames = [position - FRAME_BYTES for position in view.batches().positions]
    found = rows(log)
    if not keep_mark:
        disk.put(MARK, disk.files()[MARK][512:].rjust(1096, b"\0"))
    disk.life += 1
    disk.locks.clear()
    return disk, found, frames


def damaged(disk: SimulatedDisk, position: int, path: str = LOG) -> None:
    data = bytearray(disk.files()[path])
    data[position] ^= 0xFF
    disk.put(path, bytes(data))


def cut(disk: SimulatedDisk, size: int) -> None:
    disk.put(LOG, disk.files()[LOG][:size])


def test_an_unclean_stop_goes_on_in_the_same_segment() -> None:
    disk, found, _ = stopped()
    log = opened(disk)
    assert (rows(log), log.end, log.damage) == (found, 8, [])
    commit(log, numbered(1, 8, topics=40))
    assert len(log.segments()) == 1
    assert rows(log)[8:] == [(8, b"t/8", b"payload 8")]
    log.close()
    assert rows(opened(disk)) == [*found, (8, b"t/8", b"payload 8")]


@pytest.mark.parametrize("part", [1, 31, 33, 90, 150])
def test_a_torn_tail_is_cut_where_the_last_whole_batch_ends(part: int) -> None:
    disk, found, frames = stopped(keep_mark=False)
    cut(disk, frames[3] + part)
    log = opened(disk)
    assert (rows(log), log.end, log.damage) == (found[:6], 6, [])
    assert len(disk.files()[LOG]) == frames[3]
    disk.crash()
    assert len(disk.files()[LOG]) == frames[3], "the cut is durable before anything is appended"
    commit(opened(disk), numbered(1, 6))


def test_zeros_behind_the_last_batch_are_cut() -> None:
    disk, found, _ = stopped(keep_mark=False)
    size = len(disk.files()[LOG])
    disk.put(LOG, disk.files()[LOG] + bytes(5000))
    assert rows(opened(disk)) == found
    assert len(disk.files()[LOG]) == size


def test_a_tail_that_the_mark_says_was_committed_is_kept_and_its_offsets_are_not_given_again() -> None:
    disk, found, frames = stopped()
    damaged(disk, frames[3] + 40)
    before = disk.files()[LOG]
    log = opened(disk)
    assert rows(log) == found[:6]
    assert (log.end, log.committed) == (8, 8)
    (report,) = log.damage
    assert (report.path, report.position, report.from_offset, report.to_offset) == (LOG, frames[3], 6, 8)
    assert disk.files()[LOG] == before
    commit(log, numbered(1, 8))
    assert [row[0] for row in rows(log)] == [*range(6), 8]
    log.close()
    disk.crash()
    assert opened(disk).end == 9


def test_a_bad_batch_with_good_ones_behind_it_is_fenced() -> None:
    for keep_mark in (True, False):
        disk, found, frames = stopped(keep_mark=keep_mark)
        damaged(disk, frames[2] - 3)  # a payload of the second batch: its names are whole
        before = disk.files()[LOG]
        log = opened(disk)
        assert rows(log) == found[:2] + found[4:]
        (report,) = log.damage
        assert (report.position, report.from_offset, report.to_offset) == (frames[1], 2, 4)
        assert log.end == 8
        assert rows(log, 2) == found[4:]
        commit(log, numbered(1, 8))
        while log.seal_step():
            pass
        assert disk.files()[LOG] == before, "damaged bytes are never changed"
        log.close()
        again = opened(disk)
        assert again.segments()[0].sealed
        assert len(rows(again)) == 7
        assert report in again.damage, "the report outlives the restart"


def test_a_batch_whose_frame_alone_is_bad_is_read() -> None:
    disk, found, frames = stopped(keep_mark=False)
    damaged(disk, frames[1] + 9)
    log = opened(disk)
    assert rows(log) == found
    assert [report.position for report in log.damage] == [frames[1]]


def test_the_next_frame_is_found_when_frame_and_batch_are_bad() -> None:
    disk, found, frames = stopped(keep_mark=False)
    damaged(disk, frames[2])
    damaged(disk, frames[2] + FRAME_BYTES)
    log = opened(disk)
    assert rows(log) == found[:4] + found[6:]
    assert [(r.position, r.from_offset, r.to_offset) for r in log.damage] == [(frames[2], 4, 6)]


def test_a_batch_whose_topics_were_named_in_a_lost_batch_is_not_returned() -> None:
    disk = SimulatedDisk(Random(1))
    log = opened(disk, small(segment_bytes=1 << 20))
    commit(log, [(b"a", b"1")])
    commit(log, [(b"b", b"2")])
    commit(log, [(b"a", b"3")])
    commit(log, [(b"b", b"4")])
    frames = [position - FRAME_BYTES for position in log.segments()[0].batches().positions]
    disk.life += 1
    disk.locks.clear()
    damaged(disk, frames[1] + FRAME_BYTES + 80)  # a column, so nothing of the batch can be trusted
    log = opened(disk)
    assert rows(log) == [(0, b"a", b"1"), (2, b"a", b"3")]
    assert [(r.from_offset, r.to_offset) for r in log.damage] == [(1, 2), (3, 4)]


def test_names_of_a_damaged_batch_are_known_from_the_side_file() -> None:
    disk = SimulatedDisk(Random(1))
    log = opened(disk, small(segment_bytes=1 << 20))
    commit(log, [(b"b", b"1")])
    commit(log, [(b"b", b"2")])
    log.close()
    damaged(disk, HEADER_BYTES + FRAME_BYTES + 70)
    log = opened(disk)
    assert rows(log) == [(1, b"b", b"2")]


def test_names_of_a_tail_that_was_cut_are_not_taken_over() -> None:
    disk = SimulatedDisk(Random(1))
    log = opened(disk)
    commit(log, [(b"a", b"1")])
    append(log, [(b"b", b"2" * 50)])
    log.commit_step()
    disk.life += 1
    disk.locks.clear()
    disk.put(MARK, disk.files()[MARK][512:].rjust(1096, b"\0"))
    damaged(disk, len(disk.files()[LOG]) - 9)  # its payload: header, columns and names are whole
    log = opened(disk)
    assert log.end == 1
    commit(log, [(b"c", b"3"), (b"b", b"4")])
    assert rows(reopen(disk)) == [(0, b"a", b"1"), (1, b"c", b"3"), (2, b"b", b"4")]


def test_a_segment_whose_creation_was_torn_is_begun_again() -> None:
    for size in (0, 5, 64, 128, 200):
        disk = SimulatedDisk(Random(1))
        log = opened(disk, small(segment_bytes=200))
        commit(log, numbered(2))
        commit(log, numbered(2, 2))
        last = f"{DIRECTORY}/{2:020d}.log"
        torn = disk.files()[last][:size]
        disk.put(last, b"\0" * min(size, 60) + torn[60:])
        disk.put(MARK, disk.files()[MARK][512:].rjust(1096, b"\0"))
        disk.life += 1
        disk.locks.clear()
        log = opened(disk)
        assert (log.end, len(rows(log))) == (2, 2)
        commit(log, numbered(2, 2))
        disk.crash()
        assert len(rows(opened(disk))) == 4


def test_an_unknown_segment_version_is_refused() -> None:
    import struct

    import crc32c

    disk, _, _ = stopped()
    raw = bytearray(disk.files()[LOG])
    for copy in (0, 64):
        struct.pack_into("<H", raw, copy + 4, 99)
        struct.pack_into("<I", raw, copy + 60, crc32c.crc32c(bytes(raw[copy : copy + 60])))
    disk.put(LOG, bytes(raw))
    with pytest.raises(StorageError, match="version 99"):
        opened(disk)
    assert disk.files()[LOG] == bytes(raw)


def test_of_all_segments_but_the_last_only_the_header_is_read_at_an_unclean_start() -> None:
    disk = SimulatedDisk(Random(1))
    log = opened(disk, small(segment_bytes=500))
    for n in range(30):
        commit(log, numbered(2, 2 * n))
    while log.seal_step():
        pass
    disk.life += 1
    disk.locks.clear()
    reads: Counter[str] = Counter()

    def note(kind: str, path: str) -> None:
        if kind == "read" and path.endswith(".log"):
            reads[path] += 1

    disk.fault = note
    log = opened(disk, small(segment_bytes=500))
    *earlier, last = sorted(reads)
    assert last.endswith(disk.list(DIRECTORY)[-2])
    assert {reads[path] for path in earlier} == {1}
    assert log.end == 60


def test_what_an_interrupted_seal_or_removal_left_is_cleaned_up_and_nothing_else() -> None:
    disk, found, _ = stopped()
    for name in (f"{0:020d}.log.tmp", f"{0:020d}.idx.tmp", f"{7:020d}.idx", "notes.tmp", "notes.idx", "1.idx.tmp"):
        disk.put(f"{DIRECTORY}/{name}", b"x")
    assert rows(opened(disk)) == found
    assert disk.list(DIRECTORY) == [f"{0:020d}.log", "1.idx.tmp", "mark", "notes.idx", "notes.tmp"]


def test_the_salt_is_found_again_when_the_mark_is_lost() -> None:
    disk, _, frames = stopped()
    disk.put(MARK, b"")
    damaged(disk, frames[1] + 80)
    assert len(rows(opened(disk))) >= 2
    commit(opened_again := reopen(disk), numbered(1))
    assert opened_again.damage


def reopen(disk: SimulatedDisk) -> ShardLog:
    disk.life += 1
    disk.locks.clear()
    return opened(disk)


@pytest.mark.parametrize("durability", ["memory", "flush"])
def test_offsets_that_were_seen_are_not_given_again_though_nothing_was_synced(durability: str) -> None:
    for seed in range(10):
        disk = SimulatedDisk(Random(seed))
        log = opened(disk, small(durability=durability))
        commit(log, numbered(5))
        assert log.committed == 5
        disk.crash()
        log = opened(disk, small(durability=durability))
        assert log.end >= 5
        assert append(log, numbered(1)) >= 5


def test_the_mark_of_a_new_log_survives_a_crash() -> None:
    for seed in range(20):
        disk = SimulatedDisk(Random(seed))
        opened(disk)
        disk.crash()
        _, survived = read_marks(disk.files()[MARK], MARK)
        assert survived is not None
        assert survived.salt != 0


def test_a_sealed_segment_is_not_written_to_though_it_is_the_last() -> None:
    disk = SimulatedDisk(Random(1))
    log = opened(disk, small(segment_bytes=300))
    for n in range(3):
        commit(log, numbered(2, 2 * n))
    while log.seal_step():
        pass
    log.close()
    names = [name for name in disk.list(DIRECTORY) if name.endswith(".log")]
    for suffix in (".log", ".idx"):
        disk.unlink(f"{DIRECTORY}/{names[-1][:20]}{suffix}")
    sealed = disk.files()[f"{DIRECTORY}/{names[-2]}"]
    assert opened(disk).end == 6, "the mark knows"
    disk.put(MARK, b"")
    log = reopen(disk)
    commit(log, numbered(1, log.end))
    assert disk.files()[f"{DIRECTORY}/{names[-2]}"] == sealed


def test_a_side_file_of_what_the_segment_was_before_a_merge_is_not_believed() -> None:
    disk = SimulatedDisk(Random(1))
    settings = small(segment_bytes=900, merge_below=50)
    log = opened(disk, settings)
    for n in range(3):
        commit(log, numbered(1, n))
    log.close()
    before = disk.files()[LOG.replace(".log", ".idx")]
    log = opened(disk, settings)
    for n in range(3, 9):
        commit(log, numbered(1, n))
    found = rows(log)
    while log.seal_step():
        pass
    assert log.statistics().merges == 1
    log.close()
    disk.put(LOG.replace(".log", ".idx"), before)
    log = opened(disk, settings)
    assert (rows(log), log.damage) == (found, [])


def torn_group(place: int, more: bool) -> SimulatedDisk:
    """A log with a group of four batches, one of which is bad, that nothing says was synced; or another after it."""
    disk = SimulatedDisk(Random(1))
    log = opened(disk, small(segment_bytes=1 << 20, batch_bytes=60))
    commit(log, numbered(2, topics=1))
    mark = disk.files()[MARK]
    for n in range(4):
        append(log, numbered(2, 2 + 2 * n, topics=1))
    log.commit_step()
    if more:
        commit(log, numbered(2, 10, topics=1))
    (view,) = log.segments()
    damaged(disk, view.batches().positions[1 + place] + 100)
    disk.put(MARK, mark)
    disk.life += 1
    disk.locks.clear()
    return disk


@pytest.mark.parametrize("place", range(4))
def test_a_torn_group_is_cut_though_some_of_its_batches_are_whole(place: int) -> None:
    disk = torn_group(place, more=False)
    log = opened(disk)
    assert (log.damage, log.end, len(rows(log))) == ([], 2 + 2 * place, 2 + 2 * place)
    commit(log, numbered(1, 50))
    assert len(log.segments()) == 1
    log.close()
    assert rows(opened(disk))[-1][2] == b"payload 50"


@pytest.mark.parametrize("place", range(4))
def test_a_bad_batch_before_one_that_was_written_after_a_sync_is_fenced(place: int) -> None:
    log = opened(torn_group(place, more=True))
    (damage,) = log.damage
    assert (damage.from_offset, damage.to_offset, log.end) == (2 + 2 * place, 4 + 2 * place, 12)


def test_a_log_that_does_not_sync_keeps_what_follows_a_bad_batch() -> None:
    disk = torn_group(1, more=False)
    log = opened(disk, small(durability="flush"))
    assert (len(log.damage), len(rows(log))) == (1, 8)
