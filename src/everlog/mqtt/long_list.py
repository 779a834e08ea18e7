"""A list in a packet that stays bytes: a packet of a mebibyte does not become hundreds of thousands of objects."""

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from everlog.mqtt.primitives import Reader

LONG_BYTES = 4096  # lists of a packet that take more than this stay bytes

E = TypeVar("E")


class LongList(Generic[E]):
    """Well-formed entries, from `begin` to the end of `body`; each is made when its turn comes. Equal to a tuple."""

    __slots__ = ("_read", "begin", "body")

    def __init__(self, body: bytes, begin: int, read: Callable[[Reader], E]) -> None:
        self.body = body
        self.begin = begin
        self._read = read

    @property
    def raw(self) -> bytes:
        """The entries as they were sent."""
        return self.body[self.begin :]

    def read(self, at: int) -> tuple[E, int]:
        """Return the entry that begins at a place of `body`, and where the next one does."""
        reader = Reader(self.body, at, len(self.body))
        return self._read(reader), reader.pos

    def __iter__(self) -> Iterator[E]:
        reader = Reader(self.body, self.begin, len(self.body))
        while reader.pos < reader.end:
            yield self._read(reader)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, LongList):
            return self.raw == other.raw
        return isinstance(other, tuple) and bool(other) and tuple(self) == other

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))
