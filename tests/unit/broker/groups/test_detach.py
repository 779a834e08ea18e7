"""A group whose last member goes stays where it is in the log: nothing before where it begins, nothing left out."""

from types import SimpleNamespace
from typing import Any

from everlog.broker import GroupOptions
from everlog.broker.groups.durable_group import DurableGroup
from everlog.broker.groups.shared_group import SharedGroup
from everlog.sessions import LIVE, GroupCursor, unpack_offsets


class Reader:
    """Reads nothing, and counts how often it was let go of."""

    def __init__(self) -> None:
        self.released = 0

    def release(self) -> None:
        self.released += 1


def group(*routed: int) -> tuple[DurableGroup, Reader, list[int]]:
    reader, at = Reader(), list(routed)
    shards = [SimpleNamespace(committed=1000) for _ in routed]
    log = SimpleNamespace(reader=lambda *_, **__: reader, shards=shards)
    ports: Any = SimpleNamespace(
        router=SimpleNamespace(routed=at, log=log), options=GroupOptions(), changed=lambda _: None, wake=lambda _: None
    )
    durable = DurableGroup("g", "t/#", GroupCursor(100), ports)
    durable.attach(SharedGroup("g", "t/#", lambda *_: None))
    return durable, reader, at


def test_a_live_group_stays_where_it_is_while_others_are_routed_on() -> None:
    durable, reader, routed = group(5, 7)
    assert unpack_offsets(durable.row().positions) == (LIVE, LIVE)
    durable.detach()
    routed[:] = [50, 70]
    assert durable.reads_on() == [5, 7]
    assert unpack_offsets(durable.row().positions) == (5, 7)
    assert reader.released == 1


def test_one_that_begins_ahead_of_what_is_routed_begins_there_nonetheless() -> None:
    durable, _, routed = group(5, 7)
    durable.begin_at([5, 9])
    durable.detach()
    routed[:] = [50, 70]
    assert durable.reads_on() == [5, 9]
    assert durable.since == {}


def test_one_that_is_behind_stays_behind() -> None:
    durable, _, routed = group(5, 7)
    durable.begin_at([2, 7])
    durable.detach()
    durable.detach()  # again, when it has no member yet
    routed[:] = [50, 70]
    assert durable.reads_on() == [2, 7]
