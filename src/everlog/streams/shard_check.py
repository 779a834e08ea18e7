"""Checks what a state shard has, in a bucket or on a disk, against its checksums. Changes nothing; a server may run."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from tempfile import TemporaryDirectory

from everlog.base import EverlogError, StorageError, Unavailable
from everlog.commitlog import RealDisk, verify_directory
from everlog.streams.live_copy import copy_live
from everlog.streams.open_files import file_path
from everlog.tiering import Bucket, BucketPacks, JournalReader, Packs, read_manifest

_ROWS = "SELECT name, last FROM streams WHERE name > ? ORDER BY name LIMIT 1000"


@dataclass(frozen=True, slots=True)
class Damaged:
    """Something that is not as it was written, with what of a stream or of the journal is concerned."""

    place: str
    what: str
    stream: str = ""
    first: int = -1  # positions of the journal; -1: not known
    last: int = -1


@dataclass(slots=True)
class Checked:
    """How much was looked at."""

    records: int = 0
    streams: int = 0
    bytes: int = 0


def check_shard_in_bucket(bucket: Bucket, folder: str, checked: Checked) -> Iterator[Damaged]:
    """Yield the damage of a shard's packs, manifest and journal in a bucket."""
    packs = Packs()
    try:
        for _, told in read_manifest(bucket, f"{folder}/manifest"):
            packs.take(told)
    except Unavailable:
        raise
    except StorageError as error:
        yield Damaged(f"{folder}/manifest", error.message)
    reader = BucketPacks(bucket)
    for record in packs.records():
        checked.streams += len(record.files)
        checked.bytes += record.size
        for file, what in reader.damages(record):
            if file is None:
                yield Damaged(record.pack, what)
            else:
                yield Damaged(record.pack, what, file.stream, 0, file.position - 1)
    yield from _check_journal(bucket, folder, packs, checked)


def _check_journal(bucket: Bucket, folder: str, packs: Packs, checked: Checked) -> Iterator[Damaged]:
    journal = JournalReader(bucket, f"{folder}/journal", cache_bytes=0)
    try:
        last = journal.follow()
    except Unavailable:
        raise
    except StorageError as error:
        yield Damaged(f"{folder}/journal", error.message)
        return
    if last is None:
        return
    if packs.below < journal.start:
        what = f"the journal begins at {journal.start}, and packs have what is below {packs.below}"
        yield Damaged(f"{folder}/journal", what, first=packs.below, last=journal.start - 1)
    at = journal.start
    for number in range(last.start_number, last.number + 1):
        place = f"{folder}/journal/{number:020d}"
        try:
            header = journal.header(number)
            if header.base != at:
                yield Damaged(place, f"begins at {header.base} and not at {at}", first=at, last=header.base - 1)
            at = header.end
            checked.records += sum(1 for _ in journal.records(number))
            checked.bytes += header.body_bytes
        except Unavailable:
            raise
        except EverlogError as error:
            known = journal.known(number)
            first, end = (known.base, known.end) if known is not None else (at, at)
            yield Damaged(place, error.message, first=first, last=end - 1)
            at = end


def check_shard_on_disk(directory: str, checked: Checked) -> Iterator[Damaged]:
    """Yield the damage of a shard's journal, catalogue and files on a disk."""
    found = verify_directory(RealDisk(), f"{directory}/journal")
    checked.records += found.records
    checked.bytes += found.checked_bytes
    for damage in found.damage:
        yield Damaged(f"{directory}/journal", str(damage))
    with TemporaryDirectory(prefix="everlog-") as scratch:
        copied = f"{scratch}/catalogue.db"
        if not copy_live(f"{directory}/catalogue.db", copied):
            return
        bad = _check_file(copied)
        if bad:
            yield Damaged(f"{directory}/catalogue.db", bad)
            return
        with closing(sqlite3.connect(copied)) as catalogue:
            yield from _check_files(directory, catalogue, f"{scratch}/stream.db", checked)


def _check_files(directory: str, catalogue: sqlite3.Connection, copied: str, checked: Checked) -> Iterator[Damaged]:
    (whole,) = catalogue.execute("SELECT whole FROM shard").fetchone()
    away = set()
    if catalogue.execute("SELECT 1 FROM sqlite_master WHERE name = 'packed'").fetchone():
        away = {name for (name,) in catalogue.execute("SELECT name FROM packed WHERE NOT is_local")}
    after = ""
    while rows := catalogue.execute(_ROWS, (after,)).fetchall():
        after = rows[-1][0]
        for name, last in rows:
            path = file_path(f"{directory}/files", name)
            if not copy_live(path, copied):
                if name not in away and last < whole:
                    yield Damaged(path, "the file is missing", name, 0, last)
                continue
            checked.streams += 1
            bad = _check_file(copied) or _check_applied(copied, last, whole)
            if bad:
                yield Damaged(path, bad, name, 0, last)


def _check_file(path: str) -> str:
    """Return what SQLite finds wrong with a file, or nothing."""
    try:
        with closing(sqlite3.connect(path)) as connection:
            found = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
    except sqlite3.Error as error:
        return str(error)
    return "" if found == "ok" else str(found)


def _check_applied(path: str, last: int, whole: int) -> str:
    with closing(sqlite3.connect(path)) as connection:
        (applied,) = connection.execute("SELECT applied FROM stream").fetchone()
    return f"the file ends at {applied}, before {last}" if applied < last < whole else ""
