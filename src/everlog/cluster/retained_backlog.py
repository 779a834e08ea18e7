"""Retained messages that a broker has told the tables and that they left out: another broker owns their shards.

That one stores them too, a little sooner or later. Until the tables are as far they stay here: if the owner dies
before, the next one has them. Without this, what the dead owner had not stored would be in no table, and the next
owner's offset would say that it is. Used by one thread.
"""

from collections.abc import Collection, Mapping

from everlog.sessions import Changes, RetainedRow
from everlog.store import shard_of


class RetainedBacklog:
    """The last row of each topic that was left out, with up to where its shard was routed by then."""

    def __init__(self, shards: int) -> None:
        self._shards = shards
        self._rows: dict[str, tuple[int, RetainedRow]] = {}  # by topic, with its shard
        # What the transaction under way has found: shards whose rows it writes, and as of where the tables have each.
        self.found: tuple[Collection[int], Mapping[int, int]] = ((), {})
        self._below: dict[str, int] = {}  # topics -> the offset that tables must reach; missing: not known yet

    def __len__(self) -> int:
        return len(self._rows)

    def with_new(self, changes: Changes) -> dict[str, tuple[int, RetainedRow]]:
        """Return the rows to write with a batch, each with its shard: what is held, and what is new."""
        new = {row.topic: (shard_of(row.topic.encode(), self._shards), row) for row in changes.retained}
        return self._rows | new if self._rows else new

    def settle(self, changes: Changes) -> None:
        """Hold what a batch that is committed by now did not write, as long as the tables end below it."""
        (written, ends), self.found = self.found, ((), {})
        for topic, (shard, row) in self.with_new(changes).items():
            if shard in written:
                self._rows.pop(topic, None)
                self._below.pop(topic, None)
            elif self._rows.get(topic, (0, None))[1] is not row:
                self._rows[topic] = shard, row
                self._below.pop(topic, None)
        if changes.routed is not None:
            for topic, (shard, _) in self._rows.items():
                self._below.setdefault(topic, changes.routed[shard])
        for topic, below in list(self._below.items()):
            if ends.get(self._rows[topic][0], 0) >= below:
                del self._rows[topic], self._below[topic]
