"""A position: a shard in the upper 8 bits and an offset in the lower 56, so that it sorts and fits into 64 bits.

Never compiled itself: kernels cimport the constants from the `.pxd` beside it.
"""

OFFSET_BITS = 56
MAX_OFFSET = (1 << OFFSET_BITS) - 1
NOT_KEPT = 0xFF  # in place of a shard: the message is in no log
RETAINED = 1 << 55  # in the offset of a message in no log: it is retained, and the rest of the offset is its number


def pack_position(shard: int, offset: int) -> int:
    """Return the position of an offset in a shard."""
    return shard << OFFSET_BITS | offset


def unpack_position(position: int) -> tuple[int, int]:
    """Return the shard and the offset of a position."""
    return position >> OFFSET_BITS, position & MAX_OFFSET


def is_retained(position: int) -> bool:
    """Return whether a position is that of a retained message."""
    return position >> OFFSET_BITS == NOT_KEPT and bool(position & RETAINED)
