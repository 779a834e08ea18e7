"""Whose a bucket is: `persist.json` in it has the id of the streams' home and its number of state shards."""

from msgspec import DecodeError, Struct, json

from everlog.base import StorageError, UsageError
from everlog.tiering import Bucket, check_bucket

FILE_NAME = "persist.json"


class BucketRecord(Struct, frozen=True, kw_only=True):
    """The contents of the object."""

    store: str
    shards: int
    version: int = 1


def claim_bucket(bucket: Bucket, record: BucketRecord) -> None:
    """Make a bucket that of a home of streams; refuse one that is another's, or that can't be relied on."""
    check_bucket(bucket)
    found = bucket.create(FILE_NAME, json.encode(record))
    if found is not None and _decode(found) != record:
        raise UsageError(
            "the bucket is that of another directory or storage",
            hint="use another bucket or prefix; if that directory is lost: everlog persist restore",
        )


def read_bucket_record(bucket: Bucket) -> BucketRecord:
    """Return whose a bucket is; raise UsageError if it has no streams."""
    found = bucket.get(FILE_NAME)
    if found is None:
        raise UsageError("the bucket has no streams", hint="is it the right bucket, and the right prefix?")
    return _decode(found)


def _decode(data: bytes) -> BucketRecord:
    try:
        record = json.decode(data, type=BucketRecord)
    except DecodeError as error:
        raise StorageError(f"{FILE_NAME} in the bucket can't be read: {error}", hint="use another bucket") from None
    if record.version != 1:
        raise StorageError(f"version {record.version} of the bucket is not known", hint="use a newer Everlog")
    return record
