"""What the log asks of others: a disk to write to, a place that commits, and an indexer of topics for the side file."""

from collections.abc import Sequence
from typing import Protocol

from everlog.base import Records, TopicTable

Block = bytes | bytearray | memoryview


class File(Protocol):
    """An open file, read and written at positions; it has no position of its own."""

    def read_at(self, position: int, size: int) -> bytes: ...  # shorter only where the file ends

    def read_once(self, position: int, size: int) -> bytes:
        """Read what nobody is likely to read again soon, so that it need not be kept in memory."""
        ...

    def write_at(
        self, position: int, blocks: Sequence[Block], note: "Note | None" = None, *, padded: bool = False
    ) -> None:
        """Write all of the blocks, one after the other, then the note; raise OSError if any of it fails.

        If they may be `padded`, less than a page of zeros can follow them afterwards.
        """
        ...

    def commit_at(
        self, position: int, blocks: Sequence[Block], note: "Note | None" = None, *, padded: bool = False
    ) -> None:
        """Write as `write_at` does, but sync before the note is written; raise OSError if any of it fails."""
        ...

    def commit_aside(
        self, aside: "Aside", position: int, blocks: Sequence[Block], note: "Note | None", patience_ns: int
    ) -> bool:
        """Commit as `commit_at` does; return whether that was done within `patience_ns`, else `aside.end` ends it."""
        ...

    def allocate(self, position: int, size: int) -> None:
        """Write zeros from a position on, as data are written; raise OSError if there is no room for all."""
        ...

    def sync(self) -> None: ...

    def truncate(self, size: int) -> None: ...

    def size(self) -> int: ...

    def mapped(
        self, size: int
    ) -> memoryview | None: ...  # its first bytes, read-only; None where files can't be mapped

    def close(self) -> None: ...


Note = tuple[File, bytes]  # to be written at the beginning of another file, not synced


class Aside(Protocol):
    """A thread for commits that are not waited for longer than a moment; one at a time."""

    def end(self) -> None: ...  # waits for what is under way, and raises OSError if it fails

    def close(self) -> None: ...


class Lock(Protocol):
    """The lock of the one writer of a directory."""

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

    def aside(self) -> Aside: ...


class CommitTarget(Protocol):
    """A place beside the disk that decides what is committed, such as a database; the disk then has a copy."""

    def commit(self, group: Sequence[tuple[Records, int]]) -> None:
        """Commit batches, each with the base offset of its segment, however long that takes; once is enough.

        Called by the thread that commits, one group at a time. Raises `Fenced` if somebody else owns the shard, or
        `Unavailable` if it was told to stop: then none of them is known to be committed.
        """


class Classes(Protocol):
    """Classes of topics by how long their messages are kept."""

    @property
    def ages_us(self) -> Sequence[int | None]:
        """How long the messages of class 1, 2, … are kept, None for no limit; class 0 is all other topics."""
        ...

    def sort(self, names: Sequence[bytes]) -> bytes:
        """Return the class of each topic."""
        ...


class Indexer(Protocol):
    """The builder of the side file's topic section."""

    def build(self, names: TopicTable, batch_topics: Sequence[memoryview]) -> list[bytes]:
        """Build it, in parts, from the names by topic id and each batch's column of topic ids (format `I`)."""
        ...
