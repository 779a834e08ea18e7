"""Side files and marks: what is written comes back, what is damaged or unknown is refused."""

from random import Random

import pytest
from tests.simulated_disk import SimulatedDisk

from everlog.base import StorageError, table_of
from everlog.commitlog import CorruptFile, Damage, side_file
from everlog.commitlog.damage import DamageList
from everlog.commitlog.mark import MARK_BYTES, SLOT_SPACING, Mark, MarkFile, read_marks, read_slot
from everlog.commitlog.side_file import SideFile, SideSummary

SUMMARY = SideSummary(1, 0xFFFFFFFF, 1, 10, 1 << 63, 5, 6, 1 << 40, 0xFFFFFFFF, 3)
SECTIONS = [("batches", [b"12345"]), ("names", [b""]), ("topics", [bytes(range(90)), b"", bytes(range(90, 200))])]


def written() -> tuple[SimulatedDisk, SideFile]:
    disk = SimulatedDisk(Random(1))
    side_file.write(disk, "d", "d/x.idx", side_file.encode(SUMMARY, SECTIONS), "d/x.idx.tmp")
    return disk, SideFile("d/x.idx", disk.open("d/x.idx"))


def test_a_side_file_comes_back_section_by_section() -> None:
    disk, side = written()
    assert disk.list("d") == ["x.idx"]
    assert side.summary == SUMMARY
    assert side.summary.sealed
    assert [(name, side.read(name)) for name in side.names] == [(name, b"".join(parts)) for name, parts in SECTIONS]
    section = side.section("topics")
    assert section is not None
    assert section.size == 200
    assert section.read_at(190, 100) == bytes(range(190, 200))
    assert section.read_at(300, 5) == b""
    assert side.section("nothing") is None
    with pytest.raises(CorruptFile, match="no section 'nothing'"):
        side.read("nothing")


def test_a_side_file_survives_a_crash_once_written() -> None:
    for seed in range(20):
        disk = SimulatedDisk(Random(seed))
        side_file.write(disk, "d", "d/x.idx", side_file.encode(SUMMARY, SECTIONS), "d/x.idx.tmp")
        disk.crash()
        assert SideFile("d/x.idx", disk.open("d/x.idx")).read("topics") == bytes(range(200))


def test_a_damaged_section_is_refused_and_the_others_are_not() -> None:
    disk, _ = written()
    raw = bytearray(disk.files()["d/x.idx"])
    raw[-20] ^= 1
    disk.put("d/x.idx", bytes(raw))
    side = SideFile("d/x.idx", disk.open("d/x.idx"))
    assert side.read("batches") == b"12345"
    with pytest.raises(CorruptFile, match="'topics'") as refused:
        side.section("topics")
    assert refused.value.damage.path == "d/x.idx"


@pytest.mark.parametrize("data", [b"", b"EVLI", bytes(512), b"EVLI" + bytes(508)])
def test_what_is_no_side_file_is_refused(data: bytes) -> None:
    disk = SimulatedDisk(Random(1))
    disk.put("d/x.idx", data)
    with pytest.raises(CorruptFile):
        SideFile("d/x.idx", disk.open("d/x.idx"))


def test_names_and_reports_come_back() -> None:
    names = [b"a/b", b"", b"\xc3\xa9"]
    assert side_file.unpack_names(side_file.pack_names(table_of(names), 3), 3) == names
    reports = [Damage("p", 8, "what", 1, 2), Damage("p", 16, "else")]
    assert side_file.unpack_damage(side_file.pack_damage(reports), "p") == reports


MARK = Mark(0, (1 << 64) - 1, 5, 1 << 40, 3, 1 << 63, (1 << 64) - 2)


def test_a_mark_comes_back_from_its_slot() -> None:
    raw = MARK.to_bytes()
    assert read_slot(raw, 0, "mark") == MARK
    for position in range(len(raw)):
        assert read_slot(raw[:position] + bytes([raw[position] ^ 4]) + raw[position + 1 :], 0, "mark") is None


def test_a_mark_of_an_unknown_version_is_refused() -> None:
    import struct

    import crc32c

    raw = bytearray(MARK.to_bytes())
    struct.pack_into("<H", raw, 4, 9)
    struct.pack_into("<I", raw, len(raw) - 4, crc32c.crc32c(bytes(raw[:-4])))
    with pytest.raises(StorageError, match="version 9"):
        read_slot(bytes(raw), 0, "mark")


def test_a_kept_mark_is_never_written_over_the_last_one() -> None:
    disk = SimulatedDisk(Random(1))
    mark = MarkFile(disk.create("mark"), None, salt=77)
    disk.sync_directory("")
    mark.keep_again()
    for reserved in range(1, 6):
        before = disk.files()["mark"]
        mark.keep(Mark(reserved=reserved))
        after = disk.files()["mark"]
        slots = [k for k in (1, 2) if before[SLOT_SPACING * k :][:72] != after[SLOT_SPACING * k :][:72]]
        assert len(slots) == 1
        torn = bytearray(after)
        torn[SLOT_SPACING * slots[0] + 20] ^= 1
        _, survived = read_marks(bytes(torn), "mark")
        assert survived is not None
        assert (survived.reserved, survived.salt) == (reserved - 1, 77)
        assert mark.reserved == reserved
    assert len(disk.files()["mark"]) == MARK_BYTES


def test_damage_is_reported_once_and_its_list_is_bounded() -> None:
    found = DamageList()
    found.LIMIT = 2  # type: ignore[misc]
    for position in (1, 1, 2, 3):
        found.add(Damage("p", position, "what"))
    assert [damage.position for damage in found.reports()] == [1, 2]
    assert found.total == 3
    assert str(Damage("p", 8, "bad", 5, 7)) == "p at byte 8: bad; offsets 5 to 6 are not readable"
