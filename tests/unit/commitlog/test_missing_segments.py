"""Segment files that are missing, or stand in another's place: told by the start, by followers and by `verify`."""

import struct
from pathlib import Path
from random import Random

import crc32c
import pytest
from tests.shard_logs import DIRECTORY, append, commit, numbered, opened, rows, small
from tests.simulated_disk import SimulatedCrash, SimulatedDisk

from everlog.commitlog import Damage, LogSettings, RealDisk, ShardLog, verify_directory
from everlog.commitlog.paths import segment_bases, segment_path, side_path
from everlog.commitlog.segment_format import HEADER_BYTES, read_header

SETTINGS = small(segment_bytes=300)
Span = tuple[int, int]


def written(
    segments: int = 5, seed: int = 2, settings: LogSettings = SETTINGS, is_sealed: bool = True
) -> SimulatedDisk:
    """Return the disk of a log of segments of two records, sealed but for the last, that was closed."""
    disk = SimulatedDisk(Random(1))
    log = ShardLog.open(disk, DIRECTORY, settings, background=False, random_bytes=Random(seed).randbytes)
    for n in range(segments):
        commit(log, numbered(2, 2 * n), 100 + n)
    while is_sealed and log.seal_step():
        pass
    log.close()
    assert bases_of(disk) == list(range(0, 2 * segments, 2))
    return disk


def bases_of(disk: SimulatedDisk) -> list[int]:
    return segment_bases(disk.list(DIRECTORY))


def delete(disk: SimulatedDisk, base: int, side: bool = True) -> None:
    disk.unlink(segment_path(DIRECTORY, base))
    if side:
        disk.unlink(side_path(DIRECTORY, base))


def spans(damage: "tuple[Damage, ...] | list[Damage]") -> list[Span]:
    return [(one.from_offset, one.to_offset) for one in damage]


def told(disk: SimulatedDisk) -> list[list[Span]]:
    """Return what `verify`, a follower and two starts report, and read everything each time."""
    found = [spans(verify_directory(disk, DIRECTORY).damage)]
    follower = ShardLog.open(disk, DIRECTORY, SETTINGS, writable=False)
    rows(follower)
    found.append(spans(follower.damage))
    for _ in range(2):
        log = opened(disk, SETTINGS)
        rows(log)
        found.append(spans(log.damage))
        assert log.statistics().damaged == len(log.damage)
        log.close()
    return found


@pytest.mark.parametrize("side", [True, False])
def test_a_segment_missing_in_the_middle_is_told_and_the_rest_is_read(side: bool) -> None:
    disk = written()
    delete(disk, 4, side)
    assert told(disk) == 4 * [[(4, 6)]]
    log = opened(disk, SETTINGS)
    assert [row[0] for row in rows(log)] == [0, 1, 2, 3, 6, 7, 8, 9]
    commit(log, numbered(2, 10))
    log.close()
    (report,) = verify_directory(disk, DIRECTORY).damage
    assert "restore it from a backup; offsets 4 to 5 are not readable" in str(report)


def test_a_start_tells_of_one_that_is_missing_behind_one_that_is_not_sealed() -> None:
    """As after a stop while the sealing was behind: where the one before the gap ends, only reading it tells."""
    disk = written(is_sealed=False)
    delete(disk, 4, side=False)
    log = opened(disk, SETTINGS)
    assert (spans(log.damage), log.statistics().damaged) == ([(4, 6)], 1)
    log.close()


def test_several_missing_in_a_row_are_one_gap() -> None:
    disk = written()
    delete(disk, 4)
    delete(disk, 6)
    assert told(disk) == 4 * [[(4, 8)]]


def test_a_missing_first_segment_may_have_been_removed_by_retention() -> None:
    disk = written()
    delete(disk, 0)
    assert told(disk) == 4 * [[]]


def test_a_missing_last_segment_is_told_for_ever() -> None:
    disk = written()
    delete(disk, 8)
    assert told(disk) == 4 * [[(8, 10)]]
    log = opened(disk, SETTINGS)
    assert commit(log, numbered(2, 10)) == 10
    log.close()
    assert bases_of(disk) == [0, 2, 4, 6, 10]
    assert told(disk) == 4 * [[(8, 10)]]


def test_all_segments_missing_are_told() -> None:
    disk = written()
    for base in bases_of(disk):
        delete(disk, base)
    assert told(disk) == 4 * [[(8, 10)]], "the others may have been removed by retention"
    assert opened(disk, SETTINGS).end == 10


def test_a_sealed_segment_cut_at_the_end_of_a_batch_is_told() -> None:
    disk = SimulatedDisk(Random(1))
    log = opened(disk, small(segment_bytes=500))
    for n in range(8):
        commit(log, numbered(1, n), 100 + n)
    log.close()
    position = log.segments()[0].batches().positions[-1] - 32
    path = segment_path(DIRECTORY, 0)
    disk.put(path, disk.files()[path][:position])
    cut = log.segments()[1].base_offset
    assert spans(verify_directory(disk, DIRECTORY).damage) == [(cut - 1, cut)]


def test_a_restored_segment_ends_the_reports() -> None:
    for base in (4, 8):
        disk = written()
        kept = {path: disk.files()[path] for path in (segment_path(DIRECTORY, base), side_path(DIRECTORY, base))}
        delete(disk, base)
        log = opened(disk, SETTINGS)
        commit(log, numbered(2, 10))
        log.close()
        for path, data in kept.items():
            disk.put(path, data)
        assert told(disk) == 4 * [[]]
        assert len(rows(opened(disk, SETTINGS))) == 12


