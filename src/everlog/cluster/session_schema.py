"""The tables of a cluster's sessions, groups, retained messages and outbox (`docs/formats/postgres.md`), made once."""

import hashlib

from everlog.tiering import make_schema

_TABLES = """
create table if not exists session_brokers (
    incarnation bigint primary key, routed bytea not null, alive_us bigint not null, wills bigint not null default 0
) with (fillfactor = 50);
create table if not exists sessions (
    client bytea primary key, client_id text not null, holder bigint not null, is_kept boolean not null,
    username text, version smallint not null, expiry_s bigint not null, away_us bigint not null, will bytea
);
create index if not exists sessions_by_holder on sessions (holder);
create table if not exists session_filters (
    client bytea not null, key bytea not null, filter text not null, options smallint not null,
    identifier integer not null, since bytea not null, primary key (client, key)
);
create table if not exists session_cursors (
    client bytea primary key, positions bytea not null, next_id integer not null, inflight bytea not null,
    received bytea not null, unsure bytea not null, doubt bytea not null, feeds bytea not null,
    unsure_of bigint not null default 0
) with (fillfactor = 50);
create table if not exists session_wills (
    client bytea primary key, client_id text not null, holder bigint not null, username text, will bytea not null
);
create index if not exists session_wills_by_holder on session_wills (holder);
create table if not exists session_groups (
    name_key bytea not null, filter_key bytea not null, name text not null, filter text not null,
    holder bigint not null, is_kept boolean not null, options smallint not null, positions bytea not null,
    owed bytea not null, doubt bytea not null, primary key (name_key, filter_key)
) with (fillfactor = 50);
create index if not exists session_filters_shared on session_filters (key) where filter like '$share/%';
create table if not exists group_deals (
    name_key bytea not null, filter_key bytea not null, position bigint not null, client_id text not null,
    taker bigint not null, primary key (name_key, filter_key, position)
) with (fillfactor = 50);
create table if not exists retained_messages (
    key bytea primary key, topic text not null, shard integer not null, message bytea not null, after bigint not null
);
create table if not exists retained_shards (shard integer primary key, as_of bigint not null);
create table if not exists retained_names (
    incarnation bigint not null, first bigint not null, stop bigint not null, names bytea not null,
    primary key (incarnation, first)
);
create table if not exists outbox (
    shard integer not null, number bigint not null, client_id text not null, username text, will bytea not null,
    primary key (shard, number)
);
create table if not exists outbox_ends (shard integer primary key, last bigint not null) with (fillfactor = 50);
"""
_WHOLE_BYTES = 1000  # of a name that is its own key: an index takes up to 2,700 bytes, and a name may have 65,535
_PREFIX_BYTES = 968


def make_session_tables(url: str, schema: str = "everlog") -> None:
    """Make the tables of sessions, beside those of ownership; no table is made or changed later."""
    make_schema(url, schema, _TABLES)


def key_of(name: str) -> bytes:
    """Return what a client id, filter or topic is found by: itself, or the beginning and a hash of a long one."""
    data = name.encode()
    if len(data) <= _WHOLE_BYTES:
        return data
    return data[:_PREFIX_BYTES] + b"\0" + hashlib.sha256(data).digest()  # no name has a zero byte


def message_shard(shard: int) -> str:
    """Return the name by which a shard of messages is claimed."""
    return f"messages-{shard}"
