"""Blocks that large batches are made in, used again once nobody reads them: no new memory for each batch.

A block may hold several batches one behind another. The pool has a reference to each of its blocks, as has every batch
in it; one that only the pool refers to is free. So nobody has to give a block back, and whoever holds a batch, a tail
or a slow reader, holds its block. Not for use by two threads at once.
"""

import cython

if not cython.compiled:
    from everlog.base.memory import is_shared, room

_MARGIN_BYTES = 8192  # of a block: to begin at a place in a page, and for columns and names behind payloads
_FORGET_AFTER = 256  # small batches without a large one, before a free block is let go


class BlockPool:
    """At most `most` blocks of one size; what does not fit into them has a block that is used once.

    Batches with at least `least_bytes` of payloads are worth a block. In a file, `gap_bytes` stand between two batches.
    """

    def __init__(self, block_bytes: int, most: int, least_bytes: int, gap_bytes: int = 0) -> None:
        self.block_bytes = block_bytes + _MARGIN_BYTES
        self.least_bytes = least_bytes
        self.gap_bytes = gap_bytes
        self.most = most
        self._blocks: list[bytearray] = []
        self._next = 0  # where the block was that was taken last, and one
        self._small = 0  # small batches since then

    @property
    def held_bytes(self) -> int:
        """How much memory the pool's blocks take, used and free."""
        return len(self._blocks) * self.block_bytes

    def take(self, size: int) -> bytearray:
        """Return a block with room for a batch of about that size: a free one, or a new one."""
        self._small = 0
        if size + _MARGIN_BYTES > self.block_bytes:
            return room(size + _MARGIN_BYTES)
        count = len(self._blocks)
        for k in range(count):
            place = (self._next + k) % count  # the one that was taken first is the likeliest to be free
            if not is_shared(self._blocks, place):
                self._next = place + 1
                return self._blocks[place]
        block = room(self.block_bytes)
        if count < self.most:
            self._blocks.append(block)
            self._next = count + 1
        return block

    def made_small(self) -> int:
        """Note that a batch was made without a block; after many of them, let a free block go."""
        self._small += 1
        if self._small >= _FORGET_AFTER:
            self._small = 0
            for place in range(len(self._blocks)):
                if not is_shared(self._blocks, place):
                    del self._blocks[place]
                    break
        return 0
