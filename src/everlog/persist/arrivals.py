"""Requests that arrived together, and answers that leave together: what plain ones need, without Python for each."""

import secrets
from typing import Any

import cython

from everlog.bus import HEADER_BYTES
from everlog.streams import DECIDED, NOT_PLAIN

if not cython.compiled:
    from everlog.base.memory import copy, get64, hash_of, pointer, put64
    from everlog.bus import Delivery, new_delivery
    from everlog.streams import Asked, PlainRequests, new_asked

_FIRST_PLACES = 1024  # a power of two


class Allowed:
    """What requests of a subject may do: those of one right, on one name."""

    def __init__(self, name: str, kinds: frozenset[type], may_write: bool, may_read: bool) -> None:
        self.name = name
        self.raw_name = name.encode()
        self.kinds = kinds
        self.may_write = may_write
        self.may_read = may_read


class UnderWay:
    """The plain writes that are under way: who asked for each id.

    Ids are their callers' own. One that two callers use at a time is no plain request for the second. A table of ids,
    each at the place that its hash says or behind it, with nothing free between; at most half of the places are taken.
    """

    def __init__(self) -> None:
        self.count = 0
        self._seed = secrets.randbits(64)  # so that no caller can choose ids that have one place
        self._asked: list[Asked | None] = [None] * _FIRST_PLACES
        self._ids = bytearray(8 * _FIRST_PLACES)
        self._id = bytearray(8)  # one that is looked for

    def __len__(self) -> int:
        return self.count

    def has(self, reply: str, id: int) -> bool:
        """Return whether a request is under way."""
        one = self._asked[self.place(id)]
        return one is not None and one.reply == reply

    def is_taken(self, place: int) -> bool:
        """Return whether something is at a place."""
        return self._asked[place] is not None

    def add(self, place: int, asked: "Asked") -> int:
        """Take in a write whose id is not there, and belongs at a place."""
        put64(pointer(self._ids), 8 * place, asked.id)
        self._asked[place] = asked
        self.count += 1
        if 2 * self.count >= len(self._asked):
            self._grow()
        return 0

    def remove(self, id: int) -> int:
        """Let go of an id, if it is there, and close the gap."""
        ids = pointer(self._ids)
        last = len(self._asked) - 1
        gap = self.place(id)
        if self._asked[gap] is None:
            return 0
        self.count -= 1
        at = gap + 1 & last
        while self._asked[at] is not None:
            home = hash_of(ids, 8 * at, 8, self._seed) & last
            if (at - home & last) >= (at - gap & last):  # its place is the gap, or before it
                self._asked[gap] = self._asked[at]
                copy(ids, 8 * gap, ids, 8 * at, 8)
                gap = at
            at = at + 1 & last
        self._asked[gap] = None
        return 0

    def place(self, id: int) -> int:
        """Return where an id is, or belongs."""
        ids = pointer(self._ids)
        last = len(self._asked) - 1
        put64(pointer(self._id), 0, id)
        at = hash_of(pointer(self._id), 0, 8, self._seed) & last
        while self._asked[at] is not None and get64(ids, 8 * at) != id:
            at = at + 1 & last
        return at

    def _grow(self) -> int:
        there, self._asked = self._asked, [None] * (2 * len(self._asked))
        self._ids = bytearray(8 * len(self._asked))
        self.count = 0
        for one in there:
            if one is not None:
                self.add(self.place(one.id), one)
        return 0


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
        id = get64(source, 8)
        place = under_way.place(id)
        if under_way.is_taken(place) or (len(active) and (one.reply, id) in active):
            rest.append(one)
            continue
        asked = new_asked(one.reply, one.correlation, id)
        told = plain.take(data, header, known.name, known.raw_name, known.may_write, asked)
        if told == not_plain:
            rest.append(one)
        elif told == decided:
            under_way.add(place, asked)
            room -= 1
    return rest


def answers_of(
    answered: "list[Asked]", under_way: UnderWay, most_bytes: int
) -> "tuple[list[Delivery], list[Delivery]]":
    """Return the answers as messages, and those that are too large for one; none of them is under way any more."""
    messages: list[Delivery] = []
    large: list[Delivery] = []
    for one in answered:
        if one.is_write:
            under_way.remove(one.id)
        made = new_delivery(one.reply, one.data, "", one.correlation)
        if len(one.data) <= most_bytes:
            messages.append(made)
        else:
            large.append(made)
    return messages, large
