"""Both disks keep the same promises; the simulated one breaks none that a real one keeps."""

import os
from pathlib import Path
from random import Random

import pytest
from tests.simulated_disk import SimulatedCrash, SimulatedDisk

from everlog.base import StorageError
from everlog.commitlog import Disk, RealDisk


@pytest.fixture(params=["real", "simulated"])
def disk(request: pytest.FixtureRequest) -> Disk:
    return RealDisk() if request.param == "real" else SimulatedDisk(Random(1))


def test_files_are_written_read_and_cut_at_positions(disk: Disk, tmp_path: Path) -> None:
    directory = f"{tmp_path}/x/y"
    disk.make_directory(directory)
    disk.make_directory(directory)
    file = disk.create(f"{directory}/f")
    other = disk.create(f"{directory}/g")
    file.write_at(0, [b"abc", b"def"])
    file.commit_at(4, [b"XY"], (other, b"note"))
    assert (file.read_at(0, 100), file.read_at(3, 2), file.size()) == (b"abcdXY", b"dX", 6)
    assert (file.read_at(6, 5), other.read_at(0, 9)) == (b"", b"note")
    file.write_at(8, [b"!"], (other, b"N"))
    file.sync()
    file.truncate(9)
    file.truncate(7)
    assert (file.read_at(0, 100), other.read_at(0, 9)) == (b"abcdXY\0", b"Note")
    disk.sync_directory(directory)
    assert disk.open(f"{directory}/f").read_at(0, 3) == b"abc"
    mapped = disk.open(f"{directory}/f").mapped(5)
    assert mapped is None or bytes(mapped) == b"abcdX"
    file.close()
    file.close()


def test_room_is_zeros_that_are_written_over(disk: Disk, tmp_path: Path) -> None:
    disk.make_directory(str(tmp_path))
    file = disk.create(f"{tmp_path}/f")
    file.write_at(0, [b"abc"])
    file.allocate(3, 150_000)
    file.commit_at(3, [b"def"])
    assert file.size() == 150_003
    assert file.read_at(0, 200_000) == b"abcdef".ljust(150_003, b"\0")
    file.allocate(2, 2)
    assert (file.size(), file.read_at(0, 6)) == (150_003, b"ab\0\0ef")


def test_names_come_change_and_go(disk: Disk, tmp_path: Path) -> None:
    directory = str(tmp_path)
    for name, data in (("a", b"1"), ("b", b"2")):
        disk.create(f"{directory}/{name}").write_at(0, [data])
    with pytest.raises(FileExistsError):
        disk.create(f"{directory}/a")
    held = disk.open(f"{directory}/b")
    disk.rename(f"{directory}/a", f"{directory}/b")
    assert disk.list(directory) == ["b"]
    assert (held.read_at(0, 9), disk.open(f"{directory}/b").read_at(0, 9)) == (b"2", b"1")
    disk.unlink(f"{directory}/b")
    assert disk.list(directory) == []
    for action in (disk.open, disk.unlink):
        with pytest.raises(FileNotFoundError):
            action(f"{directory}/b")
    assert held.read_at(0, 9) == b"2"


def test_a_lock_is_held_by_one(disk: Disk, tmp_path: Path) -> None:
    lock = disk.lock(f"{tmp_path}/LOCK")
    with pytest.raises(StorageError, match="is held by"):
        disk.lock(f"{tmp_path}/LOCK")
    lock.release()
    lock.release()
    disk.lock(f"{tmp_path}/LOCK").release()


def test_the_lock_names_its_holder(tmp_path: Path) -> None:
    lock = RealDisk().lock(f"{tmp_path}/LOCK")
    with pytest.raises(StorageError, match=rf"held by process {os.getpid()},"):
        RealDisk().lock(f"{tmp_path}/LOCK")
    lock.release()


def test_descriptors_are_closed_when_nobody_holds_them(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for n in range(50):
        RealDisk().create(f"{tmp_path}/{n}")
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_crash_keeps_what_was_synced_and_any_part_of_the_rest() -> None:
    outcomes: set[bytes | None] = set()
    for seed in range(300):
        disk = SimulatedDisk(Random(seed))
        file = disk.create("d/f")
        file.commit_at(0, [b"kept"])
        if seed % 2:
            disk.sync_directory("d")
        file.write_at(4, [b"AB"])
        file.write_at(6, [b"CD"])
        disk.crash()
        if disk.list("d"):
            data = disk.open("d/f").read_at(0, 99)
            assert data[:4] == b"kept"
            outcomes.add(data[4:])
        else:
            assert not seed % 2
            outcomes.add(None)
        with pytest.raises(OSError):
            file.read_at(0, 1)
    assert {None, b"", b"ABCD", b"AB", b"\0\0CD"} <= outcomes


def test_a_crash_may_undo_each_change_of_names_on_its_own() -> None:
    outcomes = set()
    for seed in range(200):
        disk = SimulatedDisk(Random(seed))
        for name in ("a", "b"):
            disk.create(f"d/{name}")
        disk.sync_directory("d")
        disk.rename("d/a", "d/c")
        disk.unlink("d/b")
        disk.crash()
        outcomes.add(tuple(disk.list("d")))
    assert outcomes == {("a", "b"), ("a",), ("b", "c"), ("c",)}


def test_a_failed_sync_forgets_what_it_should_have_written() -> None:
    disk = SimulatedDisk(Random(1))
    file = disk.create("d/f")
    disk.sync_directory("d")
    disk.fault = lambda kind, path: 5 if kind == "sync" else None
    with pytest.raises(OSError):
        file.commit_at(0, [b"gone"])
    disk.fault = lambda kind, path: None
    file.sync()
    assert file.read_at(0, 9) == b"gone"
    disk.crash()
    assert disk.open("d/f").read_at(0, 9) == b""


def test_the_machine_stops_when_it_is_told_to() -> None:
    disk = SimulatedDisk(Random(1))
    disk.crash_after = 1
    file = disk.create("d/f")
    with pytest.raises(SimulatedCrash):
        file.write_at(0, [b"x"])
    assert disk.crash_after is None
