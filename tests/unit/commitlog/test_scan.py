"""The scan: what it accepts is whole and follows; everything else is damage or the tail."""

from random import Random

from tests.shard_logs import columns_of, numbered
from tests.simulated_disk import SimulatedDisk

from everlog.base import RecordBuilder, TopicTable
from everlog.commitlog.scan import Scan
from everlog.commitlog.segment_format import HEADER_BYTES, Frame

SALT = 7


def segment(bases: list[int], between: dict[int, bytes] | None = None) -> tuple[bytes, list[int]]:
    """A segment of batches of two with these base offsets, and where their frames stand; bytes may stand before one."""
    table, builder = TopicTable(), RecordBuilder()
    data, frames = bytearray(HEADER_BYTES), []
    for k, base in enumerate(bases):
        data += (between or {}).get(k, b"")
        builder.append(columns_of(numbered(2, base), table), 0, 2, 100 + k, table)
        batch = builder.take(base).to_bytes()
        frames.append(len(data))
        data += Frame(len(data), base, len(batch), 2, True).to_bytes(SALT) + batch
    return bytes(data), frames


def scanned(data: bytes, complete: bool = False) -> Scan:
    disk = SimulatedDisk(Random(1))
    disk.put("f", data)
    scan = Scan(disk.open("f"), "f", SALT, 0)
    scan.run(len(data), complete=complete)
    return scan


def test_batches_that_follow_each_other_are_accepted() -> None:
    data, _ = segment([0, 2, 4])
    scan = scanned(data)
    assert list(scan.index.snapshot().offsets) == [0, 2, 4]
    assert (scan.offset, scan.position, scan.last_time, scan.damage) == (6, len(data), 102, [])


def test_a_batch_with_offsets_that_were_given_is_not_accepted() -> None:
    data, frames = segment([0, 2, 0, 4])
    scan = scanned(data)
    assert list(scan.index.snapshot().offsets) == [0, 2, 4]
    assert [damage.position for damage in scan.damage] == [frames[2]]
    assert (scan.damage[0].from_offset, scan.damage[0].to_offset) == (4, 4)


def test_looking_for_the_next_frame_passes_those_with_offsets_that_were_given() -> None:
    data, frames = segment([0, 2, 0, 4], {2: b"\xff" * 64})
    scan = scanned(data)
    assert list(scan.index.snapshot().offsets) == [0, 2, 4]
    assert [damage.position for damage in scan.damage] == [frames[2] - 64]


def test_a_bad_end_is_the_tail_unless_all_was_committed() -> None:
    data, frames = segment([0, 2, 4])
    torn = data[:-20]
    scan = scanned(torn)
    assert (scan.offset, scan.position, scan.damage) == (4, frames[2], [])
    scan = scanned(torn, complete=True)
    assert (scan.offset, scan.position) == (6, len(torn))
    assert [(d.position, d.from_offset, d.to_offset) for d in scan.damage] == [(frames[2], 4, 6)]
    scan = scanned(data + b"\xff" * 40, complete=True)
    assert [(d.position, d.from_offset, d.to_offset) for d in scan.damage] == [(len(data), 6, 6)]


def test_a_scan_goes_on_when_the_segment_has_grown() -> None:
    data, frames = segment([0, 2, 4])
    disk = SimulatedDisk(Random(1))
    disk.put("f", data)
    scan = Scan(disk.open("f"), "f", SALT, 0)
    for limit, rows in ((frames[1], 1), (frames[1], 1), (frames[2], 2), (len(data), 3)):
        scan.run(limit, complete=True)
        assert len(scan.index) == rows
    assert scan.damage == []


def test_batches_larger_than_a_window_are_read_whole() -> None:
    table, builder = TopicTable(), RecordBuilder()
    data = bytearray(HEADER_BYTES)
    for base in range(3):
        builder.append(columns_of([(b"t", bytes([65 + base]) * (3 << 20))], table), 0, 1, 5, table)
        batch = builder.take(base).to_bytes()
        data += Frame(len(data), base, len(batch), 1, True).to_bytes(SALT) + batch
    assert scanned(bytes(data)).offset == 3
    data[HEADER_BYTES + 9] ^= 1  # a frame
    scan = scanned(bytes(data))
    assert (scan.offset, len(scan.damage)) == (3, 1)
    data[HEADER_BYTES + 100] ^= 1  # and its batch
    scan = scanned(bytes(data))
    assert (scan.offset, len(scan.index)) == (3, 0)  # the name was in it
    assert len(scan.damage) == 3
