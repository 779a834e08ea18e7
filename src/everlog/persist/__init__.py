"""persist: a server of streams, key-value stores and queues on a bus, alone or one of several on shared storage."""

from everlog.persist.drain import drain_server
from everlog.persist.local_shards import LocalShards, shard_directories
from everlog.persist.neighbours import refuse_strangers
from everlog.persist.ports import Begin, Failed, Post, ShardOpener
from everlog.persist.server import PersistServer
from everlog.persist.shard_keeper import DRAIN_S, PATIENCE_S, ShardKeeper
from everlog.persist.shared_shards import SharedShards
from everlog.persist.shared_storage import BucketStorage, SharedStorage, open_storage, shard_of_thing, thing_of
