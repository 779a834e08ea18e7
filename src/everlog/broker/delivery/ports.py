"""What delivery asks of others: a log to keep messages in, outputs, rules, shared groups, session tables."""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from everlog.base import MessageColumns, PublisherColumn, PublisherName, Records, StorageError, TopicTable
from everlog.sessions import MergedSubscription, Packets, Session
from everlog.store import Positions, Reader, ShardStatistics
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

    @property
    def failure(self) -> StorageError | None: ...  # why it can't be written any more

    @property
    def trouble(self) -> StorageError | None: ...  # why it can't be written just now; it goes on by itself

    def append(
        self,
        columns: MessageColumns,
        start: int,
        stop: int,
        now_us: int,
        table: TopicTable,
        routes: bytearray | None = None,
        wanted: int = 0,
        publisher: PublisherName | PublisherColumn | None = None,
    ) -> int: ...

    def commit(self) -> None: ...  # returns at once; `on_commit` tells when it is done

    def commit_here(self, until_ns: int = 0) -> bool:
        """Commit at once if that is quick, in any case until then, else as `commit` does; return whether it is done."""
        ...

    def read(self, offset: int, max_bytes: int) -> list[Records]: ...

    def bytes_from(self, offset: int) -> int: ...  # about how much of the disk the records from an offset on take


class Log(Protocol):
    """All shards, and which topic belongs to which."""

    @property
    def shards(self) -> Sequence[Shard]: ...

    def shard_of(self, topic: bytes) -> int: ...

    def reader(self, filters: Iterable[Filter] | None, *, publishers: bool = False) -> Reader: ...

    def positions_at(self, time_us: int) -> Positions: ...  # the first record of each shard that is not older

    def statistics(self) -> Sequence[ShardStatistics]: ...

    def on_commit(self, call: Callable[[int], None]) -> None: ...  # called with the shard's number, from any thread

    def on_failure(self, call: Callable[[int, StorageError], None]) -> None: ...  # so too, when a shard goes read-only

    def on_trouble(self, call: Callable[[int, StorageError | None], None]) -> None: ...  # with None: it is over


class MayRead(Protocol):
    """The rules of who may read what, as they are now."""

    def __call__(self, user: str | None, client_id: str, topic: str) -> bool: ...


class Sink(Protocol):
    """Where a session's bytes go."""

    def write(self, data: Packets) -> None: ...

    def answer(self, acks: bytes, pubacks: int) -> None: ...  # what had to wait for a commit


class SharedTarget(Protocol):
    """A shared group, as a part of an audience."""

    def take(
        self, records: Records, rows: bytearray | None, start: int, stop: int, shard: int, now_us: int
    ) -> None: ...

    def merged(self, session: Session) -> MergedSubscription | None: ...  # how a member gets its messages


class SharedGroups(Protocol):
    """All shared groups."""

    def target(self, name: str, pattern: str) -> SharedTarget: ...

    def acked(self, session: Session) -> None: ...  # a member has acknowledged something

    def pump(self, session: Session) -> None: ...  # a member may have room


class WriteBehind(Protocol):
    """The session tables, written a little later than what they store."""

    moved: set[Session]  # stored sessions that were handed something

    def when_durable(self, call: Callable[[], None]) -> None: ...  # when all that was marked so far is on disk


class Forwarder(Protocol):
    """The way to shards that other brokers own. Whatever this broker appends or forwards to a shard has a number there,
    counted from 1 on."""

    @property
    def numbers(self) -> list[int]: ...  # by shard, of the last message that was appended or forwarded

    @property
    def confirmed(self) -> list[int]: ...  # by shard, up to which number messages are known to be committed

    def forward(
        self,
        columns: MessageColumns,
        start: int,
        stop: int,
        now_us: int,
        table: TopicTable,
        routes: bytearray,
        wanted: int,
        publisher: PublisherName | PublisherColumn | None,
    ) -> int:
        """Take the messages of a shard, which leave with the next `send`, and keep them; return how many there are."""
        ...

    def share(
        self,
        columns: MessageColumns,
        start: int,
        stop: int,
        now_us: int,
        table: TopicTable,
        routes: bytearray | None,
    ) -> None: ...  # those that nothing keeps, with all other brokers as far as these can take them

    def pending_bytes(self, shard: int) -> int: ...  # of messages that are not known to be committed

    def send(self) -> None: ...  # what was forwarded may leave from now on: packet ids that belong to it are stored

    def retain(self, records: Records, first: int) -> None: ...  # those of a routed batch, from a row on

    def committed(self) -> None: ...  # shards may have committed something since the last call
