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
