"""Makes a lost data directory anew from its bucket: journals at the positions they had; files come when asked for."""

import os
from dataclasses import dataclass

from everlog.base import UsageError
from everlog.persist.bucket_record import read_bucket_record
from everlog.persist.local_shards import FILE_NAME, PersistRecord
from everlog.store import read_record, write_record
from everlog.streams import LocalJournal
from everlog.tiering import Bucket, JournalReader, read_packs


@dataclass(frozen=True, slots=True)
class RestoredShard:
    """What a shard has: streams in packs, and journal records from one position to before another."""

    shard: int
    streams: int
    start: int
    end: int


def restore_directory(bucket: Bucket, directory: str) -> list[RestoredShard]:
    """Make a data directory of what a bucket has; refuse one that is not empty."""
    if os.path.isdir(directory) and os.listdir(directory):
        raise UsageError(f"{directory} is not empty", hint="choose a new directory, or move that one away")
    record = read_bucket_record(bucket)
    os.makedirs(directory, exist_ok=True)
    restored = [_restore_shard(bucket, directory, shard) for shard in range(record.shards)]
    # last, so that a restore that was cut short is not taken for a whole one
    write_record(directory, FILE_NAME, PersistRecord(record.shards, store=record.store))
    assert read_record(directory, FILE_NAME, PersistRecord, (1,), "") is not None
    return restored


def _restore_shard(bucket: Bucket, directory: str, shard: int) -> RestoredShard:
    journal = JournalReader(bucket, f"shard-{shard}/journal")
    last = journal.follow()
    streams = len(read_packs(bucket, f"shard-{shard}/manifest").files)
    if last is None:
        return RestoredShard(shard, streams, 0, 0)
    place = os.path.join(directory, f"shard-{shard}")
    os.makedirs(os.path.join(place, "files"), exist_ok=True)
    records = ((name, effect) for _, name, effect in journal.read(journal.start, journal.end))
    end = LocalJournal.restore(os.path.join(place, "journal"), last.epoch, journal.start, records)
    return RestoredShard(shard, streams, journal.start, end)
