"""Which packs count: a small journal beside that of the shard, fenced by the same epoch, whose records name packs.

An owner that was replaced can upload a pack, but not name it. Now and then a record tells it all, and the manifest
begins there, so that it stays short.
"""

from collections.abc import Iterator

from msgspec import DecodeError, msgpack

from everlog.base import StorageError
from everlog.tiering.journal_reader import JournalReader
from everlog.tiering.journal_writer import JournalWriter
from everlog.tiering.pack_format import Packs, Told
from everlog.tiering.ports import Bucket

_NAME = "packs"
_encode = msgpack.Encoder().encode
_decode = msgpack.Decoder(Told).decode


class PackManifest:
    """The manifest as the shard's owner of an epoch writes it. After `Unavailable`, call the same again."""

    def __init__(self, bucket: Bucket, folder: str, epoch: int) -> None:
        self._writer = JournalWriter(bucket, folder, epoch)

    @property
    def start(self) -> int:
        """The position of the first record that can be read."""
        return self._writer.start

    @property
    def end(self) -> int:
        """The position after the last record."""
        return self._writer.end

    def open(self) -> None:
        """Take the manifest over; raise `Fenced` if a later owner has it."""
        self._writer.take_over()

    def tell(self, told: Told) -> int:
        """Add a record, and return the size that it has; packs that it names are in the bucket."""
        data = _encode(told)
        self._writer.write([(_NAME, data)])
        self._writer.tidy()
        return len(data)

    def begin_at(self, position: int) -> None:
        """Let the manifest begin at a record that tells it all, from the next one on that is added."""
        self._writer.trim(position)

    def read(self, since: int) -> Iterator[tuple[int, Told]]:
        """Yield records from a position on."""
        return _read(self._writer.reader, since)


def read_manifest(bucket: Bucket, folder: str) -> Iterator[tuple[int, Told]]:
    """Yield (position, record) of all that the manifest still tells, for a reader that owns nothing."""
    reader = JournalReader(bucket, folder)
    reader.follow()
    return _read(reader, reader.start)


def read_packs(bucket: Bucket, folder: str) -> Packs:
    """Return the packs that count now, for a reader that owns nothing."""
    packs = Packs()
    for _, told in read_manifest(bucket, folder):
        packs.take(told)
    return packs


def _read(reader: JournalReader, since: int) -> Iterator[tuple[int, Told]]:
    for position, _, data in reader.read(max(since, reader.start), reader.end):
        try:
            told = _decode(data)
        except DecodeError as error:
            raise StorageError(f"the manifest can't be read: {error}", hint="read it with a newer Everlog") from None
        yield position, told
