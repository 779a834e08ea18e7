"""What durable groups need of the rest of the broker."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from everlog.broker.delivery import Router
from everlog.broker.groups.group_options import GroupCounters, GroupOptions


@dataclass(frozen=True, slots=True)
class GroupPorts:
    """What a group needs of the broker: the router, options, counters, a clock, and whom to tell of changes."""

    router: Router
    options: GroupOptions
    counters: GroupCounters
    time: Callable[[], float]
    changed: Callable[[tuple[str, str]], None]  # the stored state of a group is out of date
    wake: Callable[[Any], None]  # have the `pump` of a group called at the end of this turn of the event loop
