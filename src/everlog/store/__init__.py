"""store: topics meet the log; what was kept is found by filter and position."""

from everlog.store.indexer import TopicIndexer
from everlog.store.logstore import LogStore, StoreReader
from everlog.store.port import Found, Lost, MessageStore, Positions, Reader, ReadResult, ShardStatistics
from everlog.store.sharding import MAX_SHARDS, shard_of

__all__ = [
    "MAX_SHARDS",
    "Found",
    "LogStore",
    "Lost",
    "MessageStore",
    "Positions",
    "ReadResult",
    "Reader",
    "ShardStatistics",
    "StoreReader",
    "TopicIndexer",
    "shard_of",
]
