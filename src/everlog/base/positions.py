"""A position: a shard in the upper 8 bits and an offset in the lower 56, so that it sorts and fits into 64 bits.

Never compiled itself: kernels cimport the constants from the `.pxd` beside it.
"""

OFFSET_BITS = 56
MAX_OFFSET = (1 << OFFSET_BITS) - 1
NOT_KEPT = 0xFF  # in place of a shard: the message is in no log


def pack_position(shard: int, offset: int) -> int:
    """Return the position of an offset in a shard."""
    return shard << OFFSET_BITS | offset


def unpack_position(position: int) -> tuple[int, int]:
    """Return the shard and the offset of a position."""
    return position >> OFFSET_BITS, position & MAX_OFFSET
