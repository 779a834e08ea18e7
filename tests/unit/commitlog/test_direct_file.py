"""Large commits and what is read once go around the page cache, and the bytes are the same."""

import ctypes
import errno
import mmap
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
from tests.shard_logs import append, numbered, rows, small
from tests.twins import TWINS

from everlog.commitlog import RealDisk, ScannedDisk, ShardLog, direct_file
from everlog.commitlog.direct_file import LARGE_BYTES, Pace, is_cached
from everlog.commitlog.real_disk import RealFile

PAGE = mmap.PAGESIZE


@pytest.fixture(params=TWINS, ids=repr)
def file(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RealFile]:
    monkeypatch.setattr(direct_file, "write_blocks_around", request.param.write_blocks_around)
    monkeypatch.setattr(direct_file, "read_pace", Pace(256e6))
    monkeypatch.setattr(direct_file, "unsynced_pace", Pace(100e6))
    opened = RealDisk().create(f"{tmp_path}/file")
    yield opened
    opened.close()


def able(file: RealFile) -> None:
    """Leave out a test that needs a disk which lets its cache be asked and gone around."""
    file.commit_at(0, [bytes(LARGE_BYTES)], padded=True)
    if cached(file, LARGE_BYTES):
        pytest.skip("the disk under the tests has no way around its cache")


def cached(file: RealFile, stop: int, start: int = 0) -> bool:
    """Whether any page of a range is in the cache."""
    return any(is_cached(file._fd, at, PAGE) for at in range(start, stop, PAGE))


@pytest.mark.parametrize("seed", range(5))
def test_commits_of_any_size_are_one_behind_the_other(file: RealFile, seed: int) -> None:
    chance = Random(seed)
    expected = b""
    for _ in range(60):
        if chance.random() < 0.3:
            file.allocate(len(expected), 300_000)
        blocks = [chance.randbytes(chance.choice((1, 40, 3000, PAGE, 70_000, 400_000))) for _ in range(5)]
        if chance.random() < 0.1:
            blocks = [chance.randbytes(3 << 20), b"", b"end"]
        file.commit_at(len(expected), blocks, padded=chance.random() < 0.8)
        expected += b"".join(blocks)
        found = file.read_at(0, len(expected) + (1 << 20))
        assert found[: len(expected)] == expected
        assert not any(found[len(expected) :])


def shifted(data: bytes, position: int) -> memoryview:
    """Return the data at the place of a page in memory that it has in the file."""
    block = bytearray(len(data) + PAGE)
    start = (position - ctypes.addressof(ctypes.c_char.from_buffer(block))) % PAGE
    block[start : start + len(data)] = data
    return memoryview(block)[start : start + len(data)]


@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize("seed", range(2))
def test_blocks_at_their_place_in_a_page_are_written_from_there(file: RealFile, seed: int, sync: bool) -> None:
    chance = Random(seed)
    expected = b""
    for _ in range(20):
        start, parts = len(expected), []
        for _ in range(chance.choice((1, 4, 90))):
            data = chance.randbytes(chance.choice((32, 32, 5000, 3 * PAGE, 40_000)))
            parts.append(shifted(data, len(expected)) if chance.random() < 0.7 else data)
            expected += data
        write = file.commit_at if sync else file.write_at
        write(start, parts, padded=True)
        found = file.read_at(0, len(expected) + PAGE)
        assert found[: len(expected)] == expected
        assert not any(found[len(expected) :])


def test_a_slow_disk_is_written_through_the_page_cache_unless_that_is_synced(file: RealFile) -> None:
    able(file)
    direct_file.unsynced_pace.add(32 << 20, 10.0)
    file.write_at(0, [bytes(LARGE_BYTES)], padded=True)
    assert cached(file, PAGE)
    file.commit_at(0, [bytes(LARGE_BYTES)], padded=True)
    assert not cached(file, LARGE_BYTES)
    direct_file.unsynced_pace.leave(1 << 30)
    file.write_at(0, [bytes(LARGE_BYTES)], padded=True)
    assert not cached(file, LARGE_BYTES), "it is tried again after a while"


def test_a_page_at_most_is_padded(file: RealFile) -> None:
    file.commit_at(0, [bytes(LARGE_BYTES + 1)], padded=True)
    assert LARGE_BYTES < file.size() <= LARGE_BYTES + PAGE


def test_a_file_is_gone_on_with_in_the_midst_of_a_page(file: RealFile, tmp_path: Path) -> None:
    file.commit_at(0, [b"a" * 10])
    again = RealDisk().open(f"{tmp_path}/file", write=True)
    again.commit_at(10, [b"b" * LARGE_BYTES], padded=True)
    assert file.read_at(0, 12) == b"aaaaaaaaaabb"


def test_a_commit_that_must_not_be_padded_is_not(file: RealFile) -> None:
    file.commit_at(0, [bytes(LARGE_BYTES + 1)])
    assert file.size() == LARGE_BYTES + 1


def test_a_page_written_in_between_by_the_usual_way_is_kept(file: RealFile) -> None:
    file.commit_at(0, [b"a" * (LARGE_BYTES + 10)], padded=True)
    file.commit_at(LARGE_BYTES + 10, [b"b" * PAGE], padded=True)
    file.commit_at(LARGE_BYTES + 10 + PAGE, [b"c" * LARGE_BYTES], padded=True)
    assert file.read_at(LARGE_BYTES, 2 * PAGE) == b"a" * 10 + b"b" * PAGE + b"c" * (PAGE - 10)


