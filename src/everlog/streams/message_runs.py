"""Appends that a stream's file does not have yet, kept as the blocks that they become (`message_blocks`).

Most writes append a small value, and nobody asks for it before it is in the file. As an object each it would be
touched again when it is written, long after it has left the processor's caches; here its bytes are copied once, behind
those of the message before it.
"""

from typing import Any

import cython

from everlog.streams.message_blocks import BLOCK_BYTES, BLOCK_ROWS

if not cython.compiled:
    from everlog.base.memory import Buffer, copy, get32, part, pointer, put32, resize, room
    from everlog.streams.fresh import appended

RUN_ROW_BYTES = 32  # about what a message takes in memory beside its value
_ROWS, _BYTES = BLOCK_ROWS, BLOCK_BYTES
_ABSENT = 0xFFFF_FFFF  # the size of a value that is absent
_MOST = 0xFFFF_FFFF  # that the messages of a block are apart in position and time
_HEAD = 16
_FIRST_HEADS = 8 * _HEAD
_NOTHING: list[Any] = []


class MessageRun:
    """Messages of one stream, one behind the other, at most what fits into a block.

    To those who look at pending records it is one, that of its last message; none of its effects need a closer look.
    """

    def __init__(self, epoch: int, previous: int, seq: int, messages: int, size: int) -> None:
        self.epoch = epoch
        self.previous = previous  # the position of the stream's change before the first one
        self.seq = seq  # of the first one
        self.position = -1  # of the first one
        self.first_us = 0
        self.last_position = -1
        self.time_us = 0  # of the last one
        self.count = 0
        self.messages = messages  # of the stream, after the last one
        self.bytes = size  # of the stream, after the last one
        self.value_bytes = 0
        self._heads = room(_FIRST_HEADS)  # as in a block, but for where values begin: that is among the values here
        self._values = room(256)

    @property
    def last_seq(self) -> int:
        """As of a record."""
        return self.seq + self.count - 1

    @property
    def held_bytes(self) -> int:
        """How many bytes it counts for the limits."""
        return self.value_bytes + RUN_ROW_BYTES * self.count

    @property
    def effects(self) -> list[Any]:
        """As of a record: none that does more than append a message."""
        return _NOTHING

    @property
    def message_id(self) -> None:
        """As of a record: none of the messages has one."""
        return None

    def takes(self, epoch: int, position: int, time_us: int, size: int) -> bool:
        """Return whether there is room for one more message, of so many bytes."""
        if self.count == 0:
            return self.epoch == epoch
        if self.count == _ROWS or self.epoch != epoch:
            return False
        if size > 0 and self.value_bytes + size > _BYTES:
            return False
        return position - self.position <= _MOST and time_us - self.first_us <= _MOST

    def add(self, position: int, time_us: int, data: bytes, at: int, size: int) -> int:
        """Add a message, for which there is room, and return what it takes in memory.

        Its value is at a place in some bytes; a size of -1 is an absent one.
        """
        return self._add(position, time_us, pointer(data), at, size)

    def _add(self, position: int, time_us: int, source: "Buffer", at: int, size: int) -> int:
        length = 0 if size < 0 else size
        head = _HEAD * self.count
        if head == len(self._heads):
            resize(self._heads, 4 * head)
        if self.value_bytes + length > len(self._values):
            wanted = self.value_bytes + length
            resize(self._values, max(wanted, min(4 * wanted, _BYTES)))
        if self.count == 0:
            self.position = position
            self.first_us = time_us
        heads = pointer(self._heads)
        put32(heads, head, position - self.position)
        put32(heads, head + 4, time_us - self.first_us)
        put32(heads, head + 8, self.value_bytes)
        if size < 0:
            put32(heads, head + 12, _ABSENT)
        else:
            put32(heads, head + 12, length)
            copy(pointer(self._values), self.value_bytes, source, at, length)
        self.value_bytes += length
        self.count += 1
        self.last_position = position
        self.time_us = time_us
        self.messages += 1
        self.bytes += length
        return length + RUN_ROW_BYTES

    def cut(self, position: int) -> "MessageRun | None":
        """Move the messages at or above a position, which is above that of the first, to a run of their own."""
        if self.last_position < position:
            return None
        heads = pointer(self._heads)
        kept = self.count
        size = self.value_bytes
        while kept > 1 and self.position + get32(heads, _HEAD * (kept - 1)) >= position:
            kept -= 1
            size = get32(heads, _HEAD * kept + 8)
        moved = self.count - kept
        last = _HEAD * (kept - 1)
        before = self.position + get32(heads, last)
        rest = MessageRun(
            self.epoch, before, self.seq + kept, self.messages - moved, self.bytes - self.value_bytes + size
        )
        for k in range(kept, self.count):
            head = _HEAD * k
            length = get32(heads, head + 12)
            rest._add(
                self.position + get32(heads, head), self.first_us + get32(heads, head + 4), pointer(self._values),
                get32(heads, head + 8), -1 if length == _ABSENT else length,
            )  # fmt: skip
        self.messages -= moved
        self.bytes -= self.value_bytes - size
        self.value_bytes = size
        self.count = kept
        self.last_position = before
        self.time_us = self.first_us + get32(heads, last + 4)
        return rest

    def block(self) -> tuple[Any, ...]:
        """Return the messages as `pack_block` does."""
        count = self.count
        behind = _HEAD * count
        block = room(behind + self.value_bytes)
        out = pointer(block)
        copy(out, 0, pointer(self._heads), 0, behind)
        for k in range(count):
            put32(out, _HEAD * k + 8, get32(out, _HEAD * k + 8) + behind)
        copy(out, behind, pointer(self._values), 0, self.value_bytes)
        return self.seq, self.seq + count - 1, self.position, self.first_us, self.value_bytes, block

    def records(self) -> list[Any]:
        """Return the messages as records, each with its position."""
        found: list[Any] = []
        heads = pointer(self._heads)
        previous = self.previous
        messages = self.messages - self.count
        size = self.bytes - self.value_bytes
        for k in range(self.count):
            head = _HEAD * k
            position = self.position + get32(heads, head)
            begin = get32(heads, head + 8)
            length = get32(heads, head + 12)
            value = None
            if length != _ABSENT:
                value = part(pointer(self._values), begin, begin + length)
                size += length
            at_us = self.first_us + get32(heads, head + 4)
            messages += 1
            made = appended(
                position, at_us, self.epoch, previous, self.seq + k, messages, size, value, None, None
            )  # fmt: skip
            found.append((position, made))
            previous = position
        return found


def unpacked(records: list[Any]) -> list[Any]:
    """Return pairs of position and record with the messages of runs one by one."""
    found: list[Any] = []
    for one in records:
        if isinstance(one[1], MessageRun):
            found += one[1].records()
        else:
            found.append(one)
    return found
