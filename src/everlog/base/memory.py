"""The few primitives that are slices in Python and `memcpy` in C.

Never compiled itself: the `.pxd` beside it holds an inline C twin of each, which the kernels cimport. Sources and
targets are `bytes` or `bytearray`; numbers are little-endian, as the log is.
"""

import struct
import sys
from typing import Any

import crc32c

Buffer = bytes | bytearray

assert sys.byteorder == "little", "Everlog's formats are little-endian and mapped as they are"

_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_HIGH32, _HIGH64 = struct.Struct(">I"), struct.Struct(">q")


def pointer(buffer: Any) -> Any:
    """Return the buffer itself; in C, its address, valid until the buffer is resized."""
    return buffer


def pointer_at(buffer: Any, position: int) -> Any:
    """Return the buffer from a position on, to be used like `pointer`."""
    return memoryview(buffer)[position:] if position else buffer


def address(buffer: Buffer) -> int:
    """Return where a buffer begins in memory, as far as that can be told: 0 if not."""
    return 0


def is_shared(buffers: list[bytearray], place: int) -> bool:
    """Return whether anybody but the list refers to one of its buffers."""
    return sys.getrefcount(buffers[place]) > 2  # the list, and the call itself


def u16s(buffer: Buffer) -> memoryview:
    """Return the buffer as a row of 16-bit numbers."""
    return memoryview(buffer).cast("H")


def u32s(buffer: Buffer) -> memoryview:
    """Return the buffer as a row of 32-bit numbers."""
    return memoryview(buffer).cast("I")


def u64s(buffer: Buffer) -> memoryview:
    """Return the buffer as a row of 64-bit numbers."""
    return memoryview(buffer).cast("Q")


def get32(source: Buffer, position: int) -> int:
    """Return the 32-bit number at a byte position."""
    return int(_U32.unpack_from(source, position)[0])


def get64(source: Buffer, position: int) -> int:
    """Return the 64-bit number at a byte position."""
    return int(_U64.unpack_from(source, position)[0])


def put32(target: bytearray, position: int, value: int) -> None:
    """Write a 32-bit number at a byte position."""
    _U32.pack_into(target, position, value)


def put64(target: bytearray, position: int, value: int) -> None:
    """Write a 64-bit number at a byte position."""
    _U64.pack_into(target, position, value)


def put_high32(target: bytearray, position: int, value: int) -> None:
    """Write a 32-bit number at a byte position, its highest byte first."""
    _HIGH32.pack_into(target, position, value)


def put_high64(target: bytearray, position: int, value: int) -> None:
    """Write a 64-bit number, which may be below 0, at a byte position, its highest byte first."""
    _HIGH64.pack_into(target, position, value)


def copy(target: bytearray, target_at: int, source: Buffer, source_at: int, size: int) -> None:
    """Copy bytes; the ranges lie inside their buffers and do not overlap."""
    memoryview(target)[target_at : target_at + size] = source[source_at : source_at + size]


def equal(one: Buffer, one_at: int, other: Buffer, other_at: int, size: int) -> bool:
    """Return whether two ranges hold the same bytes."""
    return one[one_at : one_at + size] == other[other_at : other_at + size]


def hash_of(source: Buffer, start: int, size: int, seed: int) -> int:
    """Return a seeded 32-bit hash; the twins give other values, so only equality may count."""
    return hash((seed, bytes(source[start : start + size]))) & 0xFFFFFFFF


def check_of(source: Buffer, start: int, size: int, before: int) -> int:
    """Return the CRC-32C of a range, continued from `before` (0 at the beginning)."""
    return int(crc32c.crc32c(memoryview(source)[start : start + size], before))


def text_ok(source: Buffer, start: int, size: int) -> bool:
    """Return whether a range is well-formed UTF-8 without surrogates and U+0000, as MQTT demands."""
    try:
        return "\0" not in bytes(source[start : start + size]).decode()
    except UnicodeDecodeError:
        return False


def part(source: Buffer, start: int, end: int) -> bytes:
    """Return a copy of a range, which lies inside the buffer."""
    return bytes(source[start:end])


def look_up(table: dict[Any, Any], key: Any) -> Any:
    """Return what a dictionary, of any class, has of a key, or None."""
    return table.get(key)


def blank(size: int) -> bytearray:
    """Return a writable block that must be filled completely; in C, a `bytes` object that is not cleared."""
    return bytearray(size)


def filled(block: bytearray) -> bytes:
    """Return a block made by `blank`, now filled, as bytes."""
    return bytes(block)


def room(size: int) -> bytearray:
    """Return a bytearray of that size; in C, it is not cleared."""
    return bytearray(size)


def resize(block: bytearray, size: int) -> None:
    """Make a bytearray longer or shorter; in C, what is new in it is not cleared."""
    if size > len(block):
        block.extend(bytes(size - len(block)))
    else:
        del block[size:]


def cleared(size: int) -> bytearray:
    """Return a bytearray of zeros; in C, on large pages if it is large."""
    return bytearray(size)


def advise_large_pages(block: bytearray) -> int:
    """Ask for large pages for what a block has of whole ones; in C only."""
    return 0


def prefetch(source: Buffer, position: int) -> None:
    """Have the memory at a byte position on its way, which is read soon; in C only."""
