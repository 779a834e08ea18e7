"""Thrift's compact protocol, as far as the footers and page indexes of Parquet files need it.

A struct is read as a dictionary by field number, without the fields' types; what is written says its types itself.
"""

from collections.abc import Sequence
from typing import Any

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)

_DOUBLE_BYTES = 8
_LONG_FORM = 15  # of a list's length, or of a step between field numbers


class ThriftReader:
    """Reads structs from bytes; `at` is where the next one begins. Raises ValueError or IndexError at nonsense."""

    __slots__ = ("at", "data")

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data = data
        self.at = at

    def struct(self, last: int | None = None) -> dict[int, Any]:
        """Return the values of a struct's fields, up to the field `last`."""
        found: dict[int, Any] = {}
        number = 0
        while number != last and (head := self._byte()) != 0:
            step, kind = head >> 4, head & 0x0F
            number = number + step if step else self._signed()
            found[number] = kind == TRUE if kind in (TRUE, FALSE) else self._value(kind)
        return found

    def _value(self, kind: int) -> Any:
        if kind in (I32, I64, I16):
            return self._signed()
        if kind == BINARY:
            return self._bytes(self._unsigned())
        if kind == STRUCT:
            return self.struct()
        if kind in (LIST, SET):
            return self._list()
        if kind in (BYTE, TRUE, FALSE):  # of a list
            return self._byte()
        if kind == DOUBLE:
            return self._bytes(_DOUBLE_BYTES)
        raise ValueError(f"thrift has no kind {kind} here")

    def _list(self) -> list[Any]:
        head = self._byte()
        count, kind = head >> 4, head & 0x0F
        if count == _LONG_FORM:
            count = self._unsigned()
        return [self._value(kind) for _ in range(count)]

    def _bytes(self, count: int) -> bytes:
        taken = self.data[self.at : self.at + count]
        if len(taken) < count:
            raise ValueError("thrift data ends too early")
        self.at += count
        return taken

    def _byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def _unsigned(self) -> int:
        value = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def _signed(self) -> int:
        value = self._unsigned()
        return (value >> 1) ^ -(value & 1)


def varint(value: int) -> bytes:
    """Return an unsigned number."""
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def integer(value: int) -> bytes:
    """Return a signed number that fits into 64 bits."""
    return varint((value << 1) ^ (value >> 63))


def text(value: bytes) -> bytes:
    """Return a string or binary."""
    return varint(len(value)) + value


def list_of(kind: int, values: Sequence[bytes]) -> bytes:
    """Return a list of values of one kind, each packed already."""
    head = (
        bytes((len(values) << 4 | kind,)) if len(values) < _LONG_FORM else bytes((0xF0 | kind,)) + varint(len(values))
    )
    return head + b"".join(values)


def struct(*fields: tuple[int, int, bytes], behind: int = 0) -> bytes:
    """Return a struct of fields by rising number: number, kind and packed value; or its part behind a field."""
    found = bytearray()
    last = behind
    for number, kind, packed in fields:
        found.append((number - last) << 4 | kind)
        found += packed
        last = number
    found.append(0)
    return bytes(found)
