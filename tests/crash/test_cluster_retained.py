"""Retained messages of a shard whose owner died before it had stored them: the next owner does."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.postgres_server import new_schema, shared_server

from everlog.cluster import ClusterDatabase, ClusterOwnership, PostgresTables, init_cluster, message_shard
from everlog.sessions import Changes, RetainedRow
from everlog.tiering import DirectoryBucket


class TwoBrokers:
    """An owner of the only shard, and a broker that follows it."""

    def __init__(self, folder: Path) -> None:
        database = ClusterDatabase(shared_server().url, new_schema())
        init_cluster(database, DirectoryBucket(str(folder / "bucket")), 1)
        self.ownership = ClusterOwnership(database)
        self.numbers = [self.ownership.join(name, "") for name in ("owner", "follower")]
        self.owner, self.follower = [PostgresTables(database.connect(), number, 1) for number in self.numbers]
        self.ownership.claim([message_shard(0)], self.numbers[0])

    def owner_dies(self) -> None:
        self.ownership.leave(self.numbers[0])
        self.ownership.claim([message_shard(0)], self.numbers[1])

    def stored(self) -> tuple[tuple[int, ...], dict[str, bytes | None]]:
        snapshot = self.follower.load()
        return snapshot.retained_at, {row.topic: row.message for row in snapshot.retained}

    def close(self) -> None:
        for one in (self.owner, self.follower, self.ownership):
            one.close()


@pytest.fixture
def two(tmp_path: Path) -> Iterator[TwoBrokers]:
    made = TwoBrokers(tmp_path)
    yield made
    made.close()


def batch(*rows: tuple[str, bytes | None], at: int, routed: int) -> Changes:
    return Changes(
        retained=tuple(RetainedRow(topic, message) for topic, message in rows), retained_at=(at,), routed=(routed,)
    )


def test_what_the_dead_owner_had_not_stored_is_stored_by_the_next(two: TwoBrokers) -> None:
    two.owner.apply(batch(("a", b"1"), at=10, routed=10))
    two.follower.apply(batch(("a", b"1"), at=10, routed=10))
    two.follower.apply(batch(("a", b"2"), ("b", b"3"), at=20, routed=20))  # left out: it is not the owner
    assert two.stored() == ((10,), {"a": b"1"})
    two.owner_dies()
    two.follower.apply(batch(("c", b"4"), at=30, routed=30))
    assert two.stored() == ((30,), {"a": b"2", "b": b"3", "c": b"4"})
    assert len(two.follower._backlog) == 0


def test_a_message_that_was_emptied_is_emptied_by_the_next_owner(two: TwoBrokers) -> None:
    two.owner.apply(batch(("a", b"1"), at=10, routed=10))
    two.follower.apply(batch(("a", None), at=20, routed=20))
    two.owner_dies()
    two.follower.apply(Changes(routed=(20,)))  # also with a batch that has nothing retained
    assert two.stored()[1] == {}


def test_nothing_is_held_that_the_owner_has_stored(two: TwoBrokers) -> None:
    two.follower.apply(batch(("a", b"1"), ("b", b"2"), at=10, routed=12))
    assert len(two.follower._backlog) == 2
    two.owner.apply(batch(("a", b"1"), at=11, routed=12))
    two.follower.apply(batch(at=10, routed=13))
    assert len(two.follower._backlog) == 2  # the tables are not as far as those may be
    two.owner.apply(batch(("b", b"2"), at=13, routed=13))
    two.follower.apply(batch(at=13, routed=14))
    assert len(two.follower._backlog) == 0


def test_the_last_message_of_a_topic_wins(two: TwoBrokers) -> None:
    two.follower.apply(batch(("a", b"1"), at=10, routed=10))
    two.follower.apply(batch(("a", b"2"), at=20, routed=20))
    two.owner.apply(batch(("a", b"1"), at=15, routed=15))
    two.follower.apply(batch(at=20, routed=20))
    two.owner_dies()
    two.follower.apply(batch(("a", b"3"), at=25, routed=30))
    assert two.stored() == ((25,), {"a": b"3"})
