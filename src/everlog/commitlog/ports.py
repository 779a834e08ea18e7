"""What the log asks of others: a disk to write to, and an indexer of topics for the side file."""

from collections.abc import Sequence
from typing import Protocol

Block = bytes | bytearray


class File(Protocol):
    """An open file. Reads and writes are at positions; nothing is shared but the bytes."""

    def read_at(self, position: int, size: int) -> bytes: ...  # shorter only where the file ends

    def read_once(self, position: int, size: int) -> bytes:
        """As `read_at`, when nobody is likely to read the same soon: need not be kept in memory for it."""
        ...

    def write_at(self, position: int, blocks: Sequence[Block], note: "Note | None" = None) -> None:
        """All of the blocks, one behind the other, then the note; or OSError."""
        ...

    def commit_at(
        self, position: int, blocks: Sequence[Block], note: "Note | None" = None, *, padded: bool = False
    ) -> None:
        """All of the blocks, then `sync`, then, and only then, the note; or OSError.

        If they may be `padded`, zeros can stand behind them afterwards, less than a page.
        """
        ...

    def allocate(self, position: int, size: int) -> None:
        """Zeros from a position on, written as data are; OSError when there is no room for all of them."""
        ...

    def sync(self) -> None: ...

    def truncate(self, size: int) -> None: ...

    def size(self) -> int: ...

    def mapped(
        self, size: int
    ) -> memoryview | None: ...  # its first bytes, read-only; None where files can't be mapped

    def close(self) -> None: ...


Note = tuple[File, bytes]  # to be written at the beginning of another file, not synced


class Lock(Protocol):
    """Held by the one writer of a directory."""

    def release(self) -> None: ...


class Disk(Protocol):
    """The one seam between the log and files. Errors are OSError; paths are strings with `/`."""

    def make_directory(self, path: str) -> None: ...  # durable when it returns

    def list(self, directory: str) -> list[str]: ...

    def open(self, path: str, *, write: bool = False) -> File: ...

    def create(self, path: str) -> File: ...  # a new file, open for writing; FileExistsError

    def rename(self, old: str, new: str) -> None: ...  # over an existing file, atomically

    def unlink(self, path: str) -> None: ...

    def sync_directory(self, directory: str) -> None: ...

    def lock(self, path: str) -> Lock: ...  # StorageError that names the holder


class Classes(Protocol):
    """Sorts topics by how long their messages are kept."""

    @property
    def ages_us(self) -> Sequence[int | None]:
        """How long those of class 1, 2, … are kept, None for ever; class 0 is all other topics."""
        ...

    def sort(self, names: Sequence[bytes]) -> bytes:
        """For each topic its class."""
        ...


class Indexer(Protocol):
    """Builds the side file's topic section from a sealed segment."""

    def build(self, names: Sequence[bytes], batch_topics: Sequence[memoryview]) -> bytes:
        """`names` by topic id; for each batch of the batch index its column of topic ids (format `I`)."""
        ...
