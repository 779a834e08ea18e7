"""The settings of a state shard, each with a safe default."""

from dataclasses import dataclass, replace

ARCHIVE_US = 5_000_000


@dataclass(frozen=True, slots=True)
class ShardSettings:
    """Limits of a state shard, and what happens at them."""

    most_open: int = 1_000  # files of streams; the least recently used are closed
    most_states: int = 20_000  # streams in memory; the least recently used are let go
    apply_rows: int = 256  # pending records of a stream are applied to its file together,
    apply_bytes: int = 1 << 20  # or when they have so many bytes,
    apply_us: int = 30_000_000  # or have waited so long
    pending_rows: int = 500_000  # of all streams; those that waited longest are applied
    pending_bytes: int = 192 << 20
    waiting: int = 200_000  # requests that wait for a commit; more are refused as BUSY
    max_message_bytes: int = 64 << 20  # of any message; larger ones are refused
    upload_bytes: int = 256 << 20  # of values that are being uploaded; more are refused as BUSY
    reply_bytes: int = 256 << 10  # of a chunk in a series of replies
    value_bytes: int = 1 << 20  # larger values are left out of replies and events, and read in parts
    sync_us: int = 60_000_000  # files are synced, and the journal trimmed, so often,
    sync_records: int = 1_000_000  # or after so many records; those behind are read again after a crash
    keep_records: int = 1_000_000  # in the journal, for followers that come back
    expire_rows: int = 1_000  # of a stream at a time

    # with a bucket:
    upload_us: int = 60_000_000  # how often changed streams are packed
    archive_us: int = ARCHIVE_US  # how often at most the journal is copied there, for writes at the level archived
    most_files: int = 0  # of packed streams on the local disk; the least recently used go. 0: no limit
    files_bytes: int = 0  # of those, as they are in packs; 0: no limit
    unarchived_records: int = 10_000_000  # that a journal keeps for a bucket that can't be reached
    history_us: int = 3600_000_000  # how long the bucket keeps the journal behind packs, for restores
    unnamed_us: int = 24 * 3600_000_000  # how long packs stay that nothing names any more

    def chunk(self, asked: int) -> int:
        """Return how many bytes of messages fill a reply: what the caller wants, if that is less."""
        return min(asked, self.reply_bytes) if asked > 0 else self.reply_bytes

    def shared_by(self, shards: int) -> "ShardSettings":
        """Return the settings of each of several shards in one process: what they hold together has the same limits."""
        if shards == 1:
            return self
        return replace(
            self,
            most_open=max(self.most_open // shards, 32),
            most_states=max(self.most_states // shards, 1_000),
            pending_rows=max(self.pending_rows // shards, 10_000),
            pending_bytes=max(self.pending_bytes // shards, 8 << 20),
            most_files=-(-self.most_files // shards),
            files_bytes=-(-self.files_bytes // shards),
        )
