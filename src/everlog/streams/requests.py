"""What a caller may ask of a stream, key-value store or queue."""

from msgspec import Struct

from everlog.streams.values import Config, Kind, Level, Message, Number, QueueConfig


class Request(Struct, array_like=True, frozen=True, gc=False):
    """What is asked of one stream, key-value store or queue."""

    stream: str  # its name


class Set(Request, frozen=True, tag="set"):
    """Append a message, or write it at a seq (which may be taken: its content is replaced; gaps may remain)."""

    message: Message
    seq: Number | None = None  # None: the next one
    message_id: str | None = None  # a retry with the same id is answered like the first and written once
    ttl_us: Number = 0
    level: Level = Level.FSYNC
    expected_last_seq: Number | None = None  # WRONG_REVISION unless the stream's last seq is this one
    must_be_new: bool = False  # EXISTS if the seq is taken
    upload: str | None = None  # the value is what was uploaded by this id; `message.value` is None


class Delete(Request, frozen=True, tag="delete"):
    """Delete messages by seq; those that are not there count as deleted."""

    seqs: list[Number]
    message_id: str | None = None
    level: Level = Level.FSYNC


class DeleteAll(Request, frozen=True, tag="delete_all"):
    """Delete all messages up to a seq, that one included, or all; of a key-value store, all keys."""

    end_seq: Number | None = None
    message_id: str | None = None
    level: Level = Level.FSYNC


class KvPut(Request, frozen=True, tag="put"):
    """Give a key a value, whatever it had."""

    key: str
    message: Message
    message_id: str | None = None
    ttl_us: Number = 0
    level: Level = Level.FSYNC
    upload: str | None = None


class KvCreate(Request, frozen=True, tag="create"):
    """Give a key a value if it has none."""

    key: str
    message: Message
    message_id: str | None = None
    ttl_us: Number = 0
    level: Level = Level.FSYNC
    upload: str | None = None


class KvCas(Request, frozen=True, tag="cas"):
    """Give a key a value if its revision is the expected one (0: if it has none)."""

    key: str
    message: Message
    revision: Number
    message_id: str | None = None
    ttl_us: Number = 0
    level: Level = Level.FSYNC
    upload: str | None = None


class KvDelete(Request, frozen=True, tag="kv_delete"):
    """Delete a key, if it has the expected revision where one is given."""

    key: str
    revision: Number | None = None
    message_id: str | None = None
    level: Level = Level.FSYNC


Write = Set | Delete | DeleteAll | KvPut | KvCreate | KvCas | KvDelete


class Batch(Request, frozen=True, tag="batch"):
    """Do all these writes to this stream, or none of them; their own ids and levels do not count."""

    writes: list[Write]
    message_id: str | None = None
    level: Level = Level.FSYNC


class Upload(Request, frozen=True, tag="upload"):
    """Send a part of a large value ahead of the write that names the upload; parts come in order, from 0.

    Parts nobody asked for within an hour are dropped. A part that is sent again is taken once. If there is no such
    stream or store yet, the first part makes one of the kind.
    """

    upload: str
    part: Number
    data: bytes
    kind: Kind = Kind.STREAM


class Configure(Request, frozen=True, tag="configure"):
    """Make a stream or key-value store if there is none, and set its limits."""

    kind: Kind = Kind.STREAM
    config: Config = Config()
    level: Level = Level.FSYNC
    message_id: str | None = None


class Remove(Request, frozen=True, tag="remove"):
    """Remove a stream or key-value store with its queues and limits."""

    message_id: str | None = None
    level: Level = Level.FSYNC


class Fork(Request, frozen=True, tag="fork"):
    """Copy a stream or key-value store, as of now, to a new name of the same shard: state and limits, not queues."""

    target: str
    message_id: str | None = None
    level: Level = Level.FSYNC


class Get(Request, frozen=True, tag="get"):
    """Read one message; its value is left out (`is_cut`) if it is larger than `max_bytes` (0: the shard's)."""

    seq: Number
    max_bytes: Number = 0


class GetAll(Request, frozen=True, tag="get_all"):
    """Read messages by rising seq. The answer is a series of `Messages`; the caller's credit says how far it goes."""

    start_seq: Number = 0
    end_seq: Number | None = None  # included
    limit: Number | None = None
    chunk_bytes: Number = 0  # 0: the shard's


class ReadValue(Request, frozen=True, tag="read_value"):
    """Read a part of a large value; CHANGED unless it is still the content that this position wrote."""

    position: Number
    offset: Number
    length: Number
    seq: Number | None = None  # of a stream
    key: str | None = None  # of a key-value store