def test_the_mark_follows_the_sync(file: RealFile, tmp_path: Path) -> None:
    mark = RealDisk().create(f"{tmp_path}/mark")
    file.commit_at(0, [bytes(LARGE_BYTES)], (mark, b"here"), padded=True)
    assert mark.read_at(0, 9) == b"here"


def test_large_commits_stay_out_of_the_page_cache_and_small_ones_in_it(file: RealFile) -> None:
    able(file)
    file.commit_at(LARGE_BYTES, [bytes(8 * LARGE_BYTES)], padded=True)
    assert not cached(file, 9 * LARGE_BYTES)
    file.commit_at(9 * LARGE_BYTES, [bytes(PAGE)], padded=True)
    assert cached(file, 9 * LARGE_BYTES + PAGE, 9 * LARGE_BYTES)


def test_what_is_read_once_stays_out_of_the_page_cache(file: RealFile) -> None:
    able(file)
    data = Random(1).randbytes(20 * LARGE_BYTES + 77)
    file.commit_at(0, [data], padded=True)
    for at, size in ((0, len(data)), (5, LARGE_BYTES), (PAGE, 9 << 20), (len(data) - 100_000, LARGE_BYTES + 5)):
        assert file.read_once(at, size)[: len(data) - at] == data[at : at + size]
    assert file.read_once(file.size(), LARGE_BYTES) == b""
    assert not cached(file, len(data))
    file.read_at(0, len(data))
    assert all(is_cached(file._fd, at, PAGE) for at in range(0, len(data), PAGE))
    assert file.read_once(3, len(data)) == file.read_at(3, len(data))


def test_no_more_is_read_than_was_asked_for(file: RealFile) -> None:
    able(file)
    file.commit_at(0, [bytes(20 * LARGE_BYTES)], padded=True)
    file.read_once(0, 10 * LARGE_BYTES)
    before = direct_file.read_pace.moved_bytes
    assert len(file.read_once(5, LARGE_BYTES)) == LARGE_BYTES
    assert direct_file.read_pace.moved_bytes - before == LARGE_BYTES + PAGE


def refuse(number: int) -> Callable[..., None]:
    def refused(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    return refused


@pytest.mark.parametrize("what", ["open", "write"])
def test_a_disk_without_this_way_is_written_as_usual(
    file: RealFile, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if what == "open":
        monkeypatch.setattr(direct_file.os, "open", refuse(errno.EINVAL))
    else:
        monkeypatch.setattr(direct_file, "write_blocks_around", refuse(errno.EINVAL))
    file.write_at(0, [b"abc"])
    file.commit_at(3, [b"x" * LARGE_BYTES], padded=True)
    assert file.read_at(0, 1 << 20) == b"abc" + b"x" * LARGE_BYTES
    assert file.read_once(3, LARGE_BYTES) == b"x" * LARGE_BYTES


def test_a_full_disk_is_an_error(file: RealFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_file, "write_blocks_around", refuse(errno.ENOSPC))
    with pytest.raises(OSError, match="No space"):
        file.commit_at(0, [bytes(LARGE_BYTES)], padded=True)


def test_a_slow_disk_is_read_through_the_page_cache(file: RealFile) -> None:
    able(file)
    direct_file.read_pace.add(32 << 20, 10.0)
    assert file.read_once(0, LARGE_BYTES) == bytes(LARGE_BYTES)
    assert cached(file, PAGE)


def test_a_quick_disk_is_not(file: RealFile) -> None:
    able(file)
    direct_file.read_pace.add(32 << 20, 0.01)
    assert file.read_once(0, LARGE_BYTES) == bytes(LARGE_BYTES)
    assert not cached(file, LARGE_BYTES)


def test_a_scanned_disk_reads_large_pieces_once(tmp_path: Path) -> None:
    file = RealDisk().create(f"{tmp_path}/file")
    able(file)
    scanned = ScannedDisk().open(f"{tmp_path}/file")
    assert scanned.read_at(0, LARGE_BYTES) == bytes(LARGE_BYTES)
    assert not cached(file, LARGE_BYTES)
    assert scanned.read_at(0, 10) == bytes(10)
    assert cached(file, PAGE)


def test_a_log_of_large_and_small_commits_is_read_cut_and_opened_again(tmp_path: Path) -> None:
    log = ShardLog.open(RealDisk(), f"{tmp_path}/shard", small(segment_bytes=1 << 20), background=False)
    expected = []
    for number in range(40):
        count = 3 if number % 3 else 3000
        expected += [payload for _, payload in numbered(count, len(expected))]
        append(log, numbered(count, len(expected) - count))
        log.commit_step()
    assert [row[2] for row in rows(ShardLog.open(RealDisk(), f"{tmp_path}/shard", writable=False))] == expected
    log.close()
    again = ShardLog.open(RealDisk(), f"{tmp_path}/shard", small(segment_bytes=1 << 20), background=False)
    append(again, numbered(3000, len(expected)))
    again.commit_step()
    while again.seal_step():
        pass
    assert [row[2] for row in rows(again)][: len(expected)] == expected
    assert again.damage == []
    again.close()
