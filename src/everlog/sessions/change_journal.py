# cython: boundscheck=True, wraparound=True, cdivision=False
"""The journal of the session tables: changes are durable here before the tables have them.

One file of a fixed size, written from its beginning again when the tables have all of it, which
`docs/formats/session-tables.md` describes. Records are numbered one after the other; a number is never given twice, so
what is left of earlier ones is told from what counts. One thread at a time writes; a record that was left under way is
ended before anything else.
Invariant: after a failed write or sync nothing more is written to the same file.
"""

import contextlib
import os
import struct
from collections.abc import Iterator

import msgspec
from crc32c import crc32c

from everlog.base import StorageError
from everlog.commitlog import Disk, File
from everlog.sessions.tables import Changes

MAGIC = b"EVSJ"
VERSION = 1
FILE_BYTES = 4 << 20
RECORD_BYTES = 256 << 10  # of one record; larger ones are for the tables themselves
NEVER_GIVEN = 1 << 20  # numbers that a crash may have left behind what was read

_START = struct.Struct("<4sI8x")
_SIZES = struct.Struct("<II")  # of the payload, and the CRC of all that follows
_NUMBERS = struct.Struct("<QQ")
_HEAD_BYTES = _SIZES.size + _NUMBERS.size
_DAMAGED = "restore it from a backup, or move it away and start without what was stored last"


_decode = msgspec.msgpack.Decoder(Changes).decode
pack_changes = msgspec.msgpack.Encoder().encode  # the payload of a record


def unpack_changes(payload: bytes) -> Changes:
    """Return the changes of a record."""
    try:
        return _decode(payload)
    except msgspec.DecodeError as error:
        raise StorageError(f"changes of session tables can't be read: {error}", hint=_DAMAGED) from error


def journal_path(path: str | os.PathLike[str]) -> str:
    """Return the path of the journal that belongs to a session file."""
    return f"{os.path.splitext(path)[0]}.journal"


class ChangeJournal:
    """The writer of the journal; the file is made when it is first needed."""

    def __init__(self, disk: Disk, path: str, *, sync: bool = True) -> None:
        self._disk = disk
        self._path = path
        self._sync = sync
        self._file: File | None = None
        self._at = 0  # of the next record
        self._under_way: tuple[int, int] | None = None  # the end and the number of a record that was begun
        self._sure = 0  # the last number that is synced
        self._failed = False  # the file that is there is not to be written again
        self._aside = disk.aside()

    def takes(self, size: int) -> bool:
        """Return whether there is room for a record of so many bytes."""
        return self._file is not None and size <= RECORD_BYTES and self._at + _HEAD_BYTES + size + 8 <= FILE_BYTES

    def begin(self, number: int, payload: bytes, patience_ns: int) -> bool:
        """Write and sync a record; return whether that was done in time, else `end` must be called.

        Raise OSError if it fails: then the journal takes nothing more until it is begun anew.
        """
        record = self._record(number, payload)
        self._under_way = self._at + len(record), number
        try:
            assert self._file is not None
            if not self._sync:
                self._file.write_at(self._at, [record])
            elif not self._file.commit_aside(self._aside, self._at, [record], None, patience_ns):
                return False
        except OSError:
            self._give_up()
            raise
        self._wrote()
        return True

    def end(self) -> None:
        """Wait for the record that was begun; raise OSError if it fails."""
        try:
            self._aside.end()
        except OSError:
            self._give_up()
            raise
        self._wrote()

    def append(self, number: int, payload: bytes, durable: bool) -> None:
        """Write a record, synced with all before it if it is to be durable; raise OSError if that fails."""
        record = self._record(number, payload)
        try:
            assert self._file is not None
            if durable and self._sync:
                self._file.commit_at(self._at, [record])
                self._sure = number
            else:
                self._file.write_at(self._at, [record])
        except OSError:
            self._give_up()
            raise
        self._at += len(record)

    def restart(self, number: int) -> None:
        """Begin anew: the tables have all up to `number`, durably. Raise OSError if there can be no file."""
        if self._file is None:
            self._file = self._opened() or self._made()
        self._at, self._sure = _START.size, number

    def close(self) -> None:
        """Close the file, after what is under way."""
        self._aside.close()
        self.stop()

    def _record(self, number: int, payload: bytes) -> bytes:
        rest = _NUMBERS.pack(number, self._sure) + payload
        return _SIZES.pack(len(payload), crc32c(rest)) + rest + bytes(-len(rest) % 8)

    def _wrote(self) -> None:
        assert self._under_way is not None
        (self._at, self._sure), self._under_way = self._under_way, None

    def stop(self) -> None:
        """Take nothing more until it is begun anew."""
        file, self._file, self._under_way = self._file, None, None
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()

    def _give_up(self) -> None:
        self._failed = True
        self.stop()

    def _opened(self) -> File | None:
        """Return the file that is there, if it can be written again."""
        if self._failed:
            return None
        try:
            file = self._disk.open(self._path, write=True)
        except FileNotFoundError:
            return None
        if file.size() == FILE_BYTES and file.read_at(0, _START.size) == _START.pack(MAGIC, VERSION):
            return file
        file.close()
        return None

    def _made(self) -> File:
        """Make the file, full of zeros, so that a sync has no more to store than the data."""
        with contextlib.suppress(FileNotFoundError):
            self._disk.unlink(self._path)
        file = self._disk.create(self._path)
        try:
            file.allocate(0, FILE_BYTES)
            file.write_at(0, [_START.pack(MAGIC, VERSION)])
            file.sync()
            self._disk.sync_directory(os.path.dirname(self._path) or ".")
        except OSError:
            file.close()
            raise
        self._failed = False
        return file


