import errno
import fcntl
import mmap
import os
from pathlib import Path

import pytest

from everlog.base import StorageError, Unavailable
from everlog.tiering import DirectoryBucket


def test_a_link_that_was_made_though_the_answer_says_no_counts_as_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def linked_twice(source: str, target: str, **places: int) -> None:
        link(source, target, **places)
        link(source, target, **places)  # the request is sent again, since the first answer was lost

    monkeypatch.setattr(os, "link", linked_twice)
    assert DirectoryBucket(tmp_path).create("a/1", b"mine") is None
    monkeypatch.undo()
    assert DirectoryBucket(tmp_path).create("a/1", b"theirs") == b"mine"
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["1"]


def test_a_name_that_was_missing_is_looked_at_again_after_a_change_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client of NFS that remembers that a name was not there, until it changes that folder itself."""
    bucket = DirectoryBucket(tmp_path)
    bucket.put("a/1", b"one")
    is_stale = True
    really = os.open

    def stale_open(path: str, flags: int, *mode: int, dir_fd: int | None = None) -> int:
        nonlocal is_stale
        if flags & os.O_CREAT:
            is_stale = False
        if is_stale and path == "a/1":
            raise FileNotFoundError(path)
        return really(path, flags, *mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", stale_open)
    assert bucket.get("a/1") == b"one"
    assert not is_stale


def test_no_half_object_is_left_where_a_write_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="has space"):
        DirectoryBucket(tmp_path).create("a/1", b"mine")
    assert list((tmp_path / "a").iterdir()) == []


def test_trouble_that_may_pass_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stale(fd: int) -> None:
        raise OSError(116, "Stale file handle")

    monkeypatch.setattr(os, "fsync", stale)
    with pytest.raises(Unavailable, match="mounted"):
        DirectoryBucket(tmp_path).put("a/1", b"mine")


@pytest.mark.parametrize("name", ["", "../a", "a//b", "a/../../b", "/etc/x"])
def test_a_name_stays_inside_the_directory(tmp_path: Path, name: str) -> None:
    with pytest.raises(StorageError):
        DirectoryBucket(tmp_path / "bucket").put(name, b"x")


def test_a_directory_that_is_gone_is_not_made_again(tmp_path: Path) -> None:
    bucket = DirectoryBucket(tmp_path / "shared")
    bucket.put("a/b", b"1")
    (tmp_path / "shared").rename(tmp_path / "away")
    for act in (lambda: bucket.put("a/b", b"2"), lambda: bucket.create("c", b"3"), lambda: bucket.get("a/b")):
        with pytest.raises(Unavailable, match="mounted"):
            act()
    assert not (tmp_path / "shared").exists()
    (tmp_path / "shared").mkdir()  # what is below a mount that is gone
    with pytest.raises(Unavailable):
        bucket.create("c", b"3")
    (tmp_path / "shared").rmdir()
    (tmp_path / "away").rename(tmp_path / "shared")
    assert (bucket.get("a/b"), bucket.create("c", b"3")) == (b"1", None)


@pytest.mark.parametrize("call", ["mkdir", "open", "link", "stat", "replace", "unlink"])
def test_a_directory_that_goes_amidst_a_call_leads_nowhere_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Whatever a call does after it has looked at the directory, it does there, wherever that is by now."""
    shared, away = tmp_path / "shared", tmp_path / "away"
    bucket = DirectoryBucket(shared)
    bucket.put("a/b", b"1")
    really, rename = getattr(os, call), os.rename
    is_away = False

    def go_first(path: object, *arguments: object, **options: object) -> object:
        nonlocal is_away
        if not is_away and str(path) != str(shared):
            rename(shared, away)
            is_away = True
        return really(path, *arguments, **options)

    acts = [
        lambda: bucket.create("x/y/z", b"2"),
        lambda: bucket.put("x/y/w", b"3"),
        lambda: bucket.get("a/b"),
        lambda: len(list(bucket.find("a"))),
        lambda: bucket.delete("a/b"),
    ]
    told = []
    for act in acts:
        with monkeypatch.context() as patched:
            patched.setattr(os, call, go_first)
            told.append(act())
        assert shared.exists() != is_away, "nothing is made in its place"
        if is_away:
            away.rename(shared)
            is_away = False
    assert told == [None, None, b"1", 1, None]
    assert sorted(found.name for found in bucket.find("")) == ["x/y/w", "x/y/z"]


def test_what_was_never_there_is_not_made_by_reading(tmp_path: Path) -> None:
    bucket = DirectoryBucket(tmp_path / "shared")
    bucket.delete("a")
    assert (bucket.get("a"), list(bucket.find("")), (tmp_path / "shared").exists()) == (None, [], False)


@pytest.mark.parametrize("size", [0, 1, (256 << 10) - 1, 256 << 10, (1 << 20) + 17, (9 << 20) - 1])
@pytest.mark.parametrize("first", [0, 1, mmap.PAGESIZE])
def test_an_object_of_any_size_is_what_it_was_made_of(tmp_path: Path, size: int, first: int) -> None:
    """Also where its bytes begin in the midst of a page, which can't be written around the page cache everywhere."""
    with mmap.mmap(-1, first + size + 1) as memory:
        memory[first : first + size] = data = os.urandom(size)
        with memoryview(memory) as whole, whole[first : first + size] as view:
            DirectoryBucket(tmp_path).put("a/1", view)
    assert DirectoryBucket(tmp_path).get("a/1") == data
    (tmp_path / "file").write_bytes(data)
    DirectoryBucket(tmp_path).put_file("a/2", str(tmp_path / "file"))
    assert DirectoryBucket(tmp_path).get("a/2") == data


@pytest.mark.parametrize("after", [0, 1 << 20])
def test_a_disk_that_can_not_be_written_around_the_page_cache_is_written_through_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    data, write = os.urandom((2 << 20) + 5), os.write
    is_around, done, refused = False, 0, 0

    def noted(fd: int, command: int, flags: int = 0) -> int:
        nonlocal is_around
        if command == fcntl.F_SETFL:
            is_around = bool(flags & os.O_DIRECT)
        return os.O_WRONLY

    def partly(fd: int, view: memoryview) -> int:
        nonlocal done, refused
        if is_around and done >= after:
            refused += 1
            raise OSError(errno.EINVAL, "not that way")
        done += 1 << 20
        return write(fd, view[: 1 << 20])

    monkeypatch.setattr(fcntl, "fcntl", noted)
    monkeypatch.setattr(os, "write", partly)
    DirectoryBucket(tmp_path).put("a/1", data)
    assert (is_around, refused) == (False, 1)
    assert DirectoryBucket(tmp_path).get("a/1") == data


def test_a_full_disk_is_told_of_around_the_page_cache_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, view: memoryview) -> int:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(StorageError, match="full"):
        DirectoryBucket(tmp_path).put("a/1", bytes(1 << 20))
    monkeypatch.undo()
    assert list((tmp_path / "a").iterdir()) == []
