"""The bytes of retained messages: chunks that are filled from end to end, and tidied when they are mostly gone.

A message is where it was put until it is replaced or its chunk is tidied: whoever holds its place is asked for the
number that the message is stored with, and told the new place. A place is the chunk's number << 32 | where in it.
An entry: number and time (u64s), bytes of properties and of payload, flags (u32s), the properties, the payload.
Owned by the event loop's thread.
"""

import cython

if not cython.compiled:
    from everlog.base.memory import Buffer, copy, get32, pointer, put32, put64, resize, room, u32s
    from everlog.base.records import property_size

ENTRY_BYTES = 28
AT_MASK = 0xFFFFFFFF  # of a place
_CHUNK_BYTES = 1 << 20
_FIRST_BYTES = 4096
_OWN_BYTES = _CHUNK_BYTES // 4  # a larger message has a chunk of its own


class RetainedChunks:
    """Room for messages, by place."""

    def __init__(self) -> None:
        self.chunks: list[bytearray | None] = []
        self.size_bytes = 0  # the memory of all chunks
        self.loose: list[int] = []  # chunks that are mostly gone, to be tidied
        self._alive = bytearray()  # by chunk, the bytes of messages that are there
        self._free: list[int] = []  # numbers of chunks that there are no more
        self._open = -1  # the chunk that is filled
        self._used = 0  # of it

    def put(self, number: int, time_us: int, property_bytes: int, payload_bytes: int, flags: int) -> int:
        """Make room for a message, write what is known of it and return its place."""
        size = ENTRY_BYTES + property_bytes + payload_bytes
        if size > _OWN_BYTES:
            chunk = self._begin(size)
            at = 0
        else:
            if self._open < 0 or self._used + size > _CHUNK_BYTES:
                self._close()
                self._open = self._begin(_FIRST_BYTES if len(self.chunks) == 0 else _CHUNK_BYTES)
                self._used = 0
            chunk = self._open
            at = self._used
            self._used += size
            self._grow(chunk)
        u32s(self._alive)[chunk] += size
        place = chunk << 32 | at
        self.write_head(place, number, time_us, property_bytes, payload_bytes, flags)
        return place

    def write_head(
        self, place: int, number: int, time_us: int, property_bytes: int, payload_bytes: int, flags: int
    ) -> int:
        """Write what is known of a message besides its properties and payload."""
        out = pointer(self.chunks[place >> 32])
        at = place & AT_MASK
        put64(out, at, number)
        put64(out, at + 8, time_us)
        put32(out, at + 16, property_bytes)
        put32(out, at + 20, payload_bytes)
        put32(out, at + 24, flags)
        return 0

    def write_over(
        self, place: int, source: Buffer, begin: int, middle: int, end: int, flags: int, time_us: int
    ) -> bool:
        """Replace a message by one whose properties and payload have the same sizes; return False if they have not."""
        out = pointer(self.chunks[place >> 32])
        at = place & AT_MASK
        if get32(out, at + 16) != middle - begin or get32(out, at + 20) != end - middle:
            return False
        put64(out, at + 8, time_us)
        put32(out, at + 24, flags)
        copy(out, at + ENTRY_BYTES, source, begin, end - begin)
        return True

    def entry_size(self, place: int) -> int:
        """Return how many bytes a message takes."""
        raw = pointer(self.chunks[place >> 32])
        at = place & AT_MASK
        return ENTRY_BYTES + get32(raw, at + 16) + get32(raw, at + 20)

    def drop(self, place: int) -> int:
        """Let go of a message."""
        chunk = place >> 32
        alive = u32s(self._alive)
        alive[chunk] -= self.entry_size(place)
        if chunk != self._open:
            self._look_at(chunk)
        return 0

    def used(self, chunk: int) -> int:
        """Return where the entries of a chunk end."""
        return self._used if chunk == self._open else len(self.chunks[chunk])  # type: ignore[arg-type]

    def take_loose(self) -> int:
        """Return a chunk to tidy, all of which is to be put elsewhere before `drop_chunk`; -1 if there is none."""
        while len(self.loose):
            chunk = self.loose.pop()
            if self.chunks[chunk] is not None and chunk != self._open:
                return chunk
        return -1

    def drop_chunk(self, chunk: int) -> int:
        """Give a chunk back, of which nothing is left."""
        self.size_bytes -= len(self.chunks[chunk])  # type: ignore[arg-type]
        self.chunks[chunk] = None
        self._free.append(chunk)
        u32s(self._alive)[chunk] = 0
        return 0

    def _look_at(self, chunk: int) -> int:
        """Note what is to become of a chunk that is full or has lost something."""
        size = len(self.chunks[chunk])  # type: ignore[arg-type]
        alive = u32s(self._alive)[chunk]
        if alive == 0:
            self.drop_chunk(chunk)
        elif 2 * alive < size:
            self.loose.append(chunk)
        return 0

    def _close(self) -> int:
        """End the open chunk: what it has no use for is given back."""
        if self._open >= 0:
            chunk = self._open
            block = self.chunks[chunk]
            assert block is not None
            self.size_bytes -= len(block) - self._used
            resize(block, self._used)
            self._open = -1
            self._look_at(chunk)
        return 0

    def _begin(self, size: int) -> int:
        """Return the number of a new chunk."""
        self.size_bytes += size
        if len(self._free):
            chunk = self._free.pop()
            self.chunks[chunk] = room(size)
            return chunk
        self.chunks.append(room(size))
        self._alive.extend(bytes(4))
        return len(self.chunks) - 1

    def _grow(self, chunk: int) -> int:
        block = self.chunks[chunk]
        assert block is not None
        if self._used > len(block):
            size = len(block)
            while size < self._used:
                size *= 2
            self.size_bytes += size - len(block)
            resize(block, size)
        return 0


def copy_without_alias(out: bytearray, at: int, source: Buffer, begin: int, middle: int) -> int:
    """Copy a property section, checked when parsed, without its topic alias."""
    position = begin
    while position < middle:
        size = property_size(source, position)
        if source[position] != 0x23:  # topic alias
            copy(out, at, source, position, size)
            at += size
        position += size
    return 0
