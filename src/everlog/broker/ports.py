"""What the broker asks of others: a log to keep messages in, and a connection to send to."""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from everlog.base import MessageColumns, Records, StorageError, TopicTable
from everlog.store import Positions, Reader
from everlog.topics import Filter


class Shard(Protocol):
    """One sequence of kept messages; readers see only what is committed."""

    @property
    def start(self) -> int: ...

    @property
    def end(self) -> int: ...

    @property
    def committed(self) -> int: ...

    @property
    def pending_bytes(self) -> int: ...  # appended and not yet written

    def append(
        self,
        columns: MessageColumns,
        start: int,
        stop: int,
        now_us: int,
        table: TopicTable,
        routes: bytearray | None = None,
        wanted: int = 0,
    ) -> int: ...

    def commit(self) -> None: ...  # returns at once; `on_commit` tells when it is done

    def commit_here(self) -> bool: ...  # at once if that is quick, else as `commit`; whether it is done

    def read(self, offset: int, max_bytes: int) -> list[Records]: ...


class Log(Protocol):
    """All shards, and which topic belongs to which."""

    @property
    def shards(self) -> Sequence[Shard]: ...

    def shard_of(self, topic: bytes) -> int: ...

    def reader(self, filters: Iterable[Filter] | None) -> Reader: ...

    def positions_at(self, time_us: int) -> Positions: ...  # the first record of each shard that is not older

    def on_commit(self, call: Callable[[int], None]) -> None: ...  # called with the shard's number, from any thread

    def on_failure(self, call: Callable[[int, StorageError], None]) -> None: ...  # so too, when a shard goes read-only


class Sink(Protocol):
    """Where a session's bytes go; `held` counts answers that wait for a commit."""

    held: int

    def write(self, data: bytes) -> None: ...

    def answer(self, data: bytes, count: int) -> None: ...
