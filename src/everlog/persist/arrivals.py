"""Requests that arrived together, and answers that leave together: what plain ones need, without Python for each."""

from typing import Any

import cython

from everlog.bus import HEADER_BYTES
from everlog.streams import DECIDED, NOT_PLAIN

if not cython.compiled:
    from everlog.base.memory import get64, pointer
    from everlog.bus import Delivery, new_delivery
    from everlog.streams import Asked, PlainRequests, new_asked

_CALLERS = 10_000  # that are remembered although nothing of theirs is under way


class Allowed:
    """What requests of a subject may do: those of one right, on one name."""

    def __init__(self, name: str, kinds: frozenset[type], may_write: bool, may_read: bool) -> None:
        self.name = name
        self.raw_name = name.encode()
        self.kinds = kinds
        self.may_write = may_write
        self.may_read = may_read


class UnderWay:
    """The plain writes that are under way, by where their answers go and the ids that their callers gave them."""

    def __init__(self) -> None:
        self.count = 0
        self._ids: dict[str, set[int]] = {}

    def has(self, reply: str, id: int) -> bool:
        """Return whether a request is under way."""
        ids = self._ids.get(reply)
        return ids is not None and id in ids


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
        ids = under_way._ids.get(one.reply)
        if ids is None:
            ids = under_way._ids[one.reply] = set()
        if id in ids or (active and (one.reply, id) in active):
            rest.append(one)
            continue
        asked = new_asked(one.reply, one.correlation, number)
        told = plain.take(data, header, known.name, known.raw_name, known.may_write, asked)
        if told == not_plain:
            rest.append(one)
        elif told == decided:
            ids.add(id)
            under_way.count += 1
            room -= 1
    return rest


def answers_of(
    answered: "list[Asked]", under_way: UnderWay, most_bytes: int
) -> "tuple[list[Delivery], list[Delivery]]":
    """Return the answers as messages, and those that are too large for one; none of them is under way any more."""
    messages: list[Delivery] = []
    large: list[Delivery] = []
    most_callers = _CALLERS
    for one in answered:
        ids = under_way._ids.get(one.reply)
        if ids is not None:
            id: Any = one.id
            if id in ids:
                ids.discard(id)
                under_way.count -= 1
            if not ids and len(under_way._ids) > most_callers:
                del under_way._ids[one.reply]
        made = new_delivery(one.reply, one.data, "", one.correlation)
        if len(one.data) <= most_bytes:
            messages.append(made)
        else:
            large.append(made)
    return messages, large
