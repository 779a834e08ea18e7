"""What settings make of the persistence service, beside a broker or in a process of its own."""

from everlog.app.settings import Settings
from everlog.streams import ShardSettings
from everlog.tiering import Bucket, open_bucket


def shard_settings(settings: Settings) -> ShardSettings:
    """Return the limits of state shards."""
    persist = settings.persist
    return ShardSettings(
        max_message_bytes=persist.message_bytes,
        most_files=persist.local_files or 0,
        files_bytes=persist.local_bytes or 0,
    )


def bucket_of(settings: Settings) -> Bucket | None:
    """Return the bucket beside local disks, if there is one."""
    return None if settings.persist.bucket is None else open_bucket(settings.persist.bucket)
