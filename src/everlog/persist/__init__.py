"""persist: a server of streams, key-value stores and queues on a bus."""

from everlog.persist.local_shards import LocalShards, shard_directories
from everlog.persist.ports import Begin, Failed, Post, ShardOpener
from everlog.persist.server import PersistServer
