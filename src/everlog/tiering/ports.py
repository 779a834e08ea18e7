"""The bucket: named objects that are created once, read, found by prefix and deleted.

Errors are typed by blame: `Unavailable` if the bucket can't be reached just now and the call may be made again,
`StorageError` if it refuses or fails for good, `UsageError` if it can't do what is needed. After `Unavailable` a write
may have been made, may not, or may still be made later.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object as a listing tells of it."""

    name: str
    size: int
    modified_s: float  # seconds since 1970, by the bucket's clock


class Bucket(Protocol):
    """Objects by name; names are parts of letters, digits, `.`, `-` and `_` with `/` between them."""

    def create(self, name: str, data: bytes) -> bytes | None:
        """Make an object unless there is one: return None if this call made it, or the content of the other one.

        Data must be unlike that of every other writer, such as by a random number in it: an object with the same
        content counts as made by this call, since that is how a lost reply is settled. Durable when it returns.
        """

    def put(self, name: str, data: bytes | memoryview) -> None:
        """Make or replace an object, whole or not at all; durable when it returns."""

    def put_file(self, name: str, path: str) -> None:
        """Make or replace an object from a local file, which may be large."""

    def get(self, name: str) -> bytes | None:
        """Return an object's content, or None if there is none."""

    def get_range(self, name: str, start: int, size: int) -> bytes | None:
        """Return up to `size` bytes of an object, fewer only at its end, or None if there is none."""

    def find(self, prefix: str) -> Iterator[StoredObject]:
        """Yield the objects in the folder `prefix` and below it. A listing may be old: it proves nothing."""

    def delete(self, name: str) -> None:
        """Delete an object; one that is not there is deleted already."""
