"""base: errors by blame, and the columns that messages travel in."""

from everlog.base.columns import (
    DROPPED,
    DUP,
    HAS_ALIAS,
    HAS_EXPIRY,
    QOS_BITS,
    QOS_SHIFT,
    RETAIN,
    AckRun,
    MessageColumns,
    PublishRun,
)
from everlog.base.errors import EverlogError, PeerError, StorageError, Unavailable, UsageError
from everlog.base.gathering import gather, select
from everlog.base.interning import TopicTable
from everlog.base.records import HEADER_BYTES, Layout, RecordBuilder, Records

__all__ = [
    "DROPPED",
    "DUP",
    "HAS_ALIAS",
    "HAS_EXPIRY",
    "HEADER_BYTES",
    "QOS_BITS",
    "QOS_SHIFT",
    "RETAIN",
    "AckRun",
    "EverlogError",
    "Layout",
    "MessageColumns",
    "PeerError",
    "PublishRun",
    "RecordBuilder",
    "Records",
    "StorageError",
    "TopicTable",
    "Unavailable",
    "UsageError",
    "gather",
    "select",
]
