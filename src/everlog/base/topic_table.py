"""Topic names as small numbers: one table per broker for what arrives, one per segment for what is kept.

Names are stored once, back to back; a hash table of ids finds them. Ids are dense, from 0, in the order in which names
first came; who names topics again does so in that order more often than not, so that the name after the last one that
was found is looked at first. Invariants: name `i` ends at `ends[i + 1]`; a slot holds a hash << 32 | an id + 1, or 0
when it is free; at most three of four slots are used.
"""

import os
from collections.abc import Sequence

import cython

from everlog.base.errors import UsageError

if not cython.compiled:
    from everlog.base.memory import (
        Buffer,
        advise_large_pages,
        blank,
        cleared,
        copy,
        equal,
        filled,
        hash_of,
        part,
        pointer,
        prefetch,
        put32,
        resize,
        u32s,
        u64s,
    )

ABSENT = -1
_FIRST_SLOTS = 64
_LEAST_NAMES = 32  # to have room for
_AHEAD = 8  # names whose slots are on their way
_ID_MASK = 0xFFFFFFFF  # of what a slot holds
_SEED = int.from_bytes(os.urandom(8), "little") | 1  # of this process: peers can't choose names whose hashes collide


class TopicTable:
    """A table of topic names. When it is full (`max_topics` names or `max_bytes` of them) it takes no new ones.

    The hashes depend on `seed`, or on one of this process if that is 0. A segment's table has one more beside it with
    the names of those who have published, once a record says who.
    """

    def __init__(self, seed: int = 0, max_topics: int = 1 << 24, max_bytes: int = 1 << 30) -> None:
        self.seed = (seed or _SEED) & 0xFFFFFFFFFFFFFFFF
        self.max_topics = max_topics
        self.max_bytes = max_bytes
        self.generation = -1
        self.reset()

    def reset(self) -> None:
        """Forget every name; another `generation` tells holders of ids that they mean nothing any more."""
        self.generation += 1
        self.publishers: TopicTable | None = None
        self.count = 0
        self.placed = 0  # names below this are in the slots; the others when one is looked for
        self.name_bytes = 0
        self.last = ABSENT
        self.in_order = True  # no name has another id by now
        is_one = self.max_topics == 1  # such as of a retained message, takes little
        slots = 2 if is_one else _FIRST_SLOTS
        self.mask = slots - 1
        self.names = bytearray(min(1024, self.max_bytes))
        self.ends = bytearray(4 * (2 if is_one else _LEAST_NAMES))
        self.slots = bytearray(8 * slots)

    def __len__(self) -> int:
        return self.count

    @property
    def memory_bytes(self) -> int:
        """The memory of the table, with the room that it has to grow."""
        return len(self.names) + len(self.ends) + len(self.slots)

    def duplicate(self) -> "TopicTable":
        """Return another table with the same names, ids and limits."""
        other = TopicTable(self.seed, self.max_topics, self.max_bytes)
        for name in self.all_names():
            other.intern(name)
        if self.publishers is not None:
            other.publishers = self.publishers.duplicate()
        return other

    def intern(self, name: bytes) -> int:
        """Return the id of a name, new or known; -1 when the table is full."""
        return self.find_or_add(pointer(name), 0, len(name))

    def lookup(self, name: bytes) -> int:
        """Return the id of a known name, or -1."""
        return self.find(pointer(name), 0, len(name))

    def name(self, topic: int) -> bytes:
        """Return the name with this id."""
        if not 0 <= topic < self.count:
            raise IndexError(f"no topic has id {topic}; {self.count} are known")
        ends = u32s(self.ends)
        return part(pointer(self.names), ends[topic], ends[topic + 1])

    def all_names(self, first: int = 0) -> list[bytes]:
        """Return every name from id `first` on, in id order."""
        return [self.name(topic) for topic in range(first, self.count)]

    def packed(self, first: int, stop: int) -> bytes:
        """Return the names `first` to before `stop` in one block: where each ends (u32s, from the first), the bytes."""
        if not 0 <= first <= stop <= self.count:
            raise IndexError(f"no names {first} to {stop}; {self.count} are known")
        ends = u32s(self.ends)
        begin = ends[first]
        size = ends[stop] - begin
        made = blank(4 * (stop - first) + size)
        out = pointer(made)
        for topic in range(first, stop):
            put32(out, 4 * (topic - first), ends[topic + 1] - begin)
        copy(out, 4 * (stop - first), pointer(self.names), begin, size)
        return filled(made)

    def find(self, source: Buffer, start: int, size: int) -> int:
        """Return the id of the name in a range, or -1."""
        names = pointer(self.names)
        ends = u32s(self.ends)
        topic = self.last
        if topic >= 0:
            at = ends[topic]
            if ends[topic + 1] - at == size and equal(names, at, source, start, size):
                return topic
            topic += 1
            if topic < self.count and self.in_order:
                at = ends[topic]
                if ends[topic + 1] - at == size and equal(names, at, source, start, size):
                    self.last = topic
                    return topic
        if self.placed < self.count:
            self.place_rest()
        slots = u64s(self.slots)
        code = hash_of(source, start, size, self.seed)
        slot = code & self.mask
        while slots[slot] != 0:
            if slots[slot] >> 32 == code:
                topic = (slots[slot] & _ID_MASK) - 1
                at = ends[topic]
                if ends[topic + 1] - at == size and equal(names, at, source, start, size):
                    self.last = topic
                    return topic
            slot = (slot + 1) & self.mask
        return ABSENT

    def find_or_add(self, source: Buffer, start: int, size: int) -> int:
        """Return the id of the name in a range, which is added when it is new; -1 when the table is full."""
        topic = self.find(source, start, size)
        return topic if topic >= 0 else self.add(source, start, size)

    def add(self, source: Buffer, start: int, size: int) -> int:
        """Add the name in a range, which is not there, and return its id; -1 when the table is full."""
        topic = self.append(source, start, size)
        if topic == self.placed:
            self._place(topic, hash_of(source, start, size, self.seed))
        return topic

    def append(self, source: Buffer, start: int, size: int) -> int:
        """Add a name that is not there as `add` does, but put it into the slots only when a name is looked for."""
        if self.count >= self.max_topics or self.name_bytes + size > self.max_bytes:
            return ABSENT
        self._make_room(size)
        topic = self.count
        copy(pointer(self.names), self.name_bytes, source, start, size)
        self.name_bytes += size
        self.count += 1
        u32s(self.ends)[topic + 1] = self.name_bytes
        self.last = topic
        return topic

    def renew(self, topic: int) -> int:
        """Give the name with this id another one, the next: the old id keeps the name, but is not found any more."""
        if not 0 <= topic < self.count:
            raise IndexError(f"no topic has id {topic}; {self.count} are known")
        if self.placed < self.count:
            self.place_rest()
        start = u32s(self.ends)[topic]
        size = u32s(self.ends)[topic + 1] - start
        if self.count >= self.max_topics or self.name_bytes + size > self.max_bytes:
            return ABSENT
        code = hash_of(pointer(self.names), start, size, self.seed)
        slots = u64s(self.slots)
        slot = code & self.mask
        while slots[slot] & _ID_MASK != topic + 1:
            if slots[slot] == 0:
                raise UsageError(f"the topic with id {topic} has another id by now")
            slot = (slot + 1) & self.mask
        self._make_room(size)
        new = self.count
        slots[slot] = slots[slot] >> 32 << 32 | (new + 1)
        copy(pointer(self.names), self.name_bytes, pointer(self.names), start, size)
        self.name_bytes += size
        self.count += 1
        self.placed += 1
        u32s(self.ends)[new + 1] = self.name_bytes
        self.in_order = False
        self.last = new
        return new

    def _place(self, topic: int, code: int) -> int:
        """Put a name into the slots, the next that is not there."""
        if 4 * (topic + 1) > 3 * (self.mask + 1):
            self._add_slots()
        put(self.slots, self.mask, code << 32 | (topic + 1))
        self.placed = topic + 1
        return 0

    def place_rest(self) -> int:
        """Put all names into the slots that are not there yet: a slot is on its way while others are filled."""
        ends = u32s(self.ends)
        names = pointer(self.names)
        for topic in range(self.placed, self.count):
            ahead = topic + _AHEAD
            if ahead < self.count:
                self.expect(names, ends[ahead], ends[ahead + 1] - ends[ahead])
            self._place(topic, hash_of(names, ends[topic], ends[topic + 1] - ends[topic], self.seed))
        return 0

    def expect(self, source: Buffer, start: int, size: int) -> int:
        """Have the slot on its way from memory in which a name is looked for soon."""
        prefetch(pointer(self.slots), 8 * (hash_of(source, start, size, self.seed) & self.mask))
        return 0

    def _add_slots(self) -> int:
        before = self.slots
        used = u64s(before)
        self.mask = 2 * self.mask + 1
        self.slots = cleared(8 * (self.mask + 1))
        for slot in range(len(before) // 8):
            if used[slot] != 0:  # of a renewed name, the last id only
                put(self.slots, self.mask, used[slot])
        return 0

    def _make_room(self, size: int) -> int:
        """Make room for one more name of this size."""
        if self.name_bytes + size > len(self.names):
            resize(self.names, len(self.names) + max(size, len(self.names) // 2))
            advise_large_pages(self.names)
        if 4 * (self.count + 2) > len(self.ends):
            resize(self.ends, len(self.ends) + len(self.ends) // 8 * 4 + 4 * _LEAST_NAMES)
        return 0


def table_of(names: Sequence[bytes]) -> TopicTable:
    """Return a table of names as they are, in this order; one that comes twice has two ids."""
    table = TopicTable(0, 1 << 31, 0xFFFFFFFF)
    for name in names:
        table.append(pointer(name), 0, len(name))
    return table


def put(column: bytearray, mask: int, entry: int) -> int:
    """Write what a slot holds to the first free one from the place of its hash on."""
    slots = u64s(column)
    slot = entry >> 32 & mask
    while slots[slot] != 0:
        slot = (slot + 1) & mask
    slots[slot] = entry
    return 0
