"""Restores one stream from a bucket as of a seq or a time, as a plain SQLite file: a pack, and the journal behind it.

Nothing is asked of any server. The newest pack that is not beyond the wanted state is brought there by the journal's
records, so the result is exact; how far back that goes is how long the bucket keeps journal and packs
(`ShardSettings.history_us`).
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from tempfile import TemporaryDirectory

from msgspec import msgpack

from everlog.base import UsageError
from everlog.streams.effects import NO_POSITION, DropAll, PutKey, Record, SetConfig, decode_record
from everlog.streams.file_copy import make_live
from everlog.streams.pack_index import row_of_facts
from everlog.streams.stream_file import StreamFile
from everlog.streams.values import Config, Kind
from everlog.tiering import AllPacks, Bucket, BucketPacks, JournalReader, PackedFile, PackRecord, read_manifest

_GROUP = 500  # records that are applied together
_decode_config = msgpack.Decoder(Config).decode


@dataclass(frozen=True, slots=True)
class AsOf:
    """The state that is wanted: the last one in which no message above a seq was written, or no later than a time."""

    seq: int | None = None
    time_us: int | None = None

    def holds(self, last_seq: int, time_us: int) -> bool:
        """Return whether a state is not beyond it."""
        if self.seq is not None and last_seq > self.seq:
            return False
        return self.time_us is None or time_us <= self.time_us


@dataclass(frozen=True, slots=True)
class Restored:
    """What was restored."""

    last_seq: int
    messages: int
    time_us: int
    position: int  # of the last record that it has


@dataclass(frozen=True, slots=True)
class _Packed:
    """A stream as a pack has it."""

    pack: str
    file: PackedFile
    born: int
    kind: Kind
    config: Config
    time_us: int
    last_seq: int
    messages: int


def restore_stream(bucket: Bucket, folder: str, name: str, path: str, wanted: AsOf) -> Restored:
    """Write a stream of a shard, as of a state, to a new file; raise UsageError if the bucket has not that."""
    journal = JournalReader(bucket, f"{folder}/journal")
    journal.follow()
    records = [
        (position, decode_record(effect)) for position, _, effect in journal.read(journal.start, journal.end, name)
    ]
    versions = list(_versions(bucket, folder, name))
    with TemporaryDirectory(prefix="everlog-") as scratch:
        made = _Making(BucketPacks(bucket), name, f"{scratch}/stream.db", records, wanted)
        try:
            if not made.begin(versions, journal.start):
                raise _unknown(name, bool(records or versions))
            made.bring()
            return made.finish(path)
        finally:
            made.close()


class _Making:
    """A private file that is brought to a state."""

    def __init__(
        self, packs: BucketPacks, name: str, path: str, records: list[tuple[int, Record]], wanted: AsOf
    ) -> None:
        self._packs, self._name, self._path, self._wanted = packs, name, path, wanted
        self._records = records
        self._file: StreamFile | None = None
        self._config = Config()
        self._facts = Restored(0, 0, 0, NO_POSITION)

    def begin(self, versions: list[_Packed], start: int) -> bool:
        """Begin with the newest pack that is not beyond the wanted state, or with nothing; say whether it is exact."""
        for number in reversed(range(len(versions))):
            one = versions[number]
            if not self._wanted.holds(one.last_seq, one.time_us):
                continue
            later = versions[number + 1 :]
            if one.file.position < start and any(other.file.position > one.file.position for other in later):
                return False  # the journal between the two is gone
            self._fetch(one)
            if self._is_before():
                return True
            self._remove()
        return bool(self._records) and self._records[0][1].previous == NO_POSITION

    def _fetch(self, one: _Packed) -> None:
        self._packs.fetch(one.pack, one.file.offset, one.file.length, self._path)
        make_live(self._path)
        self._file = StreamFile(self._path, self._name, one.born, one.kind, create=False)
        self._config = one.config
        self._facts = Restored(one.last_seq, one.messages, one.time_us, one.file.position - 1)

    def _is_before(self) -> bool:
        """Return whether the file has nothing that is beyond the wanted state: it may have more than its pack says."""
        assert self._file is not None
        return all(
            self._wanted.holds(record.last_seq, record.time_us)
            for position, record in self._records
            if self._facts.position < position <= self._file.applied
        )

    def bring(self) -> None:
        """Apply records as long as the state that they lead to is not beyond the wanted one."""
        tail = [one for one in self._records if one[0] > self._facts.position]
        group: list[tuple[int, Record]] = []
        for position, record in tail:
            if not self._wanted.holds(record.last_seq, record.time_us):
                break
            self._facts = Restored(record.last_seq, record.messages, record.time_us, position)
            if any(isinstance(effect, DropAll) and effect.is_removed for effect in record.effects):
                group = []
                self._remove()
                continue
            group.append((position, record))
            if len(group) >= _GROUP:
                self._apply(group)
                group = []
        self._apply(group)

    def _apply(self, group: list[tuple[int, Record]]) -> None:
        if not group:
            return
        for _, record in group:
            for effect in record.effects:
                if isinstance(effect, SetConfig):
                    self._config = effect.config
        if self._file is None:
            position, first = group[0]
            self._file = StreamFile(self._path, self._name, position, _kind_of(first), create=True)
        self._file.apply(group, self._config, NO_POSITION)

    def _remove(self) -> None:
        self.close()
        for one in (self._path, self._path + "-wal"):
            if os.path.exists(one):
                os.unlink(one)

    def finish(self, path: str) -> Restored:
        """Write the file as it is now."""
        if self._file is None:
            raise UsageError(f"{self._name} was not there at that time", hint="give another time")
        self._file.copy_to(path)
        return self._facts

    def close(self) -> None:
        """Let go of the private file."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _versions(bucket: Bucket, folder: str, name: str) -> Iterator[_Packed]:
    """Yield a stream as packs that are there have it, the oldest first."""
    known: set[tuple[str, int]] = set()
    for _, told in read_manifest(bucket, f"{folder}/manifest"):
        records = [told] if isinstance(told, PackRecord) else told.packs if isinstance(told, AllPacks) else []
        for record in records:
            for file in record.files:
                if file.stream != name or (record.pack, file.offset) in known:
                    continue
                known.add((record.pack, file.offset))
                if bucket.get_range(record.pack, 0, 1):
                    row = row_of_facts(file.facts)
                    config = _decode_config(row[2])
                    yield _Packed(record.pack, file, row[3], Kind(row[1]), config, row[7], row[8], row[9])


def _kind_of(record: Record) -> Kind:
    for effect in record.effects:
        if isinstance(effect, SetConfig):
            return effect.kind
        if isinstance(effect, PutKey):
            return Kind.KV
    return Kind.STREAM


def _unknown(name: str, is_known: bool) -> UsageError:
    if is_known:
        return UsageError(f"the bucket does not go back that far for {name}", hint="give a later seq or time")
    return UsageError(f"the bucket has no {name}", hint="is it the right bucket, and the right name?")