class KvGet(Request, frozen=True, tag="kv_get"):
    """Read a key's value."""

    key: str
    max_bytes: Number = 0


class KvKeys(Request, frozen=True, tag="keys"):
    """Read the keys that begin with a prefix, in order, after a key; with values as `Entries`, else as `Keys`."""

    prefix: str = ""
    after: str | None = None
    limit: Number | None = None
    with_values: bool = False
    chunk_bytes: Number = 0


class Info(Request, frozen=True, tag="info"):
    """Read the numbers of a stream or key-value store."""


class Download(Request, frozen=True, tag="download"):
    """Read the stream or key-value store, as of now, as a plain SQLite file: a series of `FileParts`."""

    chunk_bytes: Number = 0


class FeedBootstrap(Request, frozen=True, tag="bootstrap"):
    """Read the state as of a position, in chunks, then `CaughtUp`; live `FeedEvent`s chain from that position.

    Subscribe to the stream's feed first and buffer what comes: events up to the position of `CaughtUp` are in the
    state already. `prefix` picks keys of a key-value store (a watch).
    """

    prefix: str = ""
    chunk_bytes: Number = 0
    kind: Kind | None = None  # WRONG_KIND if it is the other


class FeedResume(Request, frozen=True, tag="resume"):
    """Read the events after (epoch, position), then `CaughtUp`; or `FeedReset`, and then as in `FeedBootstrap`."""

    epoch: Number
    position: Number
    prefix: str = ""
    chunk_bytes: Number = 0
    kind: Kind | None = None  # WRONG_KIND if it is the other


class QueueConfigure(Request, frozen=True, tag="queue_configure"):
    """Make a queue that begins at a seq (None: after the last message), or change how it hands out."""

    queue: str
    config: QueueConfig = QueueConfig()
    start_seq: Number | None = 0
    level: Level = Level.FSYNC


class QueueRemove(Request, frozen=True, tag="queue_remove"):
    """Remove a queue with its dead letters."""

    queue: str
    level: Level = Level.FSYNC


class QueueTake(Request, frozen=True, tag="take"):
    """Take up to `limit` messages; empty if there is nothing now (`QueueLag.next_us` says when to ask again)."""

    queue: str
    limit: Number = 1
    max_bytes: Number = 0
    message_id: str | None = None  # a retry gets the same messages


class QueueAck(Request, frozen=True, tag="ack"):
    """Be done with messages, by the tickets they came with."""

    queue: str
    tickets: list[Number]
    level: Level = Level.FSYNC


class QueueNack(Request, frozen=True, tag="nack"):
    """Give messages back: they are handed out again after a delay, or become dead letters."""

    queue: str
    tickets: list[Number]
    delay_us: Number = 0
    level: Level = Level.FSYNC


class QueueLag(Request, frozen=True, tag="lag"):
    """Read the numbers of a queue."""

    queue: str


class QueueDead(Request, frozen=True, tag="dead"):
    """Read dead letters by rising seq."""

    queue: str
    after_seq: Number = 0
    limit: Number = 100


class QueueRevive(Request, frozen=True, tag="revive"):
    """Hand dead letters out again, as if for the first time, or drop them."""

    queue: str
    seqs: list[Number]
    drop: bool = False
    level: Level = Level.FSYNC


AnyRequest = (
    Set | Delete | DeleteAll | KvPut | KvCreate | KvCas | KvDelete | Batch | Upload | Configure | Remove | Fork
    | Get | GetAll | ReadValue | KvGet | KvKeys | Info | Download | FeedBootstrap | FeedResume
    | QueueConfigure | QueueRemove | QueueTake | QueueAck | QueueNack | QueueLag | QueueDead | QueueRevive
)  # fmt: skip


class Call(Struct, array_like=True, frozen=True, gc=False):
    """A request, and the highest (epoch, position) of the shard that the caller has seen in any reply or event.

    An owner that knows less answers BEHIND, so what a caller sees never goes back. (0, -1) is nothing seen.

    A retry of a write with a message id says where its caller stood at the first try. If the stream has forgotten ids
    of writes after that, nobody can know whether this one was written, and the retry is refused (STALE_RETRY).
    """

    request: AnyRequest
    seen_epoch: Number = 0
    seen_position: Number = -1
    first_seen_position: Number | None = None  # of a retry: what the caller had seen when it first sent this; else None


Series = GetAll | KvKeys | Download | FeedBootstrap | FeedResume  # answered by a series of replies
