"""The write kernel, on both twins: whole writes, the sync before the mark, errors by number."""

import errno
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.twins import TWINS

from everlog.commitlog import raw_write

Write = Callable[..., None]


@pytest.fixture(params=TWINS, ids=repr)
def write(request: pytest.FixtureRequest) -> Write:
    return request.param.write_blocks  # type: ignore[no-any-return]


@pytest.fixture
def fd(tmp_path: Path) -> Iterator[int]:
    opened = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    yield opened
    os.close(opened)


def test_blocks_are_written_one_behind_the_other(write: Write, fd: int) -> None:
    write(fd, 3, [b"ab", b"", bytearray(b"cde"), b"f"], True)
    assert os.pread(fd, 20, 0) == b"\0\0\0abcdef"


def test_more_blocks_than_one_call_takes(write: Write, fd: int) -> None:
    blocks = [b"%d," % n for n in range(3500)]
    write(fd, 0, blocks, False)
    assert os.pread(fd, 1 << 20, 0) == b"".join(blocks)


def test_no_blocks_is_nothing_to_do(write: Write, fd: int) -> None:
    write(fd, 0, [], True)
    assert os.pread(fd, 1, 0) == b""


def test_the_mark_is_written_to_the_beginning_of_its_file(write: Write, fd: int, tmp_path: Path) -> None:
    mark = os.open(tmp_path / "mark", os.O_RDWR | os.O_CREAT)
    write(fd, 0, [b"x"], True, mark, b"first")
    write(fd, 1, [b"y"], False, mark, b"2nd")
    assert (os.pread(fd, 9, 0), os.pread(mark, 9, 0)) == (b"xy", b"2ndst")
    os.close(mark)


def test_errors_carry_their_number_and_nothing_is_marked(write: Write, fd: int, tmp_path: Path) -> None:
    reading = os.open(tmp_path / "file", os.O_RDONLY)
    with pytest.raises(OSError) as refused:
        write(reading, 0, [b"x"], True, fd, b"mark")
    assert refused.value.errno == errno.EBADF
    assert os.pread(fd, 9, 0) == b""
    os.close(reading)
    with open("/dev/full", "wb") as full, pytest.raises(OSError) as no_space:
        write(full.fileno(), 0, [b"x"], False)
    assert no_space.value.errno == errno.ENOSPC


def test_a_block_that_is_no_bytes_is_refused(write: Write, fd: int) -> None:
    with pytest.raises(TypeError):
        write(fd, 0, [b"x", 7], False)


def test_a_short_write_goes_on_where_it_stopped(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwritev

    def short(descriptor: int, blocks: list[bytes], position: int) -> int:
        return real(descriptor, [b"".join(blocks)[:3]], position)

    monkeypatch.setattr(raw_write.os, "pwritev", short)
    assert raw_write.write_all(fd, 0, [b"ab", b"cdefgh", b"i"], False, -1, b"") == 0
    monkeypatch.undo()
    assert os.pread(fd, 20, 0) == b"abcdefghi"
    assert "everlog.commitlog.sync_write" in sys.modules
