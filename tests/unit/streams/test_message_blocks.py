"""Messages in blocks: a file that has them tells the same as one that has a row for each."""

import sqlite3
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.twins import TWINS, Twin

from everlog.base import StorageError
from everlog.streams.effects import DropAll, DropMessages, PutMessage, Record
from everlog.streams.fresh import appended
from everlog.streams.stored_messages import (
    MOST_SEQ,
    count_messages,
    find_row,
    first_seq,
    measure_messages,
    open_old_blocks,
    read_messages,
    sizes_of_messages,
    take_back_blocks,
)
from everlog.streams.stream_file import StreamFile
from everlog.streams.values import Config, Kind

VALUES = [b"", None, b"\0", b"a value", bytes(300), bytes(5000)]


@pytest.mark.parametrize("twin", TWINS, ids=repr)
def test_a_block_gives_its_messages_back(twin: Twin) -> None:
    records: list[Any] = [
        (10 + at, twin.appended(10 + at, 1000 + 7 * at, 1, at, at + 5, at + 1, 0, value, None, "id" if at else None))
        for at, value in enumerate(VALUES)
    ]
    ids: list[Any] = []
    run = twin.block_run(records, 0, 5, ids)
    assert (len(run), len(ids)) == (5, 4)  # the last value is too large
    assert twin.block_run(records, 0, 6, []) == []  # the first seq is not the next
    first, last, position, time_us, size, block = twin.pack_block(run, 0)
    assert (first, last, position, time_us, size, len(block)) == (5, 9, 10, 1000, 308, 308 + 5 * 16)
    found = twin.block_messages((first, last, position, time_us, bytes(block)), 0, MOST_SEQ, 100)
    for at, row in enumerate(found):
        value, length = VALUES[at], None if VALUES[at] is None else len(VALUES[at] or b"")
        kept = None if (length or 0) > 100 else value
        assert row == (5 + at, 1000 + 7 * at, kept, None, None, None, 10 + at, length)
    inside = twin.block_messages((first, last, position, time_us, bytes(block)), 6, 7, 1 << 20)
    assert [row[0] for row in inside] == [6, 7]
    for damaged in (bytes(block[:-1]), bytes(block[:40]), b""):
        with pytest.raises(twin.DamagedBlock):
            twin.block_messages((first, last, position, time_us, damaged), 0, MOST_SEQ, 1 << 20)


@pytest.mark.parametrize("twin", TWINS, ids=repr)
def test_a_run_is_cut_where_a_block_is_full(twin: Twin) -> None:
    run = [twin.appended(k, k, 1, k, k, k, 0, bytes(4096), None, None) for k in range(20)]
    assert [twin.pack_block(run, k)[:2] for k in (0, 8, 16)] == [(0, 7), (8, 15), (16, 19)]
    run = [twin.appended(k, k, 1, k, k, k, 0, b"", None, None) for k in range(300)]
    assert twin.pack_block(run, 0)[:2] == (0, 255)
    far = [twin.appended(k << 32, 1, 1, k, k, k, 0, b"", None, None) for k in range(3)]
    assert twin.pack_block(far, 0)[:2] == (0, 0)


