"""Objects of a journal (`docs/formats/journal.md`): a header, and a columnar batch that can be read alone.

A **fence** is an object without a batch: the first that an owner creates. Every object tells its owner's epoch and
where the journal began when it was written.
"""

import struct
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import crc32c

from everlog.base import MessageColumns, RecordBuilder, Records, StorageError, TopicTable

MAGIC = 0x4A4C5645  # "EVLJ"
VERSION = 1
_LAYOUT = struct.Struct("<IHHQQQIIQQ16sI")
_CHECK = struct.Struct("<I")
HEADER_BYTES = _LAYOUT.size + _CHECK.size
_HINT = "the object is damaged: restore it from a copy of the bucket"

Record = tuple[str, bytes]  # stream name, effect


@dataclass(frozen=True, slots=True)
class ObjectHeader:
    """What an object of a journal says of itself."""

    epoch: int
    number: int
    base: int  # the position of its first record, or of the next one if it has none
    count: int
    body_bytes: int
    body_check: int
    start_number: int  # numbers below it may have been deleted
    start: int  # the first position of that number
    nonce: bytes  # no two writers make the same object

    @property
    def end(self) -> int:
        """The position after its last record."""
        return self.base + self.count

    def encode(self) -> bytes:
        """Return the header as it is stored."""
        head = _LAYOUT.pack(
            MAGIC,
            VERSION,
            HEADER_BYTES,
            self.epoch,
            self.number,
            self.base,
            self.count,
            self.body_bytes,
            self.start_number,
            self.start,
            self.nonce,
            self.body_check,
        )
        return head + _CHECK.pack(crc32c.crc32c(head))


def decode_header(data: bytes, number: int) -> ObjectHeader:
    """Return the checked header of the object that has a number; raise StorageError if it is not one."""
    if len(data) < HEADER_BYTES:
        raise StorageError(f"object {number} of the journal has {len(data)} bytes", hint=_HINT)
    magic, version, _, epoch, own, base, count, size, start_number, start, nonce, body_check = _LAYOUT.unpack_from(data)
    if magic != MAGIC:
        raise StorageError(f"object {number} is not of a journal", hint="give the journal a folder of its own")
    if version != VERSION:
        raise StorageError(f"journal format version {version} is not known", hint="read it with a newer Everlog")
    if _CHECK.unpack_from(data, _LAYOUT.size)[0] != crc32c.crc32c(data[: _LAYOUT.size]) or own != number:
        raise StorageError(f"the header of object {number} of the journal is not as written", hint=_HINT)
    return ObjectHeader(epoch, number, base, count, size, body_check, start_number, start, nonce)


def encode_batch(records: Sequence[Record], base: int, now_us: int) -> bytes:
    """Return records as a columnar batch that names all of its streams."""
    names, effects = zip(*records, strict=True)
    table = TopicTable()
    ids = {name: table.intern(name.encode()) for name in dict.fromkeys(names)}
    ends = array("I", accumulate(map(len, effects)))
    starts = (array("I", [0]) + ends[:-1]).tobytes()
    columns = MessageColumns(len(records))
    columns.topics[:] = array("I", map(ids.__getitem__, names)).tobytes()
    columns.property_starts[:] = starts
    columns.payload_starts[:] = starts
    columns.payload_ends[:] = ends.tobytes()
    columns.source = b"".join(effects)
    builder = RecordBuilder()
    builder.append(columns, 0, len(records), now_us, table)
    return bytes(builder.take(base).to_bytes())


def decode_records(data: bytes, number: int) -> Iterator[tuple[int, str, bytes]]:
    """Yield (position, stream name, effect) of the records of a whole object, which is checked first."""
    header = decode_header(data, number)
    body = data[HEADER_BYTES:]
    if len(body) != header.body_bytes or crc32c.crc32c(body) != header.body_check:
        raise StorageError(f"object {number} of the journal is not as written", hint=_HINT)
    if body:
        yield from decode_batch(body, header.base, header.count)


def decode_batch(body: bytes, base: int, count: int) -> Iterator[tuple[int, str, bytes]]:
    """Yield (position, stream name, effect) of the records of a batch that names all of its streams."""
    table = TopicTable()
    records = Records(body, 0, table)
    for name in records.new_names():
        table.intern(name)
    if records.base_offset != base or records.count != count or not records.verify():
        raise StorageError(f"the batch at position {base} of the journal is not as written", hint=_HINT)
    for position, _, topic, _, _, effect in records.rows():
        yield position, table.name(topic).decode(), effect
