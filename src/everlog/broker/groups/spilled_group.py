"""A transient shared group that reads the log, as long as its members are too slow for what waits in memory."""

from collections.abc import Sequence
from dataclasses import dataclass

from everlog.broker.groups.durable_group import DurableGroup
from everlog.sessions import Session


@dataclass(frozen=True, slots=True)
class SpilledGroup:
    """A spilled group as a reader of the log."""

    durable: DurableGroup

    @property
    def name(self) -> str:
        """The filter that its members have subscribed to."""
        return f"$share/{self.durable.name}/{self.durable.pattern}"

    def reads_on(self) -> Sequence[int]:
        """Return for each shard the first offset that it may need."""
        return self.durable.cursor.floors(self.durable.reads_on())

    def slowest(self) -> Session | None:
        """Return the member that has most to acknowledge."""
        group = self.durable.group
        members = [] if group is None else list(group.members.values())
        return max(members, key=lambda member: member.held).session if members else None


def has_caught_up(durable: DurableGroup) -> bool:
    """Return whether its members have been dealt all that is routed."""
    return not durable.is_waiting and durable.group is not None


def is_done(durable: DurableGroup) -> bool:
    """Return whether they have acknowledged it, too, and nothing waits for them in memory."""
    return has_caught_up(durable) and durable.cursor.pending == 0