class Both:
    """Two files that are given the same records: one keeps blocks, one keeps rows."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.position = self.last_seq = 0
        self.there: dict[int, bytes | None] = {}
        self.files = [self._open("blocks"), self._open("rows")]

    def _open(self, name: str) -> StreamFile:
        return StreamFile(f"{self.folder}/{name}/{name}.db", "s", 0, Kind.STREAM, create=True)

    def apply(self, records: list[Any], config: Config = Config()) -> None:  # noqa: B008
        for file, least in zip(self.files, (3, 1 << 30), strict=True):
            with mock.patch("everlog.streams.stream_file.LEAST_RUN", least):
                file.apply(records, config, -1)

    def record(self, effect: Any) -> tuple[int, Record]:
        self.position += 1
        size = sum(len(value or b"") for value in self.there.values())
        return self.position, Record(
            1, self.position - 1, 1000 * self.position, self.last_seq, len(self.there), size, [effect]
        )

    def append(self, values: list[bytes | None], as_struct: bool) -> list[Any]:
        records: list[Any] = []
        for value in values:
            self.last_seq += 1
            self.there[self.last_seq] = value
            position, record = self.record(PutMessage(self.last_seq, value))
            if as_struct:
                records.append((position, record))
            else:
                facts = (position, record.time_us, 1, record.previous, self.last_seq, record.messages, record.bytes)
                records.append((position, appended(*facts, value, None, None)))
        return records

    def put(self, seq: int, value: bytes, headers: dict[str, str] | None) -> list[Any]:
        self.last_seq = max(self.last_seq, seq)
        self.there[seq] = value
        return [self.record(PutMessage(seq, value, headers))]

    def drop(self, first: int, last: int) -> list[Any]:
        for seq in [seq for seq in self.there if first <= seq <= last]:
            del self.there[seq]
        return [self.record(DropMessages([(first, last)]))]

    def drop_all(self) -> list[Any]:
        self.there.clear()
        return [self.record(DropAll())]

    def reopen(self) -> None:
        for file in self.files:
            file.close()
        self.files = [self._open("blocks"), self._open("rows")]

    def told(self, file: StreamFile, first: int, last: int) -> Any:
        chunks, at = [], first
        while True:
            found, more = read_messages(file, at, last, 7, 1 << 20, 900)
            chunks += found
            if not found or (not more and len(found) < 7):
                break
            at = found[-1].seq + 1
        rest = read_messages(file, first, last, MOST_SEQ, 10, 1 << 30)
        seqs = [find_row(file, seq, 1 << 20) for seq in (first, last, first + 1)]
        sums = (measure_messages(file, first, last), count_messages(file, first), first_seq(file))
        return chunks, rest, seqs, sums, sizes_of_messages(file, first, 9)

    def check(self, first: int, last: int) -> None:
        mine, other = (self.told(file, first, last) for file in self.files)
        assert mine == other
        assert [(one.seq, one.value) for one in mine[0]] == [
            (seq, value) for seq, value in sorted(self.there.items()) if first <= seq <= last
        ]

    def close(self) -> None:
        for file in self.files:
            file.close()


SEQS = st.integers(1, 40)
SIZES = st.sampled_from([None, 0, 1, 200, 4096, 4097])
STEPS = st.one_of(
    st.tuples(st.just("append"), st.lists(SIZES, min_size=2, max_size=30), st.booleans()),
    st.tuples(st.just("put"), SEQS, st.integers(0, 1)),
    st.tuples(st.just("drop"), SEQS, st.integers(0, 40)),
    st.tuples(st.just("drop_all"), SEQS, st.just(0)),
    st.tuples(st.just("reopen"), SEQS, st.just(0)),
    st.tuples(st.just("apply"), SEQS, st.integers(0, 40)),
    st.tuples(st.just("limits"), SEQS, st.integers(0, 40)),
)


@settings(max_examples=60)
@given(st.lists(STEPS, min_size=3, max_size=25))
def test_blocks_tell_what_rows_tell(steps: list[Any]) -> None:
    with TemporaryDirectory() as folder:
        both = Both(folder)
        waiting: list[Any] = []
        for name, one, other in steps:
            if name == "append":
                waiting += both.append([None if size is None else bytes(size) for size in one], other)
            elif name == "put":
                waiting += both.put(one, b"changed", {"h": "1"} if other else None)
            elif name == "drop":
                waiting += both.drop(one, one + other)
            elif name == "drop_all":
                waiting += both.drop_all()
            else:
                both.apply(waiting, Config(max_messages=1000) if name == "limits" else Config())
                waiting = []
                if name == "reopen":
                    both.reopen()
                both.check(one, one + other)
        both.apply(waiting)
        both.check(0, MOST_SEQ)
        copies = []
        for k, file in enumerate(both.files):
            file.copy_to(f"{folder}/copy-{k}")
            with closing(sqlite3.connect(f"{folder}/copy-{k}")) as copy:
                assert copy.execute("PRAGMA user_version").fetchone() == (1,)
                assert copy.execute("PRAGMA integrity_check").fetchone() == ("ok",)
                tables = copy.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name").fetchall()
                copies.append((tables, copy.execute("SELECT * FROM messages ORDER BY seq").fetchall()))
        assert copies[0] == copies[1]
        both.close()


@pytest.mark.parametrize("headers", [None, {"h": "1"}])
def test_a_message_of_a_block_that_is_written_again_is_there_once(tmp_path: Path, headers: Any) -> None:
    both = Both(str(tmp_path))
    both.apply(both.append([b"v"] * 20, False))
    both.apply(both.put(7, b"changed", headers))
    both.check(0, MOST_SEQ)
    both.close()


@pytest.mark.parametrize(("first", "last"), [(5, 8), (1, 8), (15, 30), (5, 45), (1, 20), (21, 40), (1, 40), (50, 60)])
def test_a_part_of_a_block_may_go(tmp_path: Path, first: int, last: int) -> None:
    both = Both(str(tmp_path))
    for _ in range(2):
        both.apply(both.append([b"v"] * 20, False))
    for a, b in ((first, last), (3, 3), (20, 21), (1, 60)):
        assert measure_messages(both.files[0], a, b) == measure_messages(both.files[1], a, b)
    both.apply(both.drop(first, last))
    both.check(0, MOST_SEQ)
    both.check(first + 1, last + 3)
    both.close()


def test_most_messages_share_a_row_and_the_file_says_so(tmp_path: Path) -> None:
    both = Both(str(tmp_path))
    both.apply(both.append([b"v"] * 1000, False))
    (rows,), (messages,) = (both.files[0].rows(f"SELECT count(*) FROM {name}")[0] for name in ("blocks", "messages"))
    versions = [file.rows("PRAGMA user_version")[0][0] for file in both.files]
    assert (rows, messages, versions) == (4, 0, [2, 1])
    both.close()


def test_blocks_that_grow_old_become_rows(tmp_path: Path) -> None:
    both = Both(str(tmp_path))
    both.apply(both.append([b"v"] * 1000, False))
    file = both.files[0]
    assert open_old_blocks(file, 500, 10) == 1000  # nothing is so old
    assert open_old_blocks(file, 300_000, 10) == 257_000  # about ten: a block of them
    assert file.rows("SELECT count(*) FROM messages")[0][0] == 256
    assert open_old_blocks(file, 1 << 60, 10_000) is None
    both.check(0, MOST_SEQ)
    both.close()


def test_blocks_are_taken_back_to_a_position(tmp_path: Path) -> None:
    both = Both(str(tmp_path))
    both.apply(both.append([b"v"] * 600, False))
    file = both.files[0]
    take_back_blocks(file, 301)
    file.rows("DELETE FROM messages WHERE position >= 301")
    assert (count_messages(file), first_seq(file)) == (300, 1)
    assert find_row(file, 301, 1 << 20) is None
    both.close()


def test_a_damaged_block_is_told_with_its_file(tmp_path: Path) -> None:
    both = Both(str(tmp_path))
    both.apply(both.append([b"value"] * 100, False))
    file = both.files[0]
    file.rows("UPDATE blocks SET messages = substr(messages, 1, 50)")
    with pytest.raises(StorageError, match=r"blocks.db is damaged: the block of message 1 is not whole"):
        find_row(file, 7, 1 << 20)
    both.close()


def test_a_change_that_fails_leaves_rows_and_blocks_as_they_were(tmp_path: Path) -> None:
    both = Both(str(tmp_path))
    both.apply(both.append([b"v"] * 10, False))
    file = both.files[0]
    records = both.append([b"v"] * 10, False)
    full = mock.patch("everlog.streams.stream_file.put_blocks", side_effect=sqlite3.OperationalError("full"))
    with full, mock.patch("everlog.streams.stream_file.LEAST_RUN", 3), pytest.raises(StorageError):
        file.apply(records, Config(), -1)
    both.apply(records)
    both.check(0, MOST_SEQ)
    both.close()
