"""Shards that commit in common transactions, by rounds: one that can't go on holds up no other."""

from collections.abc import Sequence
from random import Random

from tests.messages import to_columns
from tests.simulated_disk import SimulatedDisk
from tests.unit.cluster.test_shard_target import FakeTables

from everlog.base import StorageError, TopicTable, Unavailable
from everlog.cluster.commit_rounds import CommitRounds
from everlog.cluster.ports import TABLES, Outcome, ShardRows
from everlog.cluster.shard_target import ShardTarget
from everlog.cluster.tail_commits import TailCommits
from everlog.commitlog import LogSettings, Origin, ShardLog

SETTINGS = LogSettings(durability="memory", segment_bytes=700, batch_bytes=200, merge_below=0)


class Tables(FakeTables):
    """Tables that note which shards a transaction has."""

    def __init__(self) -> None:
        super().__init__()
        self.shards: list[list[int]] = []

    def insert(self, parts: Sequence[ShardRows]) -> list[Outcome]:
        self.shards.append([part.shard for part in parts])
        return super().insert(parts)

    def settle(self, parts: Sequence[ShardRows]) -> list[Outcome]:
        self.shards.append([part.shard for part in parts])
        return super().settle(parts)


class Shards:
    """Owned logs in memory, and the rounds that commit them."""

    def __init__(self, count: int, tail_bytes: int = 1 << 20) -> None:
        self.tables = Tables()
        commits = TailCommits(self.tables, lambda attempt: 0.0)
        self.rounds = CommitRounds(commits)
        self.targets = [ShardTarget(commits, shard, 1, 7, tail_bytes=tail_bytes) for shard in range(count)]
        self.logs = [self._open(target) for target in self.targets]

    def _open(self, target: ShardTarget) -> ShardLog:
        target.take_over()
        origin = Origin(1, target.shard, 1)
        log = ShardLog.open(SimulatedDisk(Random(1)), "shard", SETTINGS, background=False, origin=origin, is_copy=True)
        log.follow(Unavailable("nobody owns it here"))
        target.troubled = log.note_trouble
        log.own(1, target)
        self.rounds.add(log, lambda: target)
        return log

    def append(self, *shards: int, count: int = 1) -> None:
        """Append messages to shards and ask that they be committed."""
        for shard in shards:
            table = TopicTable()
            self.logs[shard].append(to_columns([(b"t", 2, b"", b"x" * 100)] * count, table), 0, count, 1, table)
            self.logs[shard]._committer.ask(self.logs[shard].end)

    def committed(self) -> list[int]:
        """How far each log is."""
        return [log.committed for log in self.logs]


def test_what_several_shards_have_goes_in_one_transaction() -> None:
    shards = Shards(3)
    shards.append(0, 2)
    assert not shards.rounds.step()  # there is nothing more to do
    assert shards.tables.shards == [[0, 2]]
    assert shards.committed() == [1, 0, 1]


def test_a_shard_that_is_being_taken_over_is_tried_again_with_the_next_round() -> None:
    shards = Shards(2)
    shards.tables.outcomes = [Outcome.BUSY, Outcome.COMMITTED]
    shards.append(0, 1)
    shards.rounds.step()
    assert shards.committed() == [0, 1]
    assert shards.rounds.rest_s() < 0.01
    shards.append(1)
    shards.rounds.step()
    assert shards.committed() == [1, 2]


def test_a_shard_that_is_fenced_leaves_the_others_to_it() -> None:
    shards = Shards(2)
    shards.tables.outcomes = [Outcome.FENCED, Outcome.COMMITTED]
    shards.append(0, 1)
    shards.rounds.step()
    assert shards.committed() == [0, 1]
    assert shards.logs[0].barred is not None
    assert shards.logs[0].end == 0
    assert shards.logs[1].barred is None


def test_doubt_is_of_all_shards_and_a_shard_that_is_let_go_of_leaves_it() -> None:
    shards = Shards(3)
    shards.tables.failures = [Unavailable("lost")]
    shards.tables.outcomes = [Outcome.BUSY, Outcome.COMMITTED, Outcome.COMMITTED]
    shards.targets[2].troubled = lambda trouble: shards.targets[2].stop()
    shards.append(0, 1, 2)
    shards.rounds.step()
    assert shards.logs[2].barred is None
    shards.append(0)  # waits for what is in doubt
    while shards.rounds.step():
        pass
    assert shards.tables.shards == [[0, 1, 2], [0, 1], [0], [0]]
    assert [call[0] for call in shards.tables.calls][3:] == ["settle", "settle", "settle", "insert"]
    assert [target.doubts for target in shards.targets] == [1, 1, 1]
    assert shards.committed() == [2, 1, 0]
    assert shards.logs[2].barred is not None


def test_a_full_tail_holds_up_its_shard_only_and_leaves_its_complete_segments_written() -> None:
    shards = Shards(2, tail_bytes=TABLES)
    told: list[StorageError | None] = []
    shards.logs[0].on_trouble = lambda log, trouble: told.append(trouble)
    for _ in range(TABLES + 3):
        shards.append(0)
        while shards.rounds.step():
            pass
    shards.append(1)
    assert shards.rounds.step()
    assert shards.committed() == [TABLES, 1]
    for _ in range(5):
        assert not shards.rounds.step()  # it waits, and tells only once
    assert len(told) == 1
    assert shards.rounds.rest_s() > 0.1
    written = shards.logs[0].segments()
    assert len(written) > 1  # so that there is something to store, after which there is room again
    shards.targets[0].emptied(0)
    assert shards.rounds.step()  # what was asked for while it waited is still to be done
    assert shards.committed()[0] == TABLES + 1
    shards.targets[0].stop()
    shards.rounds.step()
    assert shards.logs[0].barred is not None
