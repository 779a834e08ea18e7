"""Writes a journal of numbered objects as the owner of one epoch, one object at a time, and waits for each.

A **takeover** creates the next number, as a fence that tells the new epoch. The owner before writes exactly that number
next, whenever it wakes, finds it taken and knows that it is replaced: nothing it has not seen committed can follow.
That holds for ever, so a fence is never deleted. A lost reply is settled by creating the same bytes again: they are
there, or another's are. Only the owner trims; where the journal begins is told by each object that it writes, and
objects are deleted only after one that says so was committed.
"""

import time
import uuid
from collections.abc import Callable, Iterator, Sequence

import crc32c

from everlog.base import Fenced, UsageError
from everlog.tiering.journal_format import HEADER_BYTES, ObjectHeader, Record, decode_header, encode_batch
from everlog.tiering.journal_reader import JournalReader
from everlog.tiering.numbered import block_of
from everlog.tiering.ports import Bucket


def wall_clock_us() -> int:
    """Return the time in microseconds since 1970."""
    return time.time_ns() // 1000


class JournalWriter:
    """The owner's end of a journal. Not for use by two threads at once; `Unavailable` means: call the same again."""

    def __init__(self, bucket: Bucket, folder: str, epoch: int, now_us: Callable[[], int] = wall_clock_us) -> None:
        self.epoch = epoch
        self.reader = JournalReader(bucket, folder)
        self._numbers = self.reader.numbers
        self._now_us = now_us
        self._pending: tuple[ObjectHeader, bytes] | None = None  # created, or perhaps: nobody said
        self._start: tuple[int, int] | None = None  # number and position to begin at, once an object has told it
        self._tidied = 0
        self._is_owner = False  # its fence is there; whether it still is the owner shows when it writes

    def take_over(self, least: int = 0) -> None:
        """Create the fence; raise `Fenced` if there is an owner of this epoch or a later one.

        The next position is `least` at least: what is missing below it is told as trimmed.
        """
        while not self._is_owner:
            last = self.reader.follow()
            if last is None or self._pending is None or last.nonce != self._pending[0].nonce:
                self._check(last)
                if self._pending is None or self._pending[0].number != _next(last):
                    self._pending = self._object(last, b"", 0, least)
            header, data = self._pending
            other = self._numbers.create(header.number, data)
            if other is not None:
                self.reader.see(decode_header(other, header.number), other)
            elif not self._numbers.is_passed(header.number):
                self.reader.see(header, data)
                self._is_owner = True
            self._pending = None  # made; or taken; or deleted long ago, and the journal goes on elsewhere

    def write(self, records: Sequence[Record]) -> int:
        """Commit records as one object and return the committed end; raise `Fenced` if another owner has the shard.

        After `Unavailable` the same records must be written again.
        """
        if self._pending is None:
            self._pending = self._object(
                self.reader.last, encode_batch(records, self.end, self._now_us()), len(records)
            )
        header, data = self._pending
        if header.count != len(records):
            raise UsageError("the records that were not confirmed must be written again, and no others")
        other = self._numbers.create(header.number, data)
        if other is not None:
            successor = decode_header(other, header.number)
            raise Fenced(f"epoch {successor.epoch} has replaced epoch {self.epoch} of {self._numbers.folder}")
        self._pending = None
        self.reader.see(header, data)
        return header.end

    def read(self, position: int, end: int, stream: str | None = None) -> Iterator[tuple[int, str, bytes]]:
        """Yield (position, stream name, effect) of committed records."""
        return self.reader.read(position, end, stream)

    def interrupt(self) -> None:
        """Make a call that waits end soon: none waits longer than its bucket does."""

    def close(self) -> None:
        """Let go of everything: there is nothing to let go of."""

    @property
    def start(self) -> int:
        """The first position that can still be read."""
        return self.reader.start

    @property
    def end(self) -> int:
        """The position after the last committed record."""
        return self.reader.end

    def trim(self, below: int) -> None:
        """Let the journal begin at the object that holds a position, from the next object on that is written."""
        last = self.reader.last
        if last is not None and below > last.start:
            number = self.reader.find(min(below, last.end))
            if self._start is None or number > self._start[0]:
                self._start = (number, self.reader.header(number).base)

    def tidy(self) -> int:
        """Delete objects below the start that was told, when a milestone allows it, and return how many."""
        last = self.reader.last
        if last is None or block_of(last.number) == self._tidied:
            return 0
        self._tidied = block_of(last.number)
        deleted = self._numbers.delete_below(last.start_number, last.number, kept_bytes=HEADER_BYTES)
        self.reader.forget_below(last.start_number)
        return deleted

    def _check(self, last: ObjectHeader | None) -> None:
        if last is not None and last.epoch >= self.epoch:
            raise Fenced(
                f"epoch {last.epoch} of {self._numbers.folder} is not before epoch {self.epoch}",
                hint="release the shard and claim it again for a new epoch",
            )

    def _object(self, last: ObjectHeader | None, body: bytes, count: int, least: int = 0) -> tuple[ObjectHeader, bytes]:
        """Return the object that comes after another."""
        end = last.end if last else 0
        start = self._start or ((last.start_number, last.start) if last else (0, 0))
        if least > end:
            start = (_next(last), least)
        header = ObjectHeader(
            epoch=self.epoch,
            number=_next(last),
            base=max(end, least),
            count=count,
            body_bytes=len(body),
            body_check=crc32c.crc32c(body),
            start_number=start[0],
            start=start[1],
            nonce=uuid.uuid4().bytes,
        )
        return header, header.encode() + body


def _next(last: ObjectHeader | None) -> int:
    return last.number + 1 if last else 0
