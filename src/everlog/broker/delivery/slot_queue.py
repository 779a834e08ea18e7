"""A queue of slots in one column of numbers: what of the retained messages is still to be stored, in order."""

import cython

if not cython.compiled:
    from everlog.base.memory import pointer, u32s

_FEW = 1024  # slots that were taken and are worth no move of the others


class SlotQueue:
    """Slots, first in, first out. Owned by the event loop's thread."""

    def __init__(self) -> None:
        self.added = 0  # since the start
        self._column = bytearray()
        self._first = 0
        self._end = 0

    def __len__(self) -> int:
        return self._end - self._first

    @property
    def size_bytes(self) -> int:
        """The memory of the queue."""
        return len(self._column)

    def add(self, slot: int) -> int:
        """Add a slot."""
        if 4 * self._end == len(self._column):
            self._column.extend(bytes(len(self._column) // 16 * 4 + 256))
        u32s(self._column)[self._end] = slot
        self._end += 1
        self.added += 1
        return 0

    def take(self) -> int:
        """Return the first slot and remove it; -1 if there is none."""
        if self._first == self._end:
            return -1
        slot = u32s(self._column)[self._first]
        self._first += 1
        if self._first > _FEW and 2 * self._first > self._end:
            self._column = self._column[4 * self._first : 4 * self._end]
            self._end -= self._first
            self._first = 0
        return slot

    def translate(self, moved: bytearray, marks: bytearray) -> int:
        """Replace every slot by what `moved` (u32s) has for it, less one, and set its mark."""
        slots = u32s(self._column)
        to = u32s(moved)
        mark = pointer(marks)
        for at in range(self._first, self._end):
            slots[at] = to[slots[at]] - 1
            mark[slots[at]] = 1
        return 0
