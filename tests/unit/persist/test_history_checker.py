"""The checker of the fault tests: it finds what must not be, and nothing else."""

import pytest
from tests.persist_world import Follower
from tests.stream_history import History, Write

from everlog.client import CaughtUp
from everlog.streams import EpochBegan, FeedReset, Level, MessageSet, StoredMessage


def told(seq: int, value: bytes = b"v", position: int = 0) -> MessageSet:
    return MessageSet(StoredMessage(seq, 1, value, position=position, size=len(value)))


def follow(*told_at: tuple[object, tuple[int, int] | None]) -> tuple[Follower, list[str]]:
    """Return a follower that was told these items at these positions, and the faults that were found."""
    history = History()
    follower = Follower("s", history)
    for item, position in told_at:
        follower.take(item, position)
    return follower, history.faults


def test_a_follower_that_is_told_of_an_epoch_crosses_it() -> None:
    follower, faults = follow(
        (CaughtUp(-1, 0), (7, -1)),
        (told(1), (7, 1)),
        (told(2), (7, 2)),
        (EpochBegan(1, 1), (8, 3)),
        (told(2, b"other"), (8, 3)),
        (told(3), (8, 4)),
    )
    assert not faults
    assert follower.values == {1: b"v", 2: b"other", 3: b"v"}


def test_a_follower_that_is_not_told_of_an_epoch_is_a_fault() -> None:
    _, faults = follow((CaughtUp(-1, 0), (7, -1)), (told(1), (7, 1)), (told(2), (8, 2)))
    assert faults == ["a follower of s crossed into epoch 8 unawares"]


@pytest.mark.parametrize("reason", ["epoch", "interrupted"])
def test_what_a_snapshot_tells_crosses_nothing(reason: str) -> None:
    """The messages of a snapshot come while the feed is still at its last position, which is of an earlier epoch."""
    follower, faults = follow(
        (CaughtUp(-1, 0), (7, -1)),
        (told(1), (7, 1)),
        (FeedReset(reason), (7, 1)),
        (told(1, b"another"), (7, 1)),
        (told(2), (7, 1)),
        (CaughtUp(2, 2), (8, 2)),
        (told(3), (8, 3)),  # of the same owner as the last one of the snapshot, so no epoch begins
    )
    assert not faults
    assert follower.values == {1: b"another", 2: b"v", 3: b"v"}
    assert follower.resets == 1


def test_an_acknowledged_write_that_is_missing_moved_or_changed_is_a_fault() -> None:
    history = History()
    for seq in range(1, 6):
        history.wrote("s", Write(1, 10 + seq, seq, b"v", Level.MEMORY if seq == 5 else Level.FSYNC))
    there = [
        StoredMessage(1, 1, b"v", position=11, size=1),
        StoredMessage(2, 1, b"x", position=12, size=1),
        StoredMessage(3, 1, b"v", position=14, size=1),
    ]
    assert history.check("s", there) == [f"s has lost message {seq} of position {10 + seq}" for seq in (2, 3, 4)]


def test_a_seq_with_two_contents_and_a_revision_with_two_winners_are_faults() -> None:
    history = History()
    history.wrote("s", Write(3, 7, 1, b"one", Level.MEMORY))
    history.wrote("s", Write(3, 7, 1, b"two", Level.MEMORY))
    history.won("s", "x", 4, 5)
    history.won("s", "x", 4, 6)
    assert history.check("s", []) == [
        "s: seq 1 of epoch 3 at 7 had 2 contents",
        "s: x at revision 4 was won by [5, 6]",
    ]
