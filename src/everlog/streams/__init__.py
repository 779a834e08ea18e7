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
from everlog.streams.fresh import Asked, new_asked
from everlog.streams.local_journal import LocalJournal
from everlog.streams.names import check_name, state_shard_of
from everlog.streams.plain_requests import DECIDED, NOT_PLAIN, PlainRequests
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
from everlog.streams.shard_check import Checked, Damaged, check_shard_in_bucket, check_shard_on_disk
from everlog.streams.shard_places import BucketPlace, LocalPlace, ShardPlace, SnapshotStream
from everlog.streams.shard_settings import ShardSettings
from everlog.streams.shard_snapshot import ShardSnapshot, take_snapshot
from everlog.streams.snapshot_reader import read_snapshot
from everlog.streams.state_shard import StateShard
from everlog.streams.stream_restore import AsOf, Restored, restore_stream
from everlog.streams.tier import Tier, TierThreads
from everlog.streams.values import (
    MOST,
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