def read_journal(disk: Disk, path: str) -> bytes:
    """Return the bytes of a journal, none if there is no file."""
    try:
        file = disk.open(path)
    except FileNotFoundError:
        return b""
    try:
        return file.read_at(0, file.size())
    finally:
        file.close()


def records_after(path: str, data: bytes, after: int) -> list[tuple[int, bytes]]:
    """Return the records behind the one that is numbered `after`, with their numbers, from the bytes of a journal.

    What a crash left unfinished is where the records end. A record that was synced and can't be read, or is missing, is
    damage.
    """
    if len(data) < _START.size or not any(data[: _START.size]):
        return []  # it was being made
    magic, version = _START.unpack_from(data)
    if magic != MAGIC or version != VERSION:
        raise StorageError(
            f"{path} is no journal of session tables that this Everlog knows",
            hint="use the version of Everlog that wrote it, or a newer one",
        )
    found: list[tuple[int, bytes]] = []
    for number, payload in _records(data):
        if found and number != found[-1][0] + 1:
            break  # what is left of earlier ones
        found.append((number, payload))
    if found and found[0][0] > after + 1:
        raise StorageError(f"{path} begins behind where the session tables end", hint=_DAMAGED)
    _check_rest(path, data, max(found[-1][0] if found else 0, after) + 1)
    return [(number, payload) for number, payload in found if number > after]


def _records(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield number and payload of records one behind the other, up to the first that is none."""
    at = _START.size
    while (found := _record_at(data, at)) is not None:
        number, _, payload = found
        yield number, payload
        at += _HEAD_BYTES + len(payload) + -len(payload) % 8


def _record_at(data: bytes, at: int) -> tuple[int, int, bytes] | None:
    """Return number, the number that was synced before, and payload of the record at a place, if there is one."""
    if at + _HEAD_BYTES > len(data):
        return None
    size, crc = _SIZES.unpack_from(data, at)
    rest = data[at + _SIZES.size : at + _HEAD_BYTES + size] if 0 < size <= RECORD_BYTES else b""
    if len(rest) != _NUMBERS.size + size or crc32c(rest) != crc:
        return None
    number, sure = _NUMBERS.unpack_from(rest)
    return number, sure, rest[_NUMBERS.size :]


def _check_rest(path: str, data: bytes, lost: int) -> None:
    """Raise if there is a record that was written when the one numbered `lost` was synced already."""
    words = memoryview(data)[: len(data) // 8 * 8].cast("Q")
    for place, number in enumerate(words):
        if lost < number < lost + NEVER_GIVEN and place:
            found = _record_at(data, 8 * place - _SIZES.size)
            if found is not None and found[1] >= lost:
                raise StorageError(f"{path} is damaged: record {lost} can't be read", hint=_DAMAGED)
