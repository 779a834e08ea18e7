"""The topics of retained messages in columns: name, number, where the message is, who published it.

A topic's slot is its id in `names`. Slots are in the order of their numbers, which rise, so that a number is found by
halving. A topic that comes back after its message was removed gets another slot. What is gone keeps its slot until
whoever owns the index moves the rest into a new one. Owned by the event loop's thread.
"""

import cython

if not cython.compiled:
    from everlog.base import TopicTable
    from everlog.base.memory import Buffer, copy, pointer, put64, resize, u32s, u64s
    from everlog.topics import TokenPostings

NOWHERE = 0xFFFFFFFFFFFFFFFF  # in place of where a message is: it was removed
NOBODY = 0xFFFFFFFF  # in place of a publisher: not known
_FIRST_SLOTS = 64
_NAMED_BYTES = 10


class RetainedIndex:
    """Slots by name, by number and by filter."""

    def __init__(self) -> None:
        self.names = TopicTable(0, 1 << 31, 0xFFFFFFFF)
        self.clients = TopicTable(0, 1 << 31, 0xFFFFFFFF)  # the client ids of publishers
        self.postings = TokenPostings()
        self.capacity = _FIRST_SLOTS
        self.numbers = bytearray(8 * _FIRST_SLOTS)
        self.places = bytearray(8 * _FIRST_SLOTS)
        self.publishers = bytearray(4 * _FIRST_SLOTS)
        self.marks = bytearray(_FIRST_SLOTS)  # 1: its change is still to be stored

    @property
    def size_bytes(self) -> int:
        """The memory of the index, with the room that it has to grow."""
        columns = len(self.numbers) + len(self.places) + len(self.publishers) + len(self.marks)
        return columns + self.names.memory_bytes + self.clients.memory_bytes + self.postings.size_bytes

    def add(
        self, source: Buffer, start: int, size: int, number: int, place: int, publisher: int, is_new: bool = False
    ) -> int:
        """Add a topic whose number is above all others; return its slot, or -1 if there is no room for names.

        One that `is_new` never had a slot; whoever adds many of them has `names` place them together.
        """
        slot = self.names.append(source, start, size) if is_new else self.names.find_or_add(source, start, size)
        if 0 <= slot < self.postings.count:
            slot = self.names.renew(slot)
        if slot < 0:
            return -1
        if slot >= self.capacity:
            self._grow()
        u64s(self.numbers)[slot] = number
        u64s(self.places)[slot] = place
        u32s(self.publishers)[slot] = publisher
        pointer(self.marks)[slot] = 0
        self.postings.add(self.names, slot)
        return slot

    def _grow(self) -> int:
        more = self.capacity // 4 + _FIRST_SLOTS
        self.capacity += more
        resize(self.numbers, 8 * self.capacity)
        resize(self.places, 8 * self.capacity)
        resize(self.publishers, 4 * self.capacity)
        resize(self.marks, self.capacity)
        return 0

    def lower(self, number: int) -> int:
        """Return the first slot whose number is not below this one."""
        numbers = u64s(self.numbers)
        begin = 0
        end = self.names.count
        while begin < end:
            middle = (begin + end) >> 1
            if numbers[middle] < number:
                begin = middle + 1
            else:
                end = middle
        return begin

    def slot_of(self, number: int) -> int:
        """Return the slot with this number, -1 if there is none or its message is gone."""
        slot = self.lower(number)
        if slot < self.names.count and u64s(self.numbers)[slot] == number and u64s(self.places)[slot] != NOWHERE:
            return slot
        return -1

    def names_from(self, number: int) -> bytes:
        """Return the topics with this number or a higher one: u64 number, u16 size and name of each."""
        names = self.names
        ends = u32s(names.ends)
        numbers = u64s(self.numbers)
        places = u64s(self.places)
        first = self.lower(number)
        size = 0
        for slot in range(first, names.count):
            if places[slot] != NOWHERE:
                size += _NAMED_BYTES + ends[slot + 1] - ends[slot]
        block = bytearray(size)
        out = pointer(block)
        source = pointer(names.names)
        at = 0
        for slot in range(first, names.count):
            if places[slot] != NOWHERE:
                size = ends[slot + 1] - ends[slot]
                put64(out, at, numbers[slot])
                out[at + 8] = size & 0xFF
                out[at + 9] = size >> 8
                copy(out, at + _NAMED_BYTES, source, ends[slot], size)
                at += _NAMED_BYTES + size
        return bytes(block)
