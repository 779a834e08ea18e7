"""The settings of a state shard, each with a safe default."""

from dataclasses import dataclass


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
    sync_records: int = 250_000  # or after so many records
    keep_records: int = 1_000_000  # in the journal, for followers that come back
    expire_rows: int = 1_000  # of a stream at a time
