"""Topic names as small numbers: one table per broker for what arrives, one per segment for what is kept.

Names are stored once, back to back; a hash table of ids finds them. Ids are dense, from 0, in the order in which names
first came. Invariants: name `i` ends at `ends[i + 1]`; a slot holds an id + 1, or 0 when it is free; at most half of
the slots are used.
"""

import os

import cython

from everlog.base.errors import UsageError

if not cython.compiled:
    from everlog.base.memory import Buffer, copy, equal, hash_of, pointer, u32s

ABSENT = -1
_FIRST_SLOTS = 64
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
        self.name_bytes = 0
        self.last = ABSENT
        slots = _FIRST_SLOTS if self.max_topics > 1 else 2  # one name, as of a retained message, takes little
        self.mask = slots - 1
        self.names = bytearray(min(1024, self.max_bytes))
        self.ends = bytearray(4 * (slots // 2 + 1))
        self.hashes = bytearray(4 * (slots // 2))
        self.slots = bytearray(4 * slots)

    def __len__(self) -> int:
        return self.count

    @property
    def memory_bytes(self) -> int:
        """The memory of the table, with the room that it has to grow."""
        return len(self.names) + len(self.ends) + len(self.hashes) + len(self.slots)

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
        start, end = ends[topic], ends[topic + 1]
        return bytes(self.names[start:end])

    def all_names(self, first: int = 0) -> list[bytes]:
        """Return every name from id `first` on, in id order."""
        return [self.name(topic) for topic in range(first, self.count)]

    def find(self, source: Buffer, start: int, size: int) -> int:
        """Return the id of the name in a range, or -1."""
        names = pointer(self.names)
        ends = u32s(self.ends)
        if self.last >= 0:
            at = ends[self.last]
            if ends[self.last + 1] - at == size and equal(names, at, source, start, size):
                return self.last
        hashes = u32s(self.hashes)
        slots = u32s(self.slots)
        code = hash_of(source, start, size, self.seed)
        slot = code & self.mask
        while slots[slot] != 0:
            topic = slots[slot] - 1
            if hashes[topic] == code:
                at = ends[topic]
                if ends[topic + 1] - at == size and equal(names, at, source, start, size):
                    self.last = topic
                    return topic
            slot = (slot + 1) & self.mask
        return ABSENT

    def find_or_add(self, source: Buffer, start: int, size: int) -> int:
        """Return the id of the name in a range, which is added when it is new; -1 when the table is full."""
        topic = self.find(source, start, size)
        if topic >= 0:
            return topic
        if self.count >= self.max_topics or self.name_bytes + size > self.max_bytes:
            return ABSENT
        self._make_room(size)
        topic = self.count
        copy(pointer(self.names), self.name_bytes, source, start, size)
        self.name_bytes += size
        self.count += 1
        code = hash_of(source, start, size, self.seed)
        u32s(self.ends)[topic + 1] = self.name_bytes
        u32s(self.hashes)[topic] = code
        self._place(topic, code)
        self.last = topic
        return topic

    def renew(self, topic: int) -> int:
        """Give the name with this id another one, the next: the old id keeps the name, but is not found any more."""
        if not 0 <= topic < self.count:
            raise IndexError(f"no topic has id {topic}; {self.count} are known")
        size = u32s(self.ends)[topic + 1] - u32s(self.ends)[topic]
        if self.count >= self.max_topics or self.name_bytes + size > self.max_bytes:
            return ABSENT
        self._make_room(size)
        new = self.count
        code = u32s(self.hashes)[topic]
        slots = u32s(self.slots)
        slot = code & self.mask
        while slots[slot] != topic + 1:
            if slots[slot] == 0:
                raise UsageError(f"the topic with id {topic} has another id by now")
            slot = (slot + 1) & self.mask
        slots[slot] = new + 1
        copy(pointer(self.names), self.name_bytes, pointer(self.names), u32s(self.ends)[topic], size)
        self.name_bytes += size
        self.count += 1
        u32s(self.ends)[new + 1] = self.name_bytes
        u32s(self.hashes)[new] = code
        self.last = new
        return new

    def _place(self, topic: int, code: int) -> int:
        slots = u32s(self.slots)
        slot = code & self.mask
        while slots[slot] != 0:
            slot = (slot + 1) & self.mask
        slots[slot] = topic + 1
        return 0

    def _make_room(self, size: int) -> int:
        if self.name_bytes + size > len(self.names):
            self.names.extend(bytes(max(size, len(self.names))))
        if 2 * (self.count + 1) <= self.mask + 1:
            return 0
        self.mask = 2 * self.mask + 1
        self.ends.extend(bytes(len(self.ends)))
        self.hashes.extend(bytes(len(self.hashes)))
        before = self.slots
        self.slots = bytearray(4 * (self.mask + 1))
        hashes = u32s(self.hashes)
        used = u32s(before)
        for slot in range(len(before) // 4):
            if used[slot] != 0:  # of a renewed name, the last id only
                self._place(used[slot] - 1, hashes[used[slot] - 1])
        return 0