@pytest.mark.parametrize("side", [True, False])
@pytest.mark.parametrize("base", [0, 4, 8])
def test_another_shards_file_is_never_served(base: int, side: bool) -> None:
    disk, other = written(), written(seed=3)
    for path in (segment_path(DIRECTORY, base), side_path(DIRECTORY, base))[: 1 + side]:
        disk.put(path, other.files()[path])
    before = disk.files()[segment_path(DIRECTORY, base)]
    assert told(disk) == 4 * [[(base, base + 2)]]
    for log in (ShardLog.open(disk, DIRECTORY, SETTINGS, writable=False), opened(disk, SETTINGS)):
        assert [row[0] for row in rows(log)] == [n for n in range(10) if n // 2 * 2 != base]
    commit(log, numbered(2, 10))
    while log.seal_step():
        pass
    log.close()
    assert disk.files()[segment_path(DIRECTORY, base)] == before


def test_a_file_under_another_segments_name_is_never_served() -> None:
    disk = written()
    disk.put(segment_path(DIRECTORY, 4), disk.files()[segment_path(DIRECTORY, 6)])
    assert told(disk) == 4 * [[(4, 6)]]


def test_files_swapped_while_the_log_is_open_are_not_served() -> None:
    disk, other = written(), written(seed=3)
    log = opened(disk, SETTINGS)
    path = segment_path(DIRECTORY, 4)
    disk.put(path, other.files()[path])
    assert [row[0] for row in rows(log)] == [0, 1, 2, 3, 6, 7, 8, 9]
    assert [one.path for one in log.damage] == [path]


def test_an_empty_last_segment_of_another_shard_does_not_stop_the_log() -> None:
    disk, other = written(), written(6, seed=3)
    path = segment_path(DIRECTORY, 10)
    disk.put(path, other.files()[path])
    log = opened(disk, SETTINGS)
    assert commit(log, numbered(2, 10)) == 11
    assert log.failure is None
    assert rows(log)[-1][0] == 12


def without_previous_end(disk: SimulatedDisk) -> None:
    """Make a log what it would have been before headers told where the segment before ended."""
    for base in bases_of(disk):
        path = segment_path(DIRECTORY, base)
        data = bytearray(disk.files()[path])
        for copy in (0, 64):
            data[copy + 40 : copy + 48] = bytes(8)
            struct.pack_into("<I", data, copy + 60, crc32c.crc32c(bytes(data[copy : copy + 60])))
        disk.put(path, bytes(data))
        disk.unlink(side_path(DIRECTORY, base))
    log = opened(disk, SETTINGS)
    while log.seal_step():
        pass
    log.close()


def test_a_log_of_before_opens_without_complaint_and_goes_on() -> None:
    disk = written()
    without_previous_end(disk)
    assert told(disk) == 4 * [[]]
    delete(disk, 4)
    assert told(disk) == 4 * [[]], "nothing tells"
    log = opened(disk, SETTINGS)
    for n in range(5, 8):
        commit(log, numbered(2, 2 * n))
    while log.seal_step():
        pass
    log.close()
    delete(disk, 12)
    assert told(disk) == 4 * [[(12, 14)]]


@pytest.mark.parametrize("durability", ["memory", "flush"])
def test_reserved_offsets_are_no_gap(durability: str) -> None:
    settings = small(durability=durability, segment_bytes=300)
    disk = SimulatedDisk(Random(1))
    log = opened(disk, settings)
    commit(log, numbered(2))
    disk.life += 1
    disk.locks.clear()
    for _ in range(3):
        log = opened(disk, settings)  # goes on after what may have been given out
        assert log.damage == []
        log.close()
    log = opened(disk, settings)
    assert commit(log, numbered(2)) > 1000
    while log.seal_step():
        pass
    log.close()
    assert told(disk) == 4 * [[]]
    assert [previous for _, previous in headers(disk)] == [0, 2]


def test_merged_segments_still_tell_where_the_one_before_ended() -> None:
    settings = small(segment_bytes=500, merge_below=100)
    disk = SimulatedDisk(Random(1))
    log = opened(disk, settings)
    for n in range(20):
        commit(log, numbered(1, n), 100 + n)
    before = headers(disk)
    while log.seal_step():
        pass
    assert log.statistics().merges > 1
    log.close()
    assert headers(disk) == before
    assert [previous for _, previous in before] == [base for base, _ in before]


def headers(disk: SimulatedDisk) -> list[Span]:
    found = []
    for base in bases_of(disk):
        header = read_header(disk.files()[segment_path(DIRECTORY, base)][:HEADER_BYTES], "")
        assert header is not None
        found.append((base, header.previous_end))
    return found


def test_a_crash_within_retention_leaves_no_gap() -> None:
    for seed in range(60):
        disk = written(8)
        disk.random = Random(seed)
        log = opened(disk, small(segment_bytes=300, retention_us=1000))
        disk.crash_after = disk.random.randrange(30)
        try:
            log.run_retention(1_000_000)
        except SimulatedCrash:
            pass
        disk.crash()
        assert all(start == end for start, end in spans(verify_directory(disk, DIRECTORY).damage))
        assert opened(disk, SETTINGS).damage == []


def test_verify_beside_a_writer_and_retention_finds_nothing(tmp_path: Path) -> None:
    disk, directory = RealDisk(), str(tmp_path / "shard-0")
    log = ShardLog.open(disk, directory, small(segment_bytes=300, retention_bytes=3000), background=False)
    follower = None
    for n in range(60):
        append(log, numbered(2, 2 * n))
        if n % 3:
            log.commit_step()
        if n % 5 == 0:
            log.seal_step()
            log.run_retention(1)
        follower = follower or ShardLog.open(disk, directory, SETTINGS, writable=False)
        follower.refresh()
        assert (verify_directory(disk, directory).damage, follower.damage) == ((), [])
    log.close()
