"""Storage that several servers share: who owns which state shard, and the journals of the shards.

A store has a random id and a number of shards, both given when it is made and never changed; whoever comes second reads
what the first one wrote. Layouts: `docs/formats/ownership.md` (bucket or directory), `docs/formats/postgres.md`.
"""

import uuid
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import msgspec
from msgspec import Struct

from everlog.base import StorageError, UsageError
from everlog.ownership import LedgerOwnership, Ownership, PostgresOwnership, make_ownership_tables
from everlog.tiering import (
    BUCKET_GROUP_S,
    DIRECTORY_GROUP_S,
    Bucket,
    Database,
    DirectoryBucket,
    GroupJournal,
    ObjectJournal,
    PostgresJournal,
    check_bucket,
    make_journal_tables,
    make_schema,
    open_bucket,
)

if TYPE_CHECKING:
    import psycopg

    Cursor = psycopg.Cursor[tuple[Any, ...]]

SHARDS = 16
MOST_SHARDS = 254
RECORD = "persist.json"
VERSION = 1
_TABLES = """
create table if not exists persist_store (
    one boolean primary key default true check (one), version integer not null, store text not null,
    shards integer not null
);
"""


class StoreRecord(Struct, frozen=True, kw_only=True):
    """What a store is for ever."""

    store: str
    shards: int
    version: int = VERSION


class SharedStorage(Protocol):
    """What servers share. All calls may wait; any thread may make them."""

    @property
    def record(self) -> StoreRecord: ...

    @property
    def ownership(self) -> Ownership: ...

    def open_journal(self, shard: int, epoch: int) -> GroupJournal:
        """Take a shard's journal over at an epoch that was claimed for it; raise `Fenced` if that was used before."""

    @property
    def bucket(self) -> Bucket | None: ...  # that holds the journals

    def close(self) -> None:
        """Let go of connections."""


class BucketStorage:
    """Storage in a bucket or a shared directory, where every commit is an object."""

    def __init__(
        self, bucket: Bucket, shards: int | None = None, group_s: float = BUCKET_GROUP_S, *, make: bool = True
    ) -> None:
        self.bucket: Bucket | None = bucket
        self._bucket = bucket
        self._group_s = group_s
        self.record = _agreed(self._load(shards, make), shards, "the storage")
        self.ownership: Ownership = LedgerOwnership(bucket, "ownership")

    def open_journal(self, shard: int, epoch: int) -> GroupJournal:
        """Take a shard's journal over."""
        return ObjectJournal(self._bucket, f"{thing_of(shard)}/journal", epoch, group_s=self._group_s)

    def close(self) -> None:
        """Let go of everything: there is nothing to let go of."""

    def _load(self, shards: int | None, make: bool) -> StoreRecord:
        data = self._bucket.get(RECORD)
        if data is None and not make:
            raise _nothing_there()
        if data is None:
            check_bucket(self._bucket)
            record = _new_record(shards)
            data = self._bucket.create(RECORD, msgspec.json.encode(record))
            if data is None:
                return record
        try:
            return msgspec.json.decode(data, type=StoreRecord)
        except msgspec.DecodeError as error:
            raise StorageError(f"{RECORD} of the storage can't be read: {error}", hint="restore it") from None


class PostgresStorage:
    """Storage in a schema of PostgreSQL, `everlog` or what `schema=` in the URL's query names."""

    def __init__(self, url: str, shards: int | None = None, *, make: bool = True) -> None:
        self._url, self._schema = split_schema(url)
        self.record = _agreed(self._load(shards, make), shards, "the database")
        self._ownership = PostgresOwnership(self._url, self._schema)
        self.ownership: Ownership = self._ownership
        self.bucket: Bucket | None = None

    def open_journal(self, shard: int, epoch: int) -> GroupJournal:
        """Take a shard's journal over."""
        return PostgresJournal(self._url, thing_of(shard), epoch, schema=self._schema)

    def close(self) -> None:
        """Close the connection."""
        self._ownership.close()

    def _load(self, shards: int | None, make: bool) -> StoreRecord:
        database = Database(self._url, self._schema)
        try:
            if not database.transact(self._has_tables):
                if not make:
                    raise _nothing_there()
                make_schema(self._url, self._schema, _TABLES)
                make_ownership_tables(self._url, self._schema)
                make_journal_tables(self._url, self._schema)
            found = self._read(database)
            return self._make(database, _new_record(shards)) if found is None else found
        finally:
            database.close()

    def _has_tables(self, cursor: "Cursor") -> bool:
        names = [f"{self._schema}.{name}" for name in ("persist_store", "incarnations", "journal_rows")]
        cursor.execute("select count(to_regclass(name)) from unnest(%s::text[]) as name", (names,))
        found = cursor.fetchone()
        return found is not None and found[0] == len(names)

    def _read(self, database: Database) -> StoreRecord | None:
        def act(cursor: "Cursor") -> StoreRecord | None:
            cursor.execute("select store, shards, version from persist_store")
            found = cursor.fetchone()
            return None if found is None else StoreRecord(store=found[0], shards=found[1], version=found[2])

        return database.transact(act)

    def _make(self, database: Database, record: StoreRecord) -> StoreRecord:
        database.transact(
            lambda cursor: cursor.execute(
                "insert into persist_store (version, store, shards) values (%s, %s, %s) on conflict do nothing",
                (record.version, record.store, record.shards),
            )
        )
        found = self._read(database)
        assert found is not None
        return found


def open_storage(place: str, shards: int | None = None, *, make: bool = True) -> SharedStorage:
    """Open what a place names: a directory, the URL of a bucket, or `postgresql://…`; unless told not to, make it."""
    if shards is not None and not 1 <= shards <= MOST_SHARDS:
        raise UsageError(f"there are 1 to {MOST_SHARDS} state shards, not {shards}")
    if urlsplit(place).scheme in ("postgresql", "postgres"):
        return PostgresStorage(place, shards, make=make)
    bucket = open_bucket(place)
    group_s = DIRECTORY_GROUP_S if isinstance(bucket, DirectoryBucket) else BUCKET_GROUP_S
    return BucketStorage(bucket, shards, group_s, make=make)


def thing_of(shard: int) -> str:
    """Return what ownership calls a shard."""
    return f"shard-{shard}"


def shard_of_thing(thing: str) -> int | None:
    """Return which shard a thing is, or None if it is something else."""
    head, _, number = thing.partition("-")
    return int(number) if head == "shard" and number.isdecimal() else None


def split_schema(url: str) -> tuple[str, str]:
    """Return a URL without the `schema=` of its query, and the schema."""
    parts = urlsplit(url)
    query = parse_qsl(parts.query)
    schema = dict(query).get("schema", "everlog")
    rest = urlencode([pair for pair in query if pair[0] != "schema"])
    return urlunsplit(parts._replace(query=rest)), schema


def _nothing_there() -> UsageError:
    return UsageError("no persist server has used this storage", hint="give the --storage that the servers have")


def _new_record(shards: int | None) -> StoreRecord:
    return StoreRecord(store=uuid.uuid4().hex, shards=shards or SHARDS)


def _agreed(record: StoreRecord, shards: int | None, place: str) -> StoreRecord:
    if record.version != VERSION:
        raise StorageError(f"version {record.version} of {place} is not known", hint="use a newer Everlog")
    if shards is not None and shards != record.shards:
        raise UsageError(
            f"{place} has {record.shards} state shards, not {shards}",
            hint="their number is chosen when the storage is first used",
        )
    return record
