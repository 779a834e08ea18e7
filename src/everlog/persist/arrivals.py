"""Requests that arrived together, and answers that leave together: what plain ones need, without Python for each."""

from typing import Any

import cython

from everlog.bus import HEADER_BYTES
from everlog.streams import DECIDED, NOT_PLAIN

if not cython.compiled:
    from everlog.base.memory import get64, pointer
    from everlog.bus import Delivery, new_delivery
    from everlog.streams import Asked, PlainRequests, new_asked


class Allowed:
    """What requests of a subject may do: those of one right, on one name."""

    def __init__(self, name: str, kinds: frozenset[type], may_write: bool, may_read: bool) -> None:
        self.name = name
        self.raw_name = name.encode()
        self.kinds = kinds
        self.may_write = may_write
        self.may_read = may_read


class UnderWay:
    """The plain writes that are under way: where the answer to each id goes.

    Ids are their callers' own. One that two callers use at a time is no plain request for the second.
    """

    def __init__(self) -> None:
        self.replies: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self.replies)

    def has(self, reply: str, id: int) -> bool:
        """Return whether a request is under way."""
        return self.replies.get(id) == reply


def take_plain(
    deliveries: "list[Delivery]", plain: "PlainRequests", allowed: dict[str, Allowed], under_way: UnderWay,
    active: dict[tuple[str, int], Any], room: int,
) -> "list[Delivery]":  # fmt: skip
    """Hand plain requests to a shard, while there is room for more under way; return all others, in order.

    `plain.answered` has those that have an answer already.
    """
    rest: list[Delivery] = []
    header = HEADER_BYTES
    decided = DECIDED
    not_plain = NOT_PLAIN
    replies = under_way.replies
    for one in deliveries:
        data = one.payload
        known = allowed.get(one.subject)
        if known is None or len(data) <= header or not one.reply or room <= 0:
            rest.append(one)
            continue
        source = pointer(data)
        if source[0] != 1 or source[1] != 1 or not (known.may_write or known.may_read):  # version, a request
            rest.append(one)
            continue
        number = get64(source, 8)
        id: Any = number
        if id in replies or (active and (one.reply, id) in active):
            rest.append(one)
            continue
        asked = new_asked(one.reply, one.correlation, number)
        told = plain.take(data, header, known.name, known.raw_name, known.may_write, asked)
        if told == not_plain:
            rest.append(one)
        elif told == decided:
            replies[id] = one.reply
            room -= 1
    return rest


def answers_of(
    answered: "list[Asked]", under_way: UnderWay, most_bytes: int
) -> "tuple[list[Delivery], list[Delivery]]":
    """Return the answers as messages, and those that are too large for one; none of them is under way any more."""
    messages: list[Delivery] = []
    large: list[Delivery] = []
    replies = under_way.replies
    for one in answered:
        if one.is_write:
            replies.pop(one.id, None)
        made = new_delivery(one.reply, one.data, "", one.correlation)
        if len(one.data) <= most_bytes:
            messages.append(made)
        else:
            large.append(made)
    return messages, large
