"""The port: what a message store offers, and the values that cross it. `LogStore` is the one that writes files."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from everlog.base import MessageColumns, Records, TopicTable
from everlog.topics import Filter

Positions = tuple[int, ...]  # an offset for each shard


@dataclass(frozen=True, slots=True)
class Found:
    """Records of one shard that were asked for: rows `start` to before `stop` of a batch.

    With `rows` (u32s, rising) they are the rows that stand there at those places.
    """

    shard: int
    records: Records
    rows: bytearray | None
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    def row_numbers(self) -> Sequence[int]:
        """The numbers of the rows in the batch."""
        if self.rows is None:
            return range(self.start, self.stop)
        return memoryview(self.rows).cast("I")[self.start : self.stop]


@dataclass(frozen=True, slots=True)
class Lost:
    """Offsets that were asked for and can't be read: no longer retained, or damaged."""

    shard: int
    from_offset: int
    to_offset: int


@dataclass(frozen=True, slots=True)
class ReadResult:
    """What one read found, where the next one goes on, and whether that is the committed end."""

    batches: list[Found]
    positions: Positions
    caught_up: bool
    lost: tuple[Lost, ...] = ()

    @property
    def count(self) -> int:
        """How many records were found."""
        return sum(map(len, self.batches))


@dataclass(frozen=True, slots=True)
class ShardStatistics:
    """A shard in numbers; counts of work are since the store was opened."""

    shard: int
    start: int
    committed: int
    end: int
    bytes: int
    segments: int
    sealed: int
    pending_bytes: int
    damaged: int
    distrusted: int  # sealed segments whose index was found not to fit and is no longer used

    @property
    def records(self) -> int:
        """How many offsets are retained and committed."""
        return self.committed - self.start

    def lag(self, offset: int) -> int:
        """How many committed offsets a reader at this one has before it."""
        return max(0, self.committed - max(offset, self.start))


class Reader(Protocol):
    """Pulls what matches one set of filters, step by step; it keeps what it learned about segments between steps."""

    def read(self, positions: Positions, max_records: int, max_bytes: int) -> ReadResult:
        """Records from these positions on, of all shards; in each shard by rising offset."""

    def read_shard(self, shard: int, offset: int, max_records: int, max_bytes: int) -> ReadResult:
        """So of one shard; the result has one position."""

    def release(self) -> None:
        """Let go of what was kept between steps; the next step learns it again."""


class MessageStore(Protocol):
    """Kept messages by topic filter and position."""

    def shard_of(self, topic: bytes) -> int:
        """The shard of a topic, the same in every process and for ever."""

    def append(
        self,
        columns: MessageColumns,
        start: int,
        stop: int,
        now_us: int,
        table: TopicTable,
        routes: bytearray | None = None,
    ) -> list[tuple[int, int]]:
        """Keep messages `start` to `stop`; for each shard that took any, its number and its end behind them.

        They are committed when `committed()` of those shards has reached those ends. With `routes` (a byte for each
        topic id and QoS, at 4 * id + QoS) only messages whose byte is a shard's number are kept, in that shard.
        """

    def commit(self) -> None:
        """Ask that all that was appended be committed; returns at once."""

    def committed(self) -> Positions:
        """Where each shard's committed records end."""

    def on_commit(self, call: Callable[[int], None]) -> None:
        """Have `call` called with a shard's number, from any thread, after more of it was committed."""

    def reader(self, filters: Iterable[Filter] | None) -> Reader:
        """A reader of what matches any of the filters, each record once; None for everything."""

    def positions_at(self, time_us: int) -> Positions:
        """In each shard the first record that is not older than a time, or the committed end."""

    def statistics(self) -> list[ShardStatistics]:
        """Every shard in numbers."""

    def run_retention(self, now_us: int, keep_from: Positions | None = None) -> None:
        """Remove what is too old or too much, below `keep_from`; who is behind holds nothing back."""

    def close(self) -> None:
        """Commit what was appended and let go of everything; once is enough."""
