"""What the log of a cluster asks of the database: tables that hold a shard's tail, and fence whoever is not its owner.

Errors: `Fenced` if another owner has the shard, which is the end for this one; `Unavailable` if the answer is not known
(done, not done, or done and not on the standbys): the same is then to be settled; `StorageError` if it can't be done.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from everlog.cluster.rows import TailRow

TABLES = 8  # of a shard, used in turn


@dataclass(slots=True)
class TableFill:
    """How full one of a shard's tables is."""

    size: int = 0
    rows: int = 0
    end: int = 0  # the offset after its last record


@dataclass(frozen=True, slots=True)
class Takeover:
    """What a new owner finds: no bodies."""

    end: int  # where its first segment begins
    origins: dict[int, int]  # the last message number of each origin
    closed: dict[int, int]  # origins that are closed, with their final numbers
    fills: list[TableFill] = field(default_factory=lambda: [TableFill() for _ in range(TABLES)])
    last_table: int = 0  # that was written to last


class TailTables(Protocol):
    """A shard's tables, as one owner writes them. One call at a time."""

    def take_over(self, epoch: int, probe: int) -> Takeover:
        """Fence all owners before this epoch; the random probe tells a repeated takeover from another's."""

    def insert(self, table: int, rows: Sequence[TailRow]) -> None:
        """Commit rows in one of the tables, all or none."""

    def settle(self, table: int, rows: Sequence[TailRow]) -> None:
        """Commit rows that may be there already, by a transaction that writes in any case."""

    def close_origin(self, origin: int, final: int, epoch: int) -> None:
        """Store the final number of an origin, of which nothing more is taken."""

    def interrupt(self) -> None:
        """Make a call that waits on another thread end soon, in doubt."""

    def close(self) -> None:
        """Let go of everything."""
