"""The tables of a cluster's message log (`docs/formats/postgres.md`), made once; none is made or changed later."""

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from everlog.base import StorageError, UsageError
from everlog.cluster.database import ClusterDatabase
from everlog.cluster.ports import TABLES
from everlog.tiering import make_schema

if TYPE_CHECKING:
    import psycopg

    Cursor = psycopg.Cursor[tuple[Any, ...]]

VERSION = 1
MAX_SHARDS = 256
_TABLES = """
create table if not exists message_store (
    is_one boolean primary key default true check (is_one), version integer not null, store bigint not null,
    shards integer not null, format integer not null default 1,
    importing boolean not null default false
);
alter table message_store add column if not exists format integer not null default 1;
alter table message_store add column if not exists importing boolean not null default false;
create table if not exists message_shards (
    shard integer primary key, epoch bigint not null, probe bigint not null, salt bigint not null,
    start bigint not null
);
create table if not exists message_origins (
    shard integer not null, origin bigint not null, final bigint not null, primary key (shard, origin)
);
create table if not exists message_segments (
    name text primary key, shard integer not null, base bigint not null, epoch bigint not null,
    state smallint not null, changed timestamptz not null default clock_timestamp(), stop bigint, size bigint,
    crc bigint, origins jsonb
);
create unique index if not exists message_segments_present on message_segments (shard, base) where state = 1;
create table if not exists message_gaps (
    shard integer not null, start bigint not null, stop bigint not null, primary key (shard, start)
);
create table if not exists message_pins (
    number bigint generated always as identity primary key, reader text not null,
    since timestamptz not null default clock_timestamp(), until timestamptz not null
);
"""
_TAIL = """
create table if not exists {name} (
    base bigint primary key, count integer not null, epoch bigint not null, segment bigint not null,
    nonce bytea not null, crc bigint not null, size integer not null, origins jsonb not null, names bytea not null,
    body bytea not null
);
alter table {name} alter column body set storage external;
"""


@dataclass(frozen=True, slots=True)
class Store:
    """What a cluster's log is: its identity, and how many shards it has, for ever."""

    identity: int
    shards: int


def tail_name(shard: int, table: int) -> str:
    """Return the name of one of a shard's tables."""
    return f"message_tail_{shard}_{table}"


def make_message_tables(url: str, shards: int, schema: str = "everlog") -> None:
    """Make the tables of a cluster's log; a topic's shard is for ever, so the number of shards is too."""
    if not 1 <= shards <= MAX_SHARDS:
        raise UsageError(f"a cluster has 1 to {MAX_SHARDS} shards, not {shards}")
    store = secrets.randbits(63) | 1
    statements = [_TABLES]
    statements += [_TAIL.format(name=tail_name(shard, table)) for shard in range(shards) for table in range(TABLES)]
    statements.append(
        f"insert into message_store (version, store, shards) values ({VERSION}, {store}, {shards}) "
        "on conflict do nothing;"
    )
    values = ", ".join(f"({shard}, 0, 0, {secrets.randbits(63) | 1}, 0)" for shard in range(shards))
    statements.append(
        f"insert into message_shards (shard, epoch, probe, salt, start) values {values} on conflict do nothing;"
    )
    make_schema(url, schema, "\n".join(statements))


def read_store(database: ClusterDatabase) -> Store:
    """Return which log the tables hold."""

    def act(cursor: "Cursor") -> tuple[int, int, int]:
        cursor.execute("select version, store, shards from message_store")
        found = cursor.fetchone()
        if found is None:
            raise StorageError("the tables are empty", hint="make them again")
        return found[0], found[1], found[2]

    connection = database.connect()
    try:
        version, identity, shards = connection.call(act)
    finally:
        connection.close()
    if version != VERSION:
        raise StorageError(f"tables of version {version} are not known", hint="use a newer Everlog")
    return Store(identity, shards)
