"""The values in requests, replies and feed events: messages, entries, limits, levels, error codes.

All are frozen msgspec structs that are encoded as MessagePack arrays, with a short tag first where several kinds may
stand in one place. New fields go to the end and have a default, so that an older peer can still read the rest.

A **name** (of a stream or a key-value store; one name is one thing, of the kind that its first write made it) is an
MQTT topic without wildcards, of 1 to 512 bytes. A **position** is a record's place in its state shard, counted from 0;
with the shard's **epoch** it says how much of the shard somebody has seen. Times are microseconds since 1970.
"""

from enum import IntEnum, StrEnum
from typing import Annotated, TypeAlias

from msgspec import Meta, Struct

MOST = (1 << 62) - 1  # of seqs, sizes and times: whatever is added to one stays a number that SQLite can hold
Number: TypeAlias = Annotated[int, Meta(ge=-MOST, le=MOST)]
OwnNumber: TypeAlias = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]  # a caller's own, of 64 bits


class Level(IntEnum):
    """How safe a write is when it is acknowledged; a reply says which level was reached."""

    MEMORY = 0  # appended in the owner's memory; lost if that process dies before the next commit
    FSYNC = 1  # committed: it survives what the commit target survives
    ARCHIVED = 2  # in the bucket as well


class Kind(StrEnum):
    """What a name stands for."""

    STREAM = "stream"
    KV = "kv"


class Discard(StrEnum):
    """Who gives way when a stream is full."""

    OLD = "old"  # the oldest messages go
    NEW = "new"  # the write is refused


class ErrorCode(StrEnum):
    """Why a request was not done. Those in `RETRIED` may be tried again as they are, with the same message id."""

    BAD_REQUEST = "bad_request"  # can't be understood, or asks for something that can't be
    NOT_FOUND = "not_found"  # no such stream, seq, key or queue
    WRONG_KIND = "wrong_kind"  # a stream's operation on a key-value store, or the other way round
    EXISTS = "exists"  # `create`: the key has a value; `set` at a seq that is taken and was to be new
    WRONG_REVISION = "wrong_revision"  # compare-and-set: somebody else was first; `revision` is the current one
    FULL = "full"  # the stream's count or bytes are used up and it discards new messages
    TOO_LARGE = "too_large"  # the message is larger than the stream's limit, or the shard's
    RATE = "rate"  # more writes a second than the stream's limit; try later
    STALE_RETRY = "stale_retry"  # a message id so old that nobody knows any more whether it was written
    RESET = "reset"  # the position is below the horizon, or of another epoch: begin with a snapshot
    CHANGED = "changed"  # what is read in parts was changed or deleted meanwhile
    DENIED = "denied"
    WRONG_SHARD = "wrong_shard"  # the name does not belong to that shard
    NOT_OWNER = "not_owner"  # another server owns the shard: `owner` says who, if that is known
    BEHIND = "behind"  # this server knows less than the caller has seen
    FENCED = "fenced"  # this server lost the shard before the write was committed: it may be written or not
    BUSY = "busy"  # too much waits already
    UNAVAILABLE = "unavailable"  # closing, opening, or the disk can't be written now
    STORAGE = "storage"  # the disk or bucket failed or holds something that can't be trusted
    TIMEOUT = "timeout"  # no answer in time: it may be written or not (made by clients)


RETRIED = frozenset(
    {
        ErrorCode.NOT_OWNER,
        ErrorCode.BEHIND,
        ErrorCode.FENCED,
        ErrorCode.BUSY,
        ErrorCode.UNAVAILABLE,
        ErrorCode.TIMEOUT,
    }
)


class Message(Struct, array_like=True, frozen=True, gc=False):
    """What a caller writes: everything in it is kept as given, an absent value and an absent time too."""

    value: bytes | None = None
    headers: dict[str, str] | None = None
    timestamp: OwnNumber | float | None = None  # the caller's own, in its own unit; nothing is derived from it


class StoredMessage(Struct, array_like=True, frozen=True, gc=False):
    """A message as it is kept in a stream."""

    seq: int
    time_us: int  # given by the server; never decreases with the position
    value: bytes | None
    headers: dict[str, str] | None = None
    timestamp: int | float | None = None
    expires_us: int = 0  # 0 for never
    position: int = 0  # of the record that wrote it: names this very content of the seq
    size: int = 0  # of the value in bytes
    is_cut: bool = False  # the value is larger than asked for and left out: `ReadValue` gets it in parts


class Entry(Struct, array_like=True, frozen=True, gc=False):
    """A key's value as it is kept in a key-value store."""

    key: str
    revision: int  # of the store: grows with each change of any key, with gaps
    time_us: int
    value: bytes | None
    headers: dict[str, str] | None = None
    timestamp: int | float | None = None
    expires_us: int = 0
    position: int = 0
    size: int = 0
    is_cut: bool = False


class Config(Struct, array_like=True, frozen=True, gc=False):
    """The limits of a stream or key-value store; 0 is no limit. A key-value store has no `discard`: it refuses."""

    max_messages: Number = 0
    max_bytes: Number = 0  # of values, headers (as JSON) and keys
    max_age_us: Number = 0
    max_message_bytes: Number = 0  # 0: what the shard allows (64 MB by default)
    max_rate: Number = 0  # messages a second, with a burst of a second
    discard: Discard = Discard.OLD
    dedup_ids: Number = 10_000  # how many message ids are remembered
    dedup_us: Number = 600_000_000  # and for how long, in the stream's time


class QueueConfig(Struct, array_like=True, frozen=True, gc=False):
    """How a queue on a stream hands messages out."""

    ack_wait_us: Number = 30_000_000  # a message that is not acked by then is handed out again
    max_deliveries: Number = 0  # then it is a dead letter; 0: without end
    max_pending: Number = 1_000  # handed out and not yet acked; no more are handed out beyond it
