"""Which packs count: a small journal beside that of the shard, fenced by the same epoch, whose records name packs.

An owner that was replaced can upload a pack, but not name it. The manifest tells it all again now and then, and begins
there, so that it stays short.
"""

from collections.abc import Iterable

from msgspec import DecodeError, Struct, msgpack

from everlog.base import StorageError
from everlog.tiering.journal_reader import JournalReader
from everlog.tiering.journal_writer import JournalWriter
from everlog.tiering.pack_format import PackRecord, Packs
from everlog.tiering.ports import Bucket

_TOLD_AGAIN = 100  # records after which the manifest begins anew
_NAME = "packs"


class StreamsRemoved(Struct, array_like=True, frozen=True, gc=False, tag="removed"):
    """Streams that are in no pack any more."""

    streams: list[str]


class AllPacks(Struct, array_like=True, frozen=True, gc=False, tag="all"):
    """All packs that count, with the files that are still read from them; what was told before does not matter."""

    packs: list[PackRecord]


Told = PackRecord | StreamsRemoved | AllPacks
_encode = msgpack.Encoder().encode
_decode = msgpack.Decoder(Told).decode


class PackManifest:
    """The manifest as the shard's owner of an epoch writes it. After `Unavailable`, call the same again."""

    def __init__(self, bucket: Bucket, folder: str, epoch: int) -> None:
        self._writer = JournalWriter(bucket, folder, epoch)
        self._since = 0  # records since it was told whole
        self.packs = Packs({}, {})

    def open(self) -> Packs:
        """Take the manifest over and return the packs that count; raise `Fenced` if a later owner has it."""
        self._writer.take_over()
        self.packs, self._since = _read(self._writer.reader)
        return self.packs

    def add(self, record: PackRecord) -> Packs:
        """Name a pack that is in the bucket: its files are what these streams are read from."""
        return self._tell(record, self.packs.after(record))

    def remove(self, streams: Iterable[str]) -> Packs:
        """Forget the files of streams that were removed."""
        gone = sorted(stream for stream in streams if stream in self.packs.files)
        return self._tell(StreamsRemoved(gone), self.packs.without(gone)) if gone else self.packs

    def _tell(self, told: Told, packs: Packs) -> Packs:
        records = [(_NAME, _encode(told))]
        if self._since >= _TOLD_AGAIN:
            records.append((_NAME, _encode(AllPacks(packs.records()))))
        end = self._writer.write(records)
        self.packs = packs
        self._since += 1
        if len(records) > 1:
            self._since = 0
            self._writer.trim(end - 1)
        self._writer.tidy()
        return packs


def read_packs(bucket: Bucket, folder: str) -> Packs:
    """Return the packs that count now, for a reader that owns nothing."""
    reader = JournalReader(bucket, folder)
    reader.follow()
    return _read(reader)[0]


def _read(reader: JournalReader) -> tuple[Packs, int]:
    """Return the packs after all that was told, and how much was told since the last time it was told whole."""
    packs, since = Packs({}, {}), 0
    for _, _, data in reader.read(reader.start, reader.end):
        try:
            told = _decode(data)
        except DecodeError as error:
            raise StorageError(f"the manifest can't be read: {error}", hint="read it with a newer Everlog") from None
        since += 1
        if isinstance(told, PackRecord):
            packs = packs.after(told)
        elif isinstance(told, StreamsRemoved):
            packs = packs.without(told.streams)
        else:
            packs, since = Packs({}, {}), 0
            for record in told.packs:
                packs = packs.after(record)
    return packs, since
