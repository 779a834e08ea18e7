"""What the broker asks of a log, whatever that keeps messages in: one body over every implementation."""

import errno
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.cluster_shards import owned_cluster
from tests.listening import eventually
from tests.memory_log import MemoryLog
from tests.messages import Message, to_columns
from tests.simulated_disk import SimulatedDisk
from tests.stores import PLENTY, Row, filters, numbered, rows_of

from everlog.base import NOT_KEPT, StorageError, TopicTable
from everlog.broker.delivery.ports import Log, Shard
from everlog.cluster import ClusterSettings
from everlog.commitlog import LogSettings
from everlog.store import LogStore

SETTINGS = LogSettings(segment_bytes=1500, batch_bytes=600, merge_below=0, tail_bytes=1000)


@dataclass
class Opened:
    """A log, who it told of commits and failures, and how what was asked of it is brought to an end."""

    log: Log
    settle: Callable[[], None] = lambda: None  # does the work of a log that has no threads
    fail: Callable[[], None] | None = None  # from now on the first shard can't be written
    trouble: Callable[[], None] | None = None  # nor now, until `heal`
    heal: Callable[[], None] = lambda: None
    close: Callable[[], None] = lambda: None
    write: Callable[[], None] = lambda: None  # waits until what is committed is written, if that is later
    commits: list[tuple[int, int]] = field(default_factory=list)  # shard, committed offset when it was told
    failures: list[tuple[int, StorageError]] = field(default_factory=list)
    troubles: list[tuple[int, StorageError | None]] = field(default_factory=list)
    _told: threading.Condition = field(default_factory=threading.Condition)

    def __post_init__(self) -> None:
        self.log.on_commit(self._committed)
        self.log.on_failure(self._failed)
        self.log.on_trouble(self._troubled)

    def _committed(self, shard: int) -> None:
        with self._told:
            self.commits.append((shard, self.log.shards[shard].committed))
            self._told.notify_all()

    def _failed(self, shard: int, error: StorageError) -> None:
        with self._told:
            self.failures.append((shard, error))
            self._told.notify_all()

    def _troubled(self, shard: int, error: StorageError | None) -> None:
        with self._told:
            self.troubles.append((shard, error))
            self._told.notify_all()

    def until(self, condition: Callable[[], Any]) -> None:
        """Wait, told of each commit and failure, until something is so."""
        self.settle()
        with self._told:
            assert self._told.wait_for(condition, 20)

    @property
    def ends(self) -> tuple[int, ...]:
        return tuple(shard.end for shard in self.log.shards)

    @property
    def committed(self) -> tuple[int, ...]:
        return tuple(shard.committed for shard in self.log.shards)

    @property
    def origin(self) -> tuple[int, ...]:
        return (0,) * len(self.log.shards)

    def append(self, messages: list[Message], now_us: int = 1_000) -> int:
        """Append messages, each to the shard of its topic; how many were taken."""
        table = TopicTable()
        columns = to_columns(messages, table)
        routes = bytearray(b"".join(bytes((self.log.shard_of(name),)) * 3 + b"\0" for name in table.all_names()))
        return sum(
            shard.append(columns, 0, len(messages), now_us, table, routes, number)
            for number, shard in enumerate(self.log.shards)
        )

    def commit(self) -> None:
        """Commit all that was appended, and wait for it."""
        ends = self.ends
        for shard in self.log.shards:
            if shard.end > shard.committed:
                shard.commit()
        self.until(lambda: self.committed == ends)

    def keep(self, messages: list[Message], each: int = 9, now_us: int = 1_000) -> None:
        """Append and commit messages a few at a time; time goes on by 10 us."""
        for start in range(0, len(messages), each):
            self.append(messages[start : start + each], now_us + 10 * (start // each))
            self.commit()

    def rows(self) -> list[Row]:
        """Everything that is committed."""
        return [row for number in range(len(self.log.shards)) for row in self.rows_of(number)]

    def rows_of(self, number: int, max_bytes: int = PLENTY) -> list[Row]:
        """Everything that is committed of a shard, read in steps of so many bytes."""
        shard, found = self.log.shards[number], []
        at = shard.start
        while batches := shard.read(at, max_bytes):
            for records in batches:
                assert records.base_offset <= at < records.end_offset
                assert records.verify()
                for offset, time_us, topic, flags, properties, payload in records.rows():
                    name = records.table.name(topic)
                    found.append((number, offset, time_us, name, flags, properties, payload))
                at = records.end_offset
        return found


def files(folder: Path, shards: int) -> Opened:
    store = LogStore.open(str(folder), SETTINGS, shards=shards)
    return Opened(store, close=store.close)


def simulated(folder: Path, shards: int) -> Opened:
    disk = SimulatedDisk(Random(1))
    store = LogStore.open("data", SETTINGS, shards=shards, disk=disk, background=False)

    def settle() -> None:
        for shard in store.shards:
            while shard.commit_step() or shard.seal_step():
                pass

    def fail() -> None:
        store.shards[0]._writing().gave_up(ValueError("no room"))

    def trouble() -> None:
        disk.fault = lambda kind, path: errno.EIO if kind == "write" and "shard-0" in path else None

    def heal() -> None:
        disk.fault = lambda kind, path: None

    return Opened(store, settle, fail, trouble, heal, store.close)


def memory(folder: Path, shards: int) -> Opened:
    log = MemoryLog(shards)
    return troubled(Opened(log, fail=lambda: log.fail(0, StorageError("no room"))), log)


def committed_late(folder: Path, shards: int) -> Opened:
    log = MemoryLog(shards, manual=True)
    return troubled(Opened(log, log.commit_now, lambda: log.fail(0, StorageError("no room"))), log)


def troubled(opened: Opened, log: MemoryLog) -> Opened:
    opened.trouble = lambda: log.trouble(0, StorageError("no room"))
    opened.heal = lambda: log.trouble(0, None)
    return opened


def cluster(folder: Path, shards: int) -> Opened:
    log = owned_cluster(str(folder), shards, ClusterSettings(tail_bytes=6_000, log=SETTINGS))

    def write() -> None:
        eventually(lambda: not any(shard.pending_bytes for shard in log.shards), "everything is written")

    return Opened(log, close=log.close, write=write)


IMPLEMENTATIONS = {
    "files, 1 shard": (files, 1),
    "files, 4 shards": (files, 4),
    "simulated disk, 1 shard": (simulated, 1),
    "simulated disk, 4 shards": (simulated, 4),
    "memory, 1 shard": (memory, 1),
    "memory, 4 shards": (memory, 4),
    "memory committed late, 4 shards": (committed_late, 4),
    "cluster, 2 shards": (cluster, 2),
}


@pytest.fixture(params=IMPLEMENTATIONS)
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opened]:
    make, shards = IMPLEMENTATIONS[request.param]
    made = make(tmp_path, shards)
    yield made
    made.close()


# Shards


def test_a_new_log_is_empty(opened: Opened) -> None:
    for shard in opened.log.shards:
        assert (shard.start, shard.end, shard.committed, shard.pending_bytes) == (0, 0, 0, 0)
        assert shard.read(0, PLENTY) == []


def test_it_says_about_how_many_bytes_follow_an_offset(opened: Opened) -> None:
    assert all(shard.bytes_from(0) == 0 for shard in opened.log.shards)
    opened.keep(numbered(200))
    for number, shard in enumerate(opened.log.shards):
        payloads = sum(len(row[-1]) for row in opened.rows_of(number))
        sizes = [shard.bytes_from(offset) for offset in range(shard.committed + 1)]
        assert sizes == sorted(sizes, reverse=True)
        assert sizes[-1] == 0
        assert payloads <= sizes[0] < 100_000


def test_a_topics_shard_is_one_of_them_and_stays_the_same(opened: Opened) -> None:
    names = [b"t/%d" % n * (1 + n % 7) for n in range(200)]
    found = [opened.log.shard_of(name) for name in names]
    assert set(found) == set(range(len(opened.log.shards)))
    opened.keep(numbered(20))
    assert [opened.log.shard_of(name) for name in names] == found


def test_what_is_appended_moves_the_end_and_waits(opened: Opened) -> None:
    assert opened.append(numbered(20)) == 20
    assert sum(opened.ends) == 20
    assert opened.committed == opened.origin
    payloads = [0] * len(opened.log.shards)
    for topic, _, _, payload in numbered(20):
        payloads[opened.log.shard_of(topic)] += len(payload)
    for shard, size in zip(opened.log.shards, payloads, strict=True):
        assert shard.pending_bytes >= size
        assert bool(shard.pending_bytes) == bool(size)
        assert shard.read(0, PLENTY) == []
    opened.commit()
    opened.write()
    assert [shard.pending_bytes for shard in opened.log.shards] == list(opened.origin)


def test_statistics_say_where_each_shard_is(opened: Opened) -> None:
    opened.append(numbered(10))
    opened.commit()
    opened.write()
    opened.append(numbered(5))
    shards = opened.log.shards
    found = opened.log.statistics()
    assert [(one.shard, one.start, one.committed, one.end) for one in found] == [
        (number, shard.start, shard.committed, shard.end) for number, shard in enumerate(shards)
    ]
    assert [one.pending_bytes for one in found] == [shard.pending_bytes for shard in shards]
    assert sum(one.records for one in found) == 10
    assert all((one.segment_bytes > 0 and one.segments > 0) for one in found if one.records)


def test_routes_say_which_messages_are_a_shards(opened: Opened) -> None:
    table = TopicTable()
    messages: list[Message] = [(b"a", 0, b"", b"0"), (b"a", 2, b"", b"1"), (b"b", 2, b"", b"2"), (b"b", 4, b"", b"3")]
    columns = to_columns(messages, table)
    last = len(opened.log.shards) - 1
    routes = bytearray((NOT_KEPT, last, last, NOT_KEPT, NOT_KEPT, NOT_KEPT, 0, NOT_KEPT))
    taken = [shard.append(columns, 0, 4, 5, table, routes, n) for n, shard in enumerate(opened.log.shards)]
    assert (sum(taken), taken[last] if last else 1) == (2, 1)
    opened.commit()
    assert [(row[0], row[6]) for row in opened.rows()] == sorted([(last, b"1"), (0, b"3")])


def test_without_routes_a_shard_takes_every_message_from_start_to_stop(opened: Opened) -> None:
    table = TopicTable()
    columns = to_columns(numbered(10), table)
    shard = opened.log.shards[0]
    assert (shard.append(columns, 3, 7, 5, table), shard.append(columns, 7, 7, 5, table)) == (4, 0)
    opened.commit()
    assert [row[6] for row in opened.rows()] == [b"payload %d" % n for n in range(3, 7)]


def test_what_is_committed_is_read_back_with_all_it_had(opened: Opened) -> None:
    opened.keep(numbered(100))
    rows = opened.rows()
    assert sorted(row[3:] for row in rows) == sorted(numbered(100))
    for number, shard in enumerate(opened.log.shards):
        mine = [row for row in rows if row[0] == number]
        assert [row[1] for row in mine] == list(range(shard.start, shard.committed))
        assert [row[2] for row in mine] == sorted(row[2] for row in mine)
        assert {opened.log.shard_of(row[3]) for row in mine} <= {number}


def test_readers_see_only_what_is_committed(opened: Opened) -> None:
    opened.keep(numbered(30))
    before = opened.rows()
    opened.append(numbered(30))
    assert opened.rows() == before
    for number, shard in enumerate(opened.log.shards):
        for offset in (shard.committed, shard.end, shard.end + 5):
            assert shard.read(offset, PLENTY) == []
        result = opened.log.reader(None).read_shard(number, 0, PLENTY, PLENTY)
        assert (result.positions, result.caught_up) == ((shard.committed,), True)
    opened.commit()
    assert set(before) < set(opened.rows())
    assert len(opened.rows()) == 60


@pytest.mark.parametrize("max_bytes", [0, 1, 300, PLENTY])
def test_a_read_takes_so_many_bytes_and_one_batch_at_least(opened: Opened, max_bytes: int) -> None:
    opened.keep(numbered(100))
    for number, shard in enumerate(opened.log.shards):
        assert opened.rows_of(number, max_bytes) == opened.rows_of(number)
        for at in range(shard.start, shard.committed):
            batches = shard.read(at, max_bytes)
            assert len(batches) == 1 or sum(records.size for records in batches) <= max_bytes
            assert batches[0].base_offset <= at < batches[0].end_offset


# Commits


def test_a_commit_in_this_thread_says_whether_it_is_done(opened: Opened) -> None:
    for k in range(20):
        opened.append(numbered(5))
        ends = opened.ends
        for shard in opened.log.shards:
            if shard.end > shard.committed and shard.commit_here():
                assert shard.committed == shard.end
        opened.until(lambda ends=ends: opened.committed == ends)  # type: ignore[misc]
        assert sum(ends) == 5 * (k + 1)


def test_every_commit_is_told_once_it_is_seen(opened: Opened) -> None:
    opened.append(numbered(20))
    assert opened.commits == []
    opened.commit()
    opened.until(lambda: {shard for shard, _ in opened.commits} == {n for n, end in enumerate(opened.ends) if end})
    assert {(shard, opened.ends[shard]) for shard, _ in opened.commits} <= set(opened.commits)


def test_a_commit_that_is_asked_for_in_another_thread_is_told_too(opened: Opened) -> None:
    told = threading.Event()
    opened.log.on_commit(lambda shard: told.set())
    opened.append(numbered(1))
    thread = threading.Thread(target=opened.commit)
    thread.start()
    thread.join(20)
    assert told.wait(20)
    assert len(opened.commits) == 1


# Readers


@pytest.mark.parametrize("texts", [("t/1/x",), ("t/+/x",), ("#",), ("t/0/#", "t/2/#", "t/2/x"), ("nope/#",)])
@pytest.mark.parametrize("max_records", [1, 4, PLENTY])
def test_a_reader_finds_what_matches_its_filters_once(opened: Opened, texts: tuple[str, ...], max_records: int) -> None:
    opened.keep(numbered(60))
    wanted = {"t/1/x": {1}, "nope/#": set(), "t/0/#": {0, 2}}.get(texts[0], set(range(5)))
    expected = [row for row in opened.rows() if int(row[3].split(b"/")[1]) in wanted]
    reader = opened.log.reader(filters(*texts))
    found: list[Row] = []
    for number, shard in enumerate(opened.log.shards):
        at, caught_up = 0, False
        while not caught_up:
            result = reader.read_shard(number, at, max_records, PLENTY)
            assert result.count <= max_records
            assert result.caught_up or result.positions[0] > at
            found += rows_of(result)
            (at,), caught_up = result.positions, result.caught_up
        assert at == shard.committed
    reader.release()
    assert found == expected
    assert sorted(rows_of(reader.read(opened.origin, PLENTY, PLENTY))) == expected


def test_a_reader_begins_anywhere_and_goes_on_when_more_comes(opened: Opened) -> None:
    opened.keep(numbered(40))
    for number, shard in enumerate(opened.log.shards):
        reader = opened.log.reader(None)
        for at in range(shard.committed + 1):
            result = reader.read_shard(number, at, PLENTY, PLENTY)
            assert rows_of(result) == opened.rows_of(number)[at:]
            assert (result.positions, result.lost) == ((shard.committed,), ())
    reader = opened.log.reader(filters("t/+/x"))
    before = reader.read(opened.origin, PLENTY, PLENTY).positions
    opened.keep([(b"t/9/x", 2, b"", b"more"), (b"other", 2, b"", b"")])
    assert [row[6] for row in rows_of(reader.read(before, PLENTY, PLENTY))] == [b"more"]


def test_a_small_step_is_passed_by_one_batch_at_most(opened: Opened) -> None:
    opened.keep(numbered(60))
    for number, shard in enumerate(opened.log.shards):
        if shard.committed:
            result = opened.log.reader(None).read_shard(number, 0, PLENTY, 1)
            assert len(result.batches) == 1
            assert result.positions[0] > 0


def test_a_time_finds_the_first_record_that_is_not_older(opened: Opened) -> None:
    opened.keep(numbered(60))
    rows = opened.rows()
    for time_us in (0, 999, 1_000, 1_001, 1_030, 1_034, 1_060, 1_061, 2_000):
        for number, position in enumerate(opened.log.positions_at(time_us)):
            assert position == sum(row[0] == number and row[2] < time_us for row in rows)
    opened.append(numbered(5), 5_000)
    assert opened.log.positions_at(5_000) == opened.committed, "what is not committed is not found"


# Failures


@pytest.fixture(params=[name for name in IMPLEMENTATIONS if not name.startswith(("files", "cluster"))])
def failing(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opened]:
    make, shards = IMPLEMENTATIONS[request.param]
    made = make(tmp_path, shards)
    yield made
    made.close()


def test_a_shard_in_trouble_says_so_takes_more_and_goes_on_by_itself(failing: Opened) -> None:
    first: Shard = failing.log.shards[0]
    table = TopicTable()
    columns = to_columns(numbered(3), table)
    assert first.append(columns, 0, 3, 1_000, table) == 3
    failing.commit()
    before = failing.rows()
    assert first.append(columns, 0, 3, 1_010, table) == 3
    assert failing.trouble is not None
    failing.trouble()
    first.commit()
    failing.until(lambda: failing.troubles)
    assert failing.troubles == [(0, first.trouble)]
    assert (first.committed, first.failure, failing.rows()) == (3, None, before)
    assert first.append(columns, 0, 3, 1_020, table) == 3
    assert not first.commit_here()
    first.commit()
    failing.settle()
    assert first.committed == 3
    failing.heal()
    first.commit()
    failing.until(lambda: first.committed == 9)
    assert (first.trouble, failing.troubles[-1], len(failing.troubles)) == (None, (0, None), 2)
    assert [row[1] for row in failing.rows_of(0)] == list(range(9))


def test_a_shard_that_fails_says_so_takes_nothing_more_and_can_be_read(failing: Opened) -> None:
    first: Shard = failing.log.shards[0]
    table = TopicTable()
    columns = to_columns(numbered(3), table)
    assert first.append(columns, 0, 3, 1_000, table) == 3
    failing.commit()
    before, told = failing.rows(), list(failing.commits)
    assert first.append(columns, 0, 3, 1_010, table) == 3
    assert failing.fail is not None
    failing.fail()
    first.commit()
    failing.until(lambda: failing.failures)
    ((number, error),) = failing.failures
    assert number == 0
    assert isinstance(error, StorageError)
    assert (first.committed, failing.commits, failing.rows()) == (3, told, before)
    with pytest.raises(StorageError):
        first.append(columns, 0, 3, 1_020, table)
    assert not first.commit_here()
    for shard in failing.log.shards[1:]:
        assert shard.append(columns, 0, 1, 1_030, table) == 1
