"""Every byte of a small store is damaged, one at a time: nothing wrong is ever returned, and the report says where."""

from random import Random

import pytest
from tests.crash.simulation import CountingIndexer
from tests.shard_logs import Row, commit, rows, small
from tests.simulated_disk import SimulatedDisk

from everlog.commitlog import Damage, ShardLog, verify_directory

DIRECTORY = "data/shard-0"
SETTINGS = small(segment_bytes=500, batch_bytes=200)


def small_store() -> tuple[dict[str, bytes], list[Row]]:
    """Two sealed segments and one that is not, each of several batches, new topics in most of them."""
    disk = SimulatedDisk(Random(1))
    log = ShardLog.open(
        disk, DIRECTORY, SETTINGS, indexer=CountingIndexer(), background=False, now_us=lambda: 7,
        random_bytes=Random(2).randbytes,
    )  # fmt: skip
    for n in range(9):
        commit(log, [(b"t/%d" % n, b"<%d>" % n), (b"t/%d" % (n // 2), b"[%d]" % n)], 1000 + n)
    while log.seal_step():
        pass
    log.close()
    reread = ShardLog.open(disk, DIRECTORY, SETTINGS, background=False)
    assert [view.sealed for view in reread.segments()] == [True, True, False]
    expected = rows(reread)
    assert len(expected) == 18
    reread.close()
    return disk.files(), expected


FILES, EXPECTED = small_store()
BATCH = 2  # records


def disk_with(files: dict[str, bytes]) -> SimulatedDisk:
    disk = SimulatedDisk(Random(3))
    for path, data in files.items():
        disk.put(path, data)
    return disk


def flipped(path: str, position: int) -> dict[str, bytes]:
    """The store with one byte changed, in a way that depends on where."""
    data = bytearray(FILES[path])
    data[position] ^= Random(f"{path}{position}").randrange(1, 256)
    return {**FILES, path: bytes(data)}


def check(log: ShardLog, path: str, position: int) -> None:
    """At most one batch is missing, only from a log, and the report says which."""
    found = rows(log)
    assert set(found) <= set(EXPECTED), "something is returned that was never appended"
    assert found == sorted(found)
    missing = sorted(set(EXPECTED) - set(found))
    assert len(missing) in (0, BATCH)
    if missing:
        assert path.endswith(".log")
        fenced = [damage for damage in log.damage if damage.path == path and damage.from_offset <= missing[0][0]]
        assert any(damage.to_offset > missing[-1][0] and damage.position <= position for damage in fenced)
    for damage in log.damage:
        assert damage.path == path
        assert str(damage).startswith(f"{path} at byte ")


@pytest.mark.parametrize("path", sorted(FILES))
def test_a_flipped_byte_takes_at_most_its_batch(path: str) -> None:
    for position in range(len(FILES[path])):
        disk = disk_with(flipped(path, position))
        reader = ShardLog.open(disk, DIRECTORY, SETTINGS, writable=False)
        check(reader, path, position)
        log = ShardLog.open(disk, DIRECTORY, SETTINGS, indexer=CountingIndexer(), background=False)
        check(log, path, position)
        assert log.end == 18, "an offset would be given again"
        commit(log, [(b"after", b"all")], 2000)
        while log.seal_step():
            pass
        assert rows(log)[-1] == (18, b"after", b"all")
        log.close()


@pytest.mark.parametrize("path", sorted(FILES))
def test_verify_finds_every_flipped_byte(path: str) -> None:
    missed = []
    for position in range(len(FILES[path])):
        damage: tuple[Damage, ...] = verify_directory(disk_with(flipped(path, position)), DIRECTORY).damage
        if not damage:
            missed.append(position)
        assert all(report.path == path for report in damage)
    uncovered = [position for position in missed if FILES[path][position] != 0]
    assert uncovered == [], "bytes that say something and are not checked"
    assert not (path.endswith(".log") and missed)


def test_an_undamaged_store_has_nothing_to_report() -> None:
    found = verify_directory(disk_with(FILES), DIRECTORY)
    assert (found.segments, found.records, found.damage) == (3, 18, ())


def test_merging_never_rewrites_a_damaged_segment() -> None:
    path = sorted(name for name in FILES if name.endswith(".log"))[0]
    merging = small(segment_bytes=500, batch_bytes=200, merge_below=100)
    for position in range(128, len(FILES[path])):
        files = flipped(path, position)
        del files[path.replace(".log", ".idx")]
        disk = disk_with(files)
        log = ShardLog.open(disk, DIRECTORY, merging, background=False)
        while log.seal_step():
            pass
        assert disk.files()[path] == files[path]
        log.close()
