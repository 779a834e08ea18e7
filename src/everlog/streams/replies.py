"""What a caller gets for a request: a reply with a result, a series of them, or a failure."""

from typing import Any

from msgspec import Struct

from everlog.streams.feed_events import FeedEvents
from everlog.streams.values import Config, Entry, ErrorCode, Kind, Level, QueueConfig, StoredMessage


class Written(Struct, array_like=True, frozen=True, gc=False, tag="written"):
    """A write is done. `seq` is the seq of a message or the revision of a key; of a batch, that of its last write."""

    seq: int
    time_us: int
    position: int  # of the record that holds its effect
    previous: int  # the stream's position before it; -1 for none
    is_duplicate: bool = False  # it was written before, by this message id
    seqs: list[int] | None = None  # of a batch: one for each write
    count: int = 1  # messages or keys that were written or deleted


class Nothing(Struct, array_like=True, frozen=True, gc=False, tag="nothing"):
    """Done, and nothing to tell; a write that had no effect (such as deleting what is not there)."""


class Messages(Struct, array_like=True, frozen=True, gc=False, tag="messages"):
    """One or more messages of a stream; `is_last` ends a series, and `next_seq` is where to go on after a pause."""

    messages: list[StoredMessage]
    is_last: bool = True
    next_seq: int = 0


class Entries(Struct, array_like=True, frozen=True, gc=False, tag="entries"):
    """One or more entries of a key-value store; `is_last` ends a series."""

    entries: list[Entry]
    is_last: bool = True


class Keys(Struct, array_like=True, frozen=True, gc=False, tag="keys"):
    """Keys of a key-value store, in order; `is_last` ends a series."""

    keys: list[str]
    is_last: bool = True


class ValuePart(Struct, array_like=True, frozen=True, gc=False, tag="value_part"):
    """A part of a large value."""

    data: bytes
    size: int  # of the whole value


class FilePart(Struct, array_like=True, frozen=True, gc=False, tag="file_part"):
    """A part of a SQLite file; `is_last` ends a series."""

    data: bytes
    offset: int
    is_last: bool


class StreamInfo(Struct, array_like=True, frozen=True, gc=False, tag="info"):
    """A stream or key-value store in numbers."""

    stream: str
    kind: Kind
    config: Config
    messages: int  # or keys
    bytes: int
    first_seq: int  # 0 if empty
    last_seq: int  # ever given: the next message gets one more; of a key-value store, its revision
    last_time_us: int
    position: int  # of its last change
    queues: list[str]


class Delivery(Struct, array_like=True, frozen=True, gc=False):
    """A message that a queue hands out."""

    ticket: int  # to ack or nack with; each handing out has its own
    deliveries: int  # 1 for the first
    message: StoredMessage


class Deliveries(Struct, array_like=True, frozen=True, gc=False, tag="deliveries"):
    """What a queue hands out."""

    deliveries: list[Delivery]


class Lag(Struct, array_like=True, frozen=True, gc=False, tag="lag"):
    """A queue in numbers."""

    queue: str
    config: QueueConfig
    cursor: int  # everything below this seq was handed out at least once
    waiting: int  # messages that were not yet handed out
    pending: int  # handed out and not acked
    delayed: int  # given back, and waiting for their time
    dead: int
    acked: int
    next_us: int  # when something is due again; 0: now, -1: when something is written


class DeadLetter(Struct, array_like=True, frozen=True, gc=False):
    """A message that a queue gave up on, as it was."""

    deliveries: int
    died_us: int
    message: StoredMessage


class DeadLetters(Struct, array_like=True, frozen=True, gc=False, tag="dead"):
    """Dead letters of a queue; `is_last` if there are no more."""

    letters: list[DeadLetter]
    is_last: bool


class CaughtUp(Struct, array_like=True, frozen=True, gc=False, tag="caught_up"):
    """The state, or the missed events, are complete up to `position`; live events chain from it."""

    position: int  # of the stream's last change; -1 if it has none
    last_seq: int


class FeedReset(Struct, array_like=True, frozen=True, gc=False, tag="reset"):
    """Forget the state: what was asked for is not there any more, and a snapshot follows."""

    reason: str  # "horizon", "epoch" or "unknown"


Result = (
    Written | Nothing | Messages | Entries | Keys | ValuePart | FilePart | StreamInfo | Deliveries | Lag | DeadLetters
    | CaughtUp | FeedReset | FeedEvents
)  # fmt: skip


class Reply(Struct, array_like=True, frozen=True, gc=False, tag="ok"):
    """A request was done: at which epoch and as of which position of the shard, at which level."""

    epoch: int
    position: int  # the last one that the answer depends on
    level: Level
    result: Result
    is_last: bool = True  # False: more replies follow to the same request


class Failure(Struct, array_like=True, frozen=True, gc=False, tag="error"):
    """A request was not done, or ended early."""

    code: ErrorCode
    message: str
    hint: str = ""
    epoch: int = 0
    owner: str = ""  # NOT_OWNER: an address, if one is known
    revision: int = 0  # WRONG_REVISION, EXISTS: the current revision or last seq
    is_last: bool = True


Answer = Reply | Failure


def show(value: Any) -> str:
    """Return a short name of a request's or event's kind, for logs and metrics."""
    return str(getattr(type(value).__struct_config__, "tag", None) or type(value).__name__.lower())
