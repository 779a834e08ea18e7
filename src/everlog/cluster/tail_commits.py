"""Commits rows of shards in their tails, those of several in one transaction, however long that takes.

A commit that was not confirmed is in doubt, for all shards in it: the rows may be there, or not, or be there and on no
standby. From then on the same rows are settled, by transactions that write, until one is confirmed; a shard that is
found to be another's, or is let go of here, leaves the others to it. While it lasts the logs are told of trouble.
"""

import random
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from everlog.base import EverlogError
from everlog.cluster.ports import Outcome, ShardRows, TailTables
from everlog.cluster.postgres_tail import replaced
from everlog.cluster.rows import TailRow

if TYPE_CHECKING:
    from everlog.cluster.shard_target import ShardTarget

TRANSACTION_BYTES = 4 << 20  # of rows in one transaction, unless a single one has more
BUSY_S = 0.005  # before a shard is tried again that was being taken over
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 2.0


class Part:
    """What one shard has in a transaction."""

    def __init__(self, target: "ShardTarget", table: int, rows: list[TailRow], size: int) -> None:
        self.target = target
        self.rows = ShardRows(target.shard, target.epoch, table, rows)
        self.size = size
        self.is_in_doubt = False  # it may be there, or not, or be there and on no standby
        self.is_committed = False
        self.refusal: EverlogError | None = None  # why it never will be, as far as this owner knows


class TailCommits:
    """The tables of shards, and how rows get there. One thread commits; any may let go of a shard."""

    def __init__(self, tables: TailTables, pause: Callable[[int], float] | None = None) -> None:
        self.tables = tables
        self.lock = threading.RLock()  # of the next, for who need not wait: it costs a third of a condition's methods
        self.changed = threading.Condition(self.lock)  # a shard was let go of, or has room in its tail again
        self.wake: Callable[[], None] = lambda: None  # wakes the thread that commits, if it waits for neither
        self.filled: Callable[[], None] = lambda: None  # called when a table of a shard's tail is full
        self._pause = pause or _pause_s
        self._failures = 0  # in succession

    def commit(self, parts: Sequence[Part]) -> int:
        """Try once to commit rows of different shards in one transaction.

        A part is committed then, or refused, or is to be among the parts of the next call. While some are in doubt it
        is these alone that are settled. A failure is followed by a rest.
        """
        left: list[Part] = []
        doubted: list[Part] = []
        for part in parts:
            if part.target.is_stopped:
                part.refusal = part.target.closed()
            if part.refusal is None:
                left.append(part)
                if part.is_in_doubt:
                    doubted.append(part)
        left = doubted or left
        if not left:
            return 0
        asked: list[ShardRows] = []
        for part in left:
            part.target.begin()
            asked.append(part.rows)
        call = self.tables.settle if doubted else self.tables.insert
        try:
            outcomes = call(asked)
        except EverlogError as error:
            for part in left:
                part.is_in_doubt = True
                part.target.doubt(error)
            self.rest(parts, self._pause(self._failures))
            self._failures += 1
            return 0
        self._failures = 0
        for part, outcome in zip(left, outcomes, strict=True):
            if outcome is Outcome.COMMITTED:
                part.is_committed = True
                part.target.committed(part)
            elif outcome is Outcome.FENCED:
                part.target.end_wait()
                part.refusal = replaced(part.target.shard, part.target.epoch)
        return 0

    def rest(self, parts: Sequence[Part], seconds: float) -> None:
        """Wait for a while, or until one of the shards is let go of."""
        with self.changed:
            self.changed.wait_for(lambda: any(part.target.is_stopped for part in parts), seconds)

    def pause(self, attempt: int, is_over: Callable[[], bool]) -> None:
        """Wait before something is tried again, or until nobody wants it any more."""
        with self.changed:
            self.changed.wait_for(is_over, self._pause(attempt))

    def tell(self) -> None:
        """Have looked again at what changed."""
        with self.changed:
            self.changed.notify_all()
        self.wake()

    def close(self) -> None:
        """Let go of the tables, once nobody commits."""
        self.tables.close()


def _pause_s(attempt: int) -> float:
    """Return how long to wait before the next attempt: longer each time, and never the same for two brokers."""
    return min(_FIRST_PAUSE_S * float(1 << min(attempt, 10)), _LONGEST_PAUSE_S) * random.uniform(0.5, 1.0)
