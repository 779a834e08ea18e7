"""The two small blocks that every commit writes with its batches: the frame header and the mark, with their checks.

Their layout is in `docs/formats/segment.md`. Kernels, because a commit of a single message makes one of each.
"""

import cython

if not cython.compiled:
    from everlog.base.memory import blank, check_of, filled, pointer, put32, put64


def frame_bytes(position: int, base_offset: int, size: int, count: int, salted: int) -> bytes:
    """Return a frame; `count` has the frame's flag in its highest bit, `salted` is the check of the salt."""
    block = blank(32)
    out = pointer(block)
    put32(out, 0, 0x464C5645)  # EVLF
    put64(out, 8, position)
    put64(out, 16, base_offset)
    put32(out, 24, size)
    put32(out, 28, count)
    put32(out, 4, check_of(out, 8, 24, salted))
    return filled(block)


def mark_bytes(
    sequence: int, committed: int, segment: int, position: int, layout: int, reserved: int, salt: int, synced: bool
) -> bytes:
    """Return one slot of the mark."""
    block = blank(72)
    out = pointer(block)
    put32(out, 0, 0x4D4C5645)  # EVLM
    put32(out, 4, 0x10001 if synced else 1)  # the version, then the flag
    put64(out, 8, sequence)
    put64(out, 16, committed)
    put64(out, 24, segment)
    put64(out, 32, position)
    put64(out, 40, layout)
    put64(out, 48, reserved)
    put64(out, 56, salt)
    put32(out, 64, 0)
    put32(out, 68, check_of(out, 0, 68, 0))
    return filled(block)
