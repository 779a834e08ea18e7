"""streams: streams, key-value stores and queues of a state shard, decided by one owner and kept in its journal."""

from everlog.streams.feed_events import (
    AllDeleted,
    Change,
    Configured,
    EpochBegan,
    FeedEvent,
    FeedEvents,
    KeysDeleted,
    KeySet,
    MessagesDeleted,
    MessageSet,
    Reason,
)
from everlog.streams.local_journal import LocalJournal
from everlog.streams.names import check_name, state_shard_of
from everlog.streams.ports import Archive, Clock, Journal, PackReader, Shard
from everlog.streams.replies import (
    Answer,
    CaughtUp,
    DeadLetter,
    DeadLetters,
    Deliveries,
    Delivery,
    Entries,
    Failure,
    FeedReset,
    FilePart,
    Keys,
    Lag,
    Messages,
    Nothing,
    Reply,
    Result,
    StreamInfo,
    ValuePart,
    Written,
    show,
)
from everlog.streams.requests import (
    AnyRequest,
    Batch,
    Call,
    Configure,
    Delete,
    DeleteAll,
    Download,
    FeedBootstrap,
    FeedResume,
    Fork,
    Get,
    GetAll,
    Info,
    KvCas,
    KvCreate,
    KvDelete,
    KvGet,
    KvKeys,
    KvPut,
    QueueAck,
    QueueConfigure,
    QueueDead,
    QueueLag,
    QueueNack,
    QueueRemove,
    QueueRevive,
    QueueTake,
    ReadValue,
    Remove,
    Request,
    Series,
    Set,
    Upload,
    Write,
)
from everlog.streams.shard_settings import ShardSettings
from everlog.streams.shard_snapshot import ShardSnapshot, SnapshotStream, take_snapshot
from everlog.streams.snapshot_reader import read_snapshot
from everlog.streams.state_shard import StateShard
from everlog.streams.tier import Tier, TierThreads
from everlog.streams.values import (
    RETRIED,
    Config,
    Discard,
    Entry,
    ErrorCode,
    Kind,
    Level,
    Message,
    QueueConfig,
    StoredMessage,
)
