"""What a state shard's journal holds: records of decided effects, never of wishes (`docs/formats/streams.md`).

Whoever replays them gets the same state, whatever clock and limits it has. Every record says how large its stream is
after it, so that a stream's numbers need no more than the last one.
"""

from msgspec import Struct
from msgspec.msgpack import Decoder, Encoder

from everlog.streams.feed_events import Reason
from everlog.streams.values import Config, Kind, QueueConfig

NO_POSITION = -1


class PutMessage(Struct, array_like=True, frozen=True, gc=False, tag=0):
    """A message at a seq, in place of one that may be there."""

    seq: int
    value: bytes | None
    headers: dict[str, str] | None = None
    timestamp: int | float | None = None
    expires_us: int = 0
    upload: str | None = None  # the value is what earlier `Part`s of this upload hold
    size: int = 0  # of an uploaded value
    copied_us: int = 0  # of a fork: when the message was first written; else it is the record's time


class DropMessages(Struct, array_like=True, frozen=True, gc=False, tag=1):
    """All messages in these ranges of seqs, first and last included, are gone."""

    ranges: list[tuple[int, int]]
    reason: Reason = Reason.ASKED


class PutKey(Struct, array_like=True, frozen=True, gc=False, tag=2):
    """A key's value, in place of one that it may have."""

    key: str
    revision: int
    value: bytes | None
    headers: dict[str, str] | None = None
    timestamp: int | float | None = None
    expires_us: int = 0
    upload: str | None = None
    size: int = 0
    copied_us: int = 0


class DropKeys(Struct, array_like=True, frozen=True, gc=False, tag=3):
    """Keys are gone."""

    keys: list[str]
    reason: Reason = Reason.ASKED


class DropAll(Struct, array_like=True, frozen=True, gc=False, tag=4):
    """Everything is gone; if it is removed, the name too, with queues and limits."""

    is_removed: bool = False


class SetConfig(Struct, array_like=True, frozen=True, gc=False, tag=5):
    """The stream exists and has these limits; a hidden one is being copied and not yet there for anybody."""

    kind: Kind
    config: Config
    is_hidden: bool = False


class Part(Struct, array_like=True, frozen=True, gc=False, tag=6):
    """A part of a large value that a later record names; parts of an upload come in order, from 0."""

    upload: str
    part: int
    data: bytes


class DropUpload(Struct, array_like=True, frozen=True, gc=False, tag=7):
    """An upload that nobody asked for is gone."""

    upload: str


class SetQueue(Struct, array_like=True, frozen=True, gc=False, tag=8):
    """A queue exists and hands out so; a new one begins at the cursor."""

    queue: str
    config: QueueConfig
    cursor: int


class DropQueue(Struct, array_like=True, frozen=True, gc=False, tag=9):
    """A queue is gone."""

    queue: str


class Taken(Struct, array_like=True, frozen=True, gc=False, tag=10):
    """A queue handed messages out, or took them back: (seq, ticket, due again at, deliveries so far)."""

    queue: str
    cursor: int
    messages: list[tuple[int, int, int, int]]


class Acked(Struct, array_like=True, frozen=True, gc=False, tag=11):
    """A queue is done with messages."""

    queue: str
    seqs: list[int]


class Died(Struct, array_like=True, frozen=True, gc=False, tag=12):
    """A queue gave up on messages, which are kept as dead letters: (seq, deliveries)."""

    queue: str
    messages: list[tuple[int, int]]


class Revived(Struct, array_like=True, frozen=True, gc=False, tag=13):
    """Dead letters are dropped, or due to be handed out again; those stay as they are until they are acked."""

    queue: str
    seqs: list[int]
    is_dropped: bool


Effect = (
    PutMessage | DropMessages | PutKey | DropKeys | DropAll | SetConfig | Part | DropUpload
    | SetQueue | DropQueue | Taken | Acked | Died | Revived
)  # fmt: skip


class Record(Struct, array_like=True, frozen=True, gc=False):
    """All that one decision changed in one stream, and the stream's numbers after it."""

    epoch: int
    previous: int  # the stream's last visible change before this record; -1 for none
    time_us: int  # never below that of any record before it in the shard
    last_seq: int  # or the store's revision
    messages: int
    bytes: int
    effects: list[Effect]
    message_id: str | None = None
    seq: int = 0  # what the write was answered: the message's seq, the key's revision; of a batch, the last one's,
    count: int = 0  # how many messages or keys it wrote or deleted,
    seqs: list[int] | None = None  # and of a batch, that of each write

    @property
    def is_visible(self) -> bool:
        """Whether followers are told of it."""
        for effect in self.effects:  # noqa: SIM110  (called for every record)
            if type(effect) in _VISIBLE:
                return True
        return False


_VISIBLE = {PutMessage, DropMessages, PutKey, DropKeys, DropAll, SetConfig}

encode_record = Encoder().encode
decode_record = Decoder(Record).decode
