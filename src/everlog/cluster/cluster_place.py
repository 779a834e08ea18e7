"""Where a cluster is: its database and its bucket, which name each other, made once and looked at before each use."""

import msgspec
from msgspec import Struct

from everlog.base import StorageError, UsageError
from everlog.cluster.database import ClusterDatabase
from everlog.cluster.schema import Store, make_message_tables, read_store
from everlog.cluster.session_schema import make_session_tables
from everlog.ownership import make_ownership_tables
from everlog.tiering import Bucket, check_bucket

BUCKET_RECORD = "cluster"  # the object that says whose bucket it is


class BucketRecord(Struct, frozen=True, kw_only=True):
    """What a bucket says of itself."""

    store: int
    version: int = 1


def init_cluster(database: ClusterDatabase, bucket: Bucket, shards: int) -> Store:
    """Make a cluster; what is there of it stays, so it may be asked for again."""
    check_bucket(bucket)
    make_message_tables(database.url, shards, database.schema)
    make_ownership_tables(database.url, database.schema)
    make_session_tables(database.url, database.schema)
    store = read_store(database)
    if store.shards != shards:
        raise UsageError(
            f"the cluster is there already, with {store.shards} shards",
            hint="a topic's shard is for ever, and so is their number: choose another --schema for another cluster",
        )
    record = msgspec.json.encode(BucketRecord(store=store.identity))
    found = bucket.create(BUCKET_RECORD, record)
    if found is not None:
        _check(found, store)
    return store


def find_cluster(database: ClusterDatabase, bucket: Bucket | None = None) -> Store:
    """Return which cluster a database has; raise StorageError if there is none, or a bucket is not its own."""
    try:
        store = read_store(database)
    except StorageError as error:
        if error.hint != "make the tables first":
            raise
        raise StorageError(
            f"there is no cluster in this database, schema {database.schema}", hint="make it: everlog cluster init"
        ) from error
    if bucket is not None:
        found = bucket.get(BUCKET_RECORD)
        if found is None:
            raise StorageError(
                "the bucket belongs to no cluster",
                hint="is its place right, and is it mounted? `everlog cluster init` makes a new one the cluster's own",
            )
        _check(found, store)
    return store


def _check(found: bytes, store: Store) -> None:
    try:
        record = msgspec.json.decode(found, type=BucketRecord)
    except msgspec.MsgspecError as error:
        raise StorageError(f"the bucket's object {BUCKET_RECORD!r} can't be read: {error}") from error
    if record.version != 1:
        raise StorageError(f"a bucket of version {record.version} is not known", hint="use a newer Everlog")
    if record.store != store.identity:
        raise StorageError(
            "the bucket belongs to another cluster than the database",
            hint="give the bucket that this cluster was made with, or a new one to `everlog cluster init`",
        )
