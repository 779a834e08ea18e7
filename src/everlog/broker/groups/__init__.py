"""groups: shared subscriptions, dealt from memory or, when they are durable, from the log by a cursor of their own."""

from everlog.broker.groups.far_groups import FarGroups
from everlog.broker.groups.far_ports import Dealers, Dealt, Held, Seated, SeatMember, SeatNews
from everlog.broker.groups.group_options import GroupOptions, GroupState
from everlog.broker.groups.group_registry import GroupRegistry
