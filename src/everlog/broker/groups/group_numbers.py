"""Shared groups in numbers."""

from collections.abc import Iterable

from everlog.broker.groups.durable_group import DurableGroup
from everlog.broker.groups.group_options import GroupState
from everlog.broker.groups.shared_group import SharedGroup


def states_of(durable: Iterable[DurableGroup], connected: Iterable[SharedGroup], ends: list[int]) -> list[GroupState]:
    """Return groups by name and filter: the durable ones, and those of connected members that are transient.

    The committed records of each shard end at `ends`.
    """
    transient = [
        GroupState(group.name, group.pattern, False, members=len(group), subscribers=len(group))
        for group in connected
        if group.deal is None
    ]
    found = [*(_state(one, ends) for one in durable), *transient]
    return sorted(found, key=lambda one: (one.name, one.filter))


def _state(durable: DurableGroup, ends: list[int]) -> GroupState:
    at = durable.reads_on()
    unread = sum(max(0, end - start) for end, start in zip(ends, at, strict=True))
    return GroupState(
        durable.name,
        durable.pattern,
        not durable.spilled,
        durable.cursor.ordered,
        0 if durable.group is None else len(durable.group),
        len(durable.subscribers),
        unread + durable.cursor.pending,
        durable.cursor.inflight,
        len(durable.cursor.owed),
        durable.cursor.floors(at),
    )
