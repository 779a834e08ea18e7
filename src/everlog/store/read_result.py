"""What one read of a store found, and the port that a reader fills."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from everlog.base import Records

Positions = tuple[int, ...]  # an offset for each shard


@dataclass(frozen=True, slots=True)
class Found:
    """Records of one shard that a read found: rows `start` to before `stop` of a batch.

    With `rows` (u32s, rising), `start` and `stop` count places in `rows`, which holds the numbers of the rows.
    """

    shard: int
    records: Records
    rows: bytearray | None
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    def row_numbers(self) -> Sequence[int]:
        """Return the numbers of the rows in the batch."""
        if self.rows is None:
            return range(self.start, self.stop)
        return memoryview(self.rows).cast("I")[self.start : self.stop]

    def place_of(self, offset: int) -> int:
        """Return the place of the first row that is not below an offset; `stop` if all are."""
        return self.start + bisect_left(self.row_numbers(), offset, key=self.records.offset)


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


class Reader(Protocol):
    """What reads the records that match one set of filters, step by step, and keeps what it learned between steps."""

    def read_shard(self, shard: int, offset: int, max_records: int, max_bytes: int) -> ReadResult:
        """Return records of one shard from an offset on, by rising offset; the result has one position."""

    def release(self) -> None:
        """Let go of what was kept between steps; the next step learns it again."""
