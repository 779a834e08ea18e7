"""When a disk counts as full, and when no longer."""

import pytest

from everlog.store import FreeSpace

GIB = 1 << 30


class Disk:
    """A disk whose free space the test sets."""

    def __init__(self, total: int) -> None:
        self.total = self.free = total

    def ask(self, directory: str) -> tuple[int, int]:
        return self.free, self.total


@pytest.mark.parametrize(
    ("total", "reserve_bytes", "reserve"),
    [
        (10 * GIB, None, GIB // 2),
        (20 * GIB, None, GIB),
        (1000 * GIB, None, GIB),
        (10 * GIB, 12_345, 12_345),
        (10 * GIB, 0, 0),
    ],
)
def test_the_reserve_is_a_part_of_the_disk_unless_it_is_set(
    total: int, reserve_bytes: int | None, reserve: int
) -> None:
    disk = Disk(total)
    space = FreeSpace("data", reserve_bytes, disk.ask)
    assert not space.look()
    assert (space.reserve_bytes, space.free_bytes, space.is_low) == (reserve, total, False)
    disk.free = reserve
    assert not space.look()
    disk.free = max(0, reserve - 1)
    assert space.look() is (reserve > 0)


def test_a_full_disk_needs_a_little_more_than_the_reserve_to_count_as_not_full() -> None:
    disk = Disk(1000)
    space = FreeSpace("data", 100, disk.ask)
    found = []
    for free in (100, 99, 50, 100, 124, 125, 100, 99):
        disk.free = free
        found.append((space.look(), space.is_low))
    assert [low for _, low in found] == [False, True, True, True, True, False, False, True]
    assert [changed for changed, _ in found] == [False, True, False, False, False, True, False, True]


def test_a_disk_that_does_not_answer_is_as_it_was() -> None:
    def ask(directory: str) -> tuple[int, int]:
        raise OSError("no answer")

    assert not FreeSpace("data", 100, ask).look()


def test_the_system_is_asked(tmp_path: object) -> None:
    space = FreeSpace(str(tmp_path))
    space.look()
    assert space.free_bytes > 0
    assert 0 < space.reserve_bytes <= GIB
