"""What shared groups may use, and what is counted of them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GroupOptions:
    """What a group may use."""

    inflight_messages: int = 10_000  # dealt by a group and not acknowledged, or passed over; at it, no more are dealt
    member_messages: int = 256  # dealt to a member and not acknowledged; at it, others get the next
    ack_timeout_s: float = 60.0  # a QoS 1 message not acknowledged for so long goes to another member; 0 never
    ordered: tuple[str, ...] = ()  # names of groups whose messages of one topic go to one member at a time


@dataclass(slots=True)
class GroupCounters:
    """What happened to the messages of all groups."""

    redelivered: int = 0
    timeouts: int = 0
    lost: int = 0  # messages that the log did not have any more


@dataclass(frozen=True, slots=True)
class GroupState:
    """A group in numbers. `lag` counts what is not done, and offsets not looked at whether or not they match."""

    name: str
    filter: str
    durable: bool
    ordered: bool = False
    members: int = 0  # connected
    subscribers: int = 0  # sessions, connected or not
    lag: int = 0
    inflight: int = 0
    owed: int = 0
    positions: tuple[int, ...] = ()  # for each shard the offset below which all is done
