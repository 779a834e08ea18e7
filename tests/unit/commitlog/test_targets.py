"""A log that commits at a target first, and one that takes in what others have committed."""

from random import Random

import pytest
from tests.shard_logs import append, numbered, opened, rows, small
from tests.simulated_disk import SimulatedDisk

from everlog.base import Fenced, StorageError, Unavailable
from everlog.commitlog import Origin

WHY = Unavailable("somebody else owns it")


class Target:
    """Takes everything, until it refuses."""

    def __init__(self) -> None:
        self.bodies: list[tuple[int, bytes]] = []  # segment, batch
        self.refusal: Fenced | None = None

    def commit(self, group):  # type: ignore[no-untyped-def]
        if self.refusal is not None:
            raise self.refusal
        self.bodies += [(segment, bytes(records.to_bytes())) for records, segment in group]


def owned(epoch: int = 1):  # type: ignore[no-untyped-def]
    """A log that is owned at an epoch, and its target."""
    log, target = opened(settings=small(durability="flush"), origin=Origin(1, 0, epoch), is_copy=True), Target()
    log.follow(WHY)
    log.own(epoch, target)
    return log, target


def test_a_group_is_at_the_target_before_anybody_can_read_it() -> None:
    log, target = owned()
    append(log, numbered(5))
    seen: list[int] = []
    target.commit = lambda group: seen.append(log.committed)  # type: ignore[method-assign]
    log.commit_step()
    assert seen == [0]
    assert log.committed == 5


def test_what_the_target_refuses_is_dropped_and_its_offsets_are_free() -> None:
    log, target = owned()
    append(log, numbered(3))
    log.commit_step()
    target.refusal = Fenced("replaced")
    append(log, numbered(4))
    log.commit_step()
    assert (log.committed, log.end, log.pending_bytes) == (3, 3, 0)
    with pytest.raises(Fenced):
        append(log, numbered(1))
    assert log.failure is None
    other = Target()
    log.own(2, other)
    append(log, numbered(2, first=50))
    log.commit_step()
    assert other.bodies[0][0] == 3  # a new owner begins a new segment
    assert rows(log)[3:] == [(3, *numbered(1, first=50)[0]), (4, *numbered(1, first=51)[0])]


def test_a_follower_has_the_same_bytes_in_the_same_segments() -> None:
    log, target = owned()
    for first in range(0, 60, 3):
        append(log, numbered(3, first=first))
        log.commit_step()
    copy = opened(settings=small(durability="flush"), origin=Origin(1, 0, 0), is_copy=True)
    copy.follow(WHY)
    for segment, body in target.bodies:
        copy.take_in(1, segment, [body])
    assert rows(copy) == rows(log)
    assert copy.committed == copy.end == 60
    assert copy.unwritten_bytes == copy.pending_bytes > 0  # it can be read before it is written
    copy.write_behind()
    assert copy.unwritten_bytes == copy.pending_bytes == 0
    assert [view.base_offset for view in copy.segments()] == [view.base_offset for view in log.segments()]
    assert len(copy.segments()) > 1
    copy.own(2, Target())
    append(copy, numbered(1, first=60))
    copy.commit_step()
    assert copy.segments()[-1].base_offset == 60


def test_what_does_not_follow_is_not_taken_in() -> None:
    log, target = owned()
    for first in range(3):
        append(log, numbered(1, first=first))
        log.commit_step()
    copy = opened(settings=small(durability="flush"), origin=Origin(1, 0, 0), is_copy=True)
    copy.follow(WHY)
    bodies = [body for _, body in target.bodies]
    copy.take_in(2, 0, bodies[:1])
    for epoch, segment, body in (
        (2, 0, bodies[2]),
        (2, 1, bodies[0]),
        (1, 0, bodies[1]),
        (2, 0, bodies[1][:-1] + b"!"),
    ):
        with pytest.raises(StorageError):
            copy.take_in(epoch, segment, [body])
    with pytest.raises(Unavailable):
        append(copy, numbered(1))
    copy.take_in(2, 0, bodies[1:])
    assert copy.committed == 3


def test_a_disk_that_fails_is_tried_again_with_the_same_batches() -> None:
    log, target = owned()
    for first in range(3):
        append(log, numbered(2, first=first))
        log.commit_step()
    disk = SimulatedDisk(Random(3))
    copy = opened(disk, small(durability="flush"), origin=Origin(1, 0, 0), is_copy=True)
    copy.follow(WHY)
    copy.take_in(1, 0, [target.bodies[0][1]])
    copy.write_behind()
    copy.take_in(1, 0, [target.bodies[1][1]])
    disk.fault = lambda kind, path: 28 if kind == "write" and path.endswith(".log") else None
    copy.write_behind()
    assert isinstance(copy.trouble, StorageError)
    with pytest.raises(StorageError):
        copy.take_in(1, 0, [target.bodies[2][1]])  # or memory would fill
    assert copy.committed == 4
    disk.fault = lambda kind, path: None
    while not copy.wants_step():
        pass
    copy.commit_step()
    assert copy.trouble is None
    copy.take_in(1, 0, [target.bodies[2][1]])
    copy.write_behind()
    assert rows(copy) == rows(log)
    assert [view.base_offset for view in copy.segments()] == [view.base_offset for view in log.segments()]


def test_what_was_shown_is_written_before_the_log_is_owned_or_closed() -> None:
    log, target = owned()
    append(log, numbered(5))
    log.commit_step()
    disk = SimulatedDisk(Random(3))
    copy = opened(disk, small(durability="flush"), origin=Origin(1, 0, 0), is_copy=True)
    copy.follow(WHY)
    copy.take_in(1, 0, [target.bodies[0][1]])
    copy.own(2, Target())
    assert copy.unwritten_bytes == 0
    copy.follow(WHY)
    assert copy.committed == 5
    copy.own(3, Target())
    append(copy, numbered(1, first=5))
    copy._committer.ask(copy.end)
    steps = copy.steps()
    next(steps)
    with pytest.raises(StopIteration):
        steps.send(None)
    assert copy.unwritten_bytes > 0
    copy.close()
    again = opened(disk, small(durability="flush"), origin=Origin(1, 0, 3))
    assert len(rows(again)) == 6


def test_an_empty_follower_begins_where_the_history_does() -> None:
    copy = opened(settings=small(durability="flush"), origin=Origin(1, 0, 0), is_copy=True)
    copy.follow(WHY)
    copy.skip_to(100)
    assert (copy.start, copy.committed, copy.end) == (100, 100, 100)
