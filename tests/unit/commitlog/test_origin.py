"""Whose log a segment is: written into its header, and another's is not read as if it were ours."""

import struct
from random import Random

import crc32c
import pytest
from tests.shard_logs import DIRECTORY, commit, numbered, opened, rows, small
from tests.simulated_disk import SimulatedDisk

from everlog.base import StorageError
from everlog.commitlog import NOBODY, Origin, ShardLog, origin_in, verify_directory
from everlog.commitlog.paths import segment_bases, segment_path
from everlog.commitlog.segment_format import HEADER_BYTES, SegmentHeader, read_header

SETTINGS = small(segment_bytes=300)
OURS, THEIRS = Origin(7, 1), Origin(7, 2)
FAR = Origin((1 << 64) - 1, 0xFFFF, 0xFFFFFFFF)


def written(origin: Origin, segments: int = 3) -> SimulatedDisk:
    """Return the disk of a log of segments of two records that was closed."""
    disk = SimulatedDisk(Random(1))
    log = opened(disk, SETTINGS, origin=origin)
    for n in range(segments):
        commit(log, numbered(2, 2 * n), 100 + n)
    while log.seal_step():
        pass
    log.close()
    return disk


def origins(disk: SimulatedDisk) -> list[Origin]:
    found = []
    for base in segment_bases(disk.list(DIRECTORY)):
        header = read_header(disk.files()[segment_path(DIRECTORY, base)][:HEADER_BYTES], "")
        assert header is not None
        found.append(header.origin)
    return found


def put(disk: SimulatedDisk, path: str, data: bytes) -> None:
    disk.unlink(path)
    disk.create(path).write_at(0, [data])


def test_a_header_says_whose_it_is_in_bytes_that_were_zero() -> None:
    header = SegmentHeader(5, 6, 7, 0xFFFFFFFF, 3, 9, FAR)
    raw = header.to_bytes()
    assert read_header(raw, "x") == header
    assert struct.unpack_from("<IIQQHH", raw, 32) == (0xFFFFFFFF, 0xFFFFFFFF, 9, FAR.store, FAR.shard, 0)
    before = bytearray(SegmentHeader(5, 6, 7, 8, 3, 9, OURS).to_bytes()[:64])
    before[48:60] = bytes(12)
    before[60:] = struct.pack("<I", crc32c.crc32c(bytes(before[:60])))
    assert read_header(bytes(before), "x") == SegmentHeader(5, 6, 7, 8, 3, 9, NOBODY)


def test_new_segments_say_whose_they_are_and_keep_it_when_they_are_rewritten() -> None:
    disk = SimulatedDisk(Random(1))
    log = opened(disk, small(segment_bytes=500, merge_below=100), origin=OURS)
    for n in range(20):
        commit(log, numbered(1, n), 100 + n)
    while log.seal_step():
        pass
    assert log.statistics().merges > 1
    log.close()
    assert origins(disk) == [OURS] * len(origins(disk))
    assert origin_in(disk, DIRECTORY) == OURS
    assert origin_in(disk, "data/nothing") == NOBODY


def test_segments_that_do_not_say_it_stay_readable_and_new_ones_do() -> None:
    disk = written(NOBODY)
    log = opened(disk, SETTINGS, origin=OURS)
    commit(log, numbered(6, 6), 200)
    commit(log, numbered(6, 12), 200)
    assert (len(rows(log)), log.damage) == (18, [])
    log.close()
    assert origins(disk)[0] == NOBODY
    assert origins(disk)[-1] == OURS
    assert verify_directory(disk, DIRECTORY, OURS).damage == ()


@pytest.mark.parametrize("theirs", [THEIRS, Origin(8, 1)])
@pytest.mark.parametrize("writable", [True, False])
def test_the_directory_of_another_log_is_refused(theirs: Origin, writable: bool) -> None:
    disk = written(theirs)
    with pytest.raises(StorageError, match=f"is a segment of {theirs}, and this is shard 1 of store 0{15 * '.'}"):
        ShardLog.open(disk, DIRECTORY, SETTINGS, writable=writable, background=False, origin=OURS)
    assert [str(theirs) in str(one) for one in verify_directory(disk, DIRECTORY, OURS).damage] == [True] * 3
    log = opened(disk, SETTINGS, origin=theirs)
    assert len(rows(log)) == 6


def test_a_file_of_another_log_is_not_read_even_if_the_mark_is_lost() -> None:
    disk = SimulatedDisk(Random(1))
    other = ShardLog.open(disk, "other", SETTINGS, background=False, random_bytes=Random(9).randbytes, origin=THEIRS)
    for n in range(3):
        commit(other, numbered(2, 100 + 2 * n), 100 + n)
    other.close()
    log = opened(disk, SETTINGS, origin=OURS)
    for n in range(3):
        commit(log, numbered(2, 2 * n), 100 + n)
    log.close()
    put(disk, segment_path(DIRECTORY, 4), disk.files()[segment_path("other", 4)])
    put(disk, f"{DIRECTORY}/mark", b"")
    log = opened(disk, SETTINGS, origin=OURS)
    assert [row[2] for row in rows(log)] == [b"payload %d" % n for n in range(4)]
    assert [one.path for one in log.damage] == [segment_path(DIRECTORY, 4)]
    follower = ShardLog.open(disk, DIRECTORY, SETTINGS, writable=False, origin=OURS)
    assert len(rows(follower)) == 4


def test_a_segment_has_one_epoch_and_a_later_owner_begins_another() -> None:
    disk = written(Origin(7, 1, 3))
    log = opened(disk, SETTINGS, origin=Origin(7, 1, 3))
    commit(log, numbered(1, 6), 200)
    log.close()
    same = len(origins(disk))
    log = opened(disk, SETTINGS, origin=Origin(7, 1, 4))
    commit(log, numbered(1, 7), 300)
    assert [row[0] for row in rows(log)] == list(range(8))
    log.close()
    assert [one.epoch for one in origins(disk)] == [3] * same + [4]


def test_an_owner_whose_epoch_is_over_is_refused_and_changes_nothing() -> None:
    disk = written(Origin(7, 1, 4))
    before = dict(disk.files())
    with pytest.raises(StorageError, match="a later owner: epoch 4, and this one has epoch 3"):
        opened(disk, SETTINGS, origin=Origin(7, 1, 3))
    assert dict(disk.files()) == before
    assert len(rows(ShardLog.open(disk, DIRECTORY, SETTINGS, writable=False, origin=Origin(7, 1, 3)))) == 6
