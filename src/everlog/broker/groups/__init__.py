"""groups: shared subscriptions, dealt from memory or, when they are durable, from the log by a cursor of their own."""

from everlog.broker.groups.group_registry import GroupRegistry
from everlog.broker.groups.options import GroupOptions, GroupState

__all__ = ["GroupOptions", "GroupRegistry", "GroupState"]
