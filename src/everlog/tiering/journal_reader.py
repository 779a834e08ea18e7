"""Reads a journal of numbered objects, whoever writes it: the owner itself, the next one, or a job.

Headers that were read are remembered, and the last objects that were read or written, up to a number of bytes.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterator

from everlog.base import StorageError
from everlog.tiering.journal_format import HEADER_BYTES, ObjectHeader, decode_header, decode_records
from everlog.tiering.numbered import NumberedObjects
from everlog.tiering.ports import Bucket

CACHE_BYTES = 16 << 20


class JournalReader:
    """The committed records of one shard; any thread may read."""

    def __init__(self, bucket: Bucket, folder: str, cache_bytes: int = CACHE_BYTES) -> None:
        self.numbers = NumberedObjects(bucket, folder)
        self._cache_bytes = cache_bytes
        self._cached_bytes = 0
        self._cache: OrderedDict[int, bytes] = OrderedDict()
        self._headers: dict[int, ObjectHeader] = {}
        self._lock = threading.Lock()
        self.last: ObjectHeader | None = None  # of the newest object that was seen

    @property
    def start(self) -> int:
        """The first position that can be read, as far as was seen."""
        return self.last.start if self.last else 0

    @property
    def end(self) -> int:
        """The position after the last committed record, as far as was seen."""
        return self.last.end if self.last else 0

    def follow(self) -> ObjectHeader | None:
        """Look for newer objects, and return the header of the newest, or None if there has never been any."""
        number = self.last.number + 1 if self.last else max(self.numbers.find_end() - 1, 0)
        while True:
            data = self.numbers.get_range(number, 0, HEADER_BYTES)
            if data is not None:
                self.see(decode_header(data, number))
                number += 1
            elif self.numbers.is_passed(number):
                number = max(self.numbers.find_end(number) - 1, number)  # the newest is never deleted
            else:
                return self.last

    def see(self, header: ObjectHeader, data: bytes | None = None) -> None:
        """Take in the newest object, of which the header is known, or all of it."""
        with self._lock:
            self._headers[header.number] = self.last = header
            if data is not None:
                self._remember(header.number, data)

    def read(self, position: int, end: int, stream: str | None = None) -> Iterator[tuple[int, str, bytes]]:
        """Yield (position, stream name, effect) from `position` to before `end`, of one stream or all."""
        if position < self.start:
            raise StorageError(f"position {position} was trimmed; the journal begins at {self.start}")
        end = min(end, self.end)
        if position >= end or self.last is None:
            return
        number = self.find(position)
        while position < end:
            for at, name, effect in self.records(number):
                if position <= at < end and (stream is None or name == stream):
                    yield at, name, effect
            position = self.header(number).end
            number += 1

    def records(self, number: int) -> Iterator[tuple[int, str, bytes]]:
        """Yield (position, stream name, effect) of one object, which is checked first."""
        return decode_records(self._object(number), number)

    def known(self, number: int) -> ObjectHeader | None:
        """Return the header of an object if it was read."""
        with self._lock:
            return self._headers.get(number)

    def find(self, position: int) -> int:
        """Return the number of the object that holds a position."""
        if self.last is None:
            raise StorageError("the journal is empty")
        low, high = self.last.start_number, self.last.number + 1
        while high - low > 1:
            middle = (low + high) // 2
            if self.header(middle).base <= position:
                low = middle
            else:
                high = middle
        return low

    def header(self, number: int) -> ObjectHeader:
        """Return the header of an object that is there."""
        with self._lock:
            found = self._headers.get(number)
        if found is None:
            data = self.numbers.get_range(number, 0, HEADER_BYTES)
            if data is None:
                raise self._missing(number)
            found = decode_header(data, number)
            with self._lock:
                self._headers[number] = found
        return found

    def forget_below(self, number: int) -> None:
        """Forget what was read of objects that were trimmed."""
        with self._lock:
            for old in [one for one in self._headers if one < number]:
                del self._headers[old]
            for old in [one for one in self._cache if one < number]:
                self._cached_bytes -= len(self._cache.pop(old))

    def _object(self, number: int) -> bytes:
        with self._lock:
            if number in self._cache:
                self._cache.move_to_end(number)
                return self._cache[number]
        data = self.numbers.get(number)
        if data is None:
            raise self._missing(number)
        with self._lock:
            self._remember(number, data)
        return data

    def _remember(self, number: int, data: bytes) -> None:
        """Keep an object in memory; at the limit the ones that were used longest ago go."""
        if number not in self._cache:
            self._cache[number] = data
            self._cached_bytes += len(data)
        while self._cached_bytes > self._cache_bytes and self._cache:
            self._cached_bytes -= len(self._cache.popitem(last=False)[1])

    def _missing(self, number: int) -> StorageError:
        return StorageError(
            f"{self.numbers.name(number)} is missing",
            hint="it was trimmed meanwhile, or deleted by hand: read on from the journal's start",
        )
