"""The commit target of an owned shard: doubt, trouble, a tail that is full."""

import threading
from collections.abc import Sequence

import pytest
from tests.messages import segment_batches

from everlog.base import Fenced, Records, StorageError, Unavailable
from everlog.cluster.database import standbys_demanded
from everlog.cluster.ports import TABLES, Outcome, ShardRows, Takeover
from everlog.cluster.shard_target import ShardTarget
from everlog.cluster.tail_commits import TailCommits


class FakeTables:
    """Tables that do what they are told."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int, list[int]]] = []
        self.failures: list[Exception] = []
        self.outcomes: list[Outcome] = []

    def take_over(self, shard: int, epoch: int, probe: int) -> Takeover:
        return Takeover(0, {}, {})

    def insert(self, parts: Sequence[ShardRows]) -> list[Outcome]:
        return self._note("insert", parts)

    def settle(self, parts: Sequence[ShardRows]) -> list[Outcome]:
        return self._note("settle", parts)

    def _note(self, what: str, parts: Sequence[ShardRows]) -> list[Outcome]:
        for part in parts:
            self.calls.append((what, part.table, [row.base for row in part.rows]))
        if self.failures:
            raise self.failures.pop(0)
        return [self.outcomes.pop(0) if self.outcomes else Outcome.COMMITTED for _ in parts]

    def close_origin(self, shard: int, origin: int, final: int, epoch: int) -> None: ...

    def interrupt(self) -> None: ...

    def close(self) -> None: ...


def opened(tables: FakeTables, **sizes: int) -> ShardTarget:
    commits = TailCommits(tables, pause=lambda attempt: 0.0)
    target = ShardTarget(commits, 0, 1, 7, **{"tail_bytes": 1 << 20, **sizes})
    target.take_over()
    return target


def group(count: int) -> list[tuple[Records, int]]:
    return [(records, 0) for records in segment_batches([[(b"t", 2, b"", b"x" * 100)]] * count)]


def test_a_group_is_one_transaction_within_limits() -> None:
    tables = FakeTables()
    opened(tables).commit(group(3))
    opened(tables, transaction_bytes=1).commit(group(2))
    assert [call[2] for call in tables.calls] == [[0, 1, 2], [0], [1]]


def test_doubt_is_settled_with_the_same_rows_and_told() -> None:
    tables = FakeTables()
    target = opened(tables)
    told: list[StorageError | None] = []
    target.troubled = told.append
    tables.failures = [Unavailable("lost"), StorageError("odd")]
    target.commit(group(2))
    assert [call[0] for call in tables.calls] == ["insert", "settle", "settle"]
    assert [error is None for error in told] == [False, False, True]
    assert target.end == 2
    target.commit(group(2))  # again, as after a local disk that failed
    assert len(tables.calls) == 3


def test_a_fence_is_the_end() -> None:
    tables = FakeTables()
    target = opened(tables)
    tables.failures = [Unavailable("lost")]
    tables.outcomes = [Outcome.FENCED]
    with pytest.raises(Fenced):
        target.commit(group(1))
    assert target.end == 0


def test_a_shard_that_is_taken_over_just_now_is_tried_again() -> None:
    tables = FakeTables()
    target = opened(tables)
    tables.outcomes = [Outcome.BUSY, Outcome.COMMITTED]
    target.commit(group(1))
    assert [call[0] for call in tables.calls] == ["insert", "insert"]
    assert (target.end, target.doubts) == (1, 0)


def test_tables_are_used_in_turn_and_a_full_tail_makes_publishers_wait() -> None:
    tables = FakeTables()
    target = opened(tables, tail_bytes=TABLES, transaction_bytes=1)
    told: list[StorageError | None] = []
    is_told = threading.Event()

    def troubled(error: StorageError | None) -> None:
        told.append(error)
        is_told.set()

    target.troubled = troubled
    target.commit(group(TABLES))
    assert [call[1] for call in tables.calls] == list(range(TABLES))
    assert target.full_tables() == [(table, table + 1) for table in range(TABLES - 1)]
    waiting = threading.Thread(target=target.commit, args=(group(TABLES + 1),))
    waiting.start()
    assert is_told.wait(10)
    assert "not in the bucket" in str(told[0])
    assert len(tables.calls) == TABLES
    target.emptied(0)
    waiting.join(10)
    assert told[1:] == [None]
    assert tables.calls[-1][1] == 0


def test_a_commit_that_waits_ends_when_the_shard_is_closed() -> None:
    tables = FakeTables()
    target = opened(tables)
    target.troubled = lambda error: target.stop()
    tables.failures = [Unavailable("lost")]
    with pytest.raises(Unavailable, match="closed before"):
        target.commit(group(1))


@pytest.mark.parametrize(
    ("names", "count"),
    [("", 0), ("*", 1), ("a, b", 1), ("FIRST 2 (a, b, c)", 2), ("any 3 (a,b,c,d)", 3), ("2 (a, b)", 2), ('"ANY"', 1)],
)
def test_how_many_standbys_a_commit_waits_for(names: str, count: int) -> None:
    assert standbys_demanded(names) == count
