"""The messages of this broker for one shard that are not known to be committed: numbered, in batches, in order.

Invariant: `batches` and what gathers follow each other without a gap, and end at `last`.
"""

from collections import deque
from typing import NamedTuple

from everlog.base import MessageColumns, PublisherColumn, PublisherName, RecordBuilder, TopicTable

BATCH_BYTES = 256 << 10  # a batch is closed beyond it
WINDOW_BYTES = 4 << 20  # that an owner is sent before it has confirmed anything of it


class NumberedBatch(NamedTuple):
    """Messages with the numbers `first` to `last`."""

    first: int
    last: int
    body: bytes | bytearray


class Unconfirmed:
    """What waits for the owner of one shard to confirm it."""

    def __init__(self) -> None:
        self.last = 0  # the number of the last message
        self.allowed = 0  # up to which number they may leave
        self.owner = 0  # the incarnation that takes them, 0 if nobody does
        self.epoch = 0  # of the last owner that is known
        self.sent = 0  # up to which number the owner was sent them
        self.batches: deque[NumberedBatch] = deque()
        self.held_bytes = 0
        self._open = RecordBuilder(checked=False)
        self._next = 0  # of `batches`: the first one that was not sent
        self._under_way = 0  # bytes of those before it

    @property
    def size_bytes(self) -> int:
        """How much memory it takes."""
        return self.held_bytes + (self._open.size if self._open.count else 0)

    def take(
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
        """Take messages in; return how many there are."""
        taken = self._open.append(columns, start, stop, now_us, table, routes, wanted, publisher)
        self.last += taken
        if self._open.size > BATCH_BYTES:
            self._close()
        return taken

    def allow(self) -> None:
        """Let all that was taken so far leave."""
        self._close()
        self.allowed = self.last

    def _close(self) -> None:
        count = self._open.count
        if count:
            body = self._open.take(0).to_bytes()
            self._open.start_segment()  # so that the next one can be read alone
            self.batches.append(NumberedBatch(self.last - count + 1, self.last, body))
            self.held_bytes += len(body)

    def go_on(self, owner: int, epoch: int, number: int) -> None:
        """Have an owner sent what is behind a number."""
        self.owner, self.epoch, self.sent = owner, epoch, number
        there = [len(one.body) for one in self.batches if one.last <= number]
        self._next, self._under_way = len(there), sum(there)

    def to_send(self) -> list[NumberedBatch]:
        """Return what the owner may be sent now, as far as it has room."""
        found: list[NumberedBatch] = []
        if not self.owner:
            return found
        while self._next < len(self.batches) and self._under_way < WINDOW_BYTES:
            batch = self.batches[self._next]
            if batch.last > self.allowed:
                break
            found.append(batch)
            self._under_way += len(batch.body)
            self._next += 1
            self.sent = batch.last
        return found

    def confirm(self, number: int) -> None:
        """Drop what is committed."""
        while self.batches and self.batches[0].last <= number:
            size = len(self.batches.popleft().body)
            self.held_bytes -= size
            if self._next:
                self._next -= 1
                self._under_way -= size

    def take_all(self, above: int) -> list[NumberedBatch]:
        """Return everything above a number, and hold it no more; a batch may begin below."""
        self._close()
        found = [one for one in self.batches if one.last > above]
        self.batches.clear()
        self.held_bytes = self._next = self._under_way = 0
        return found
