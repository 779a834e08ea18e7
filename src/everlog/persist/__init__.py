"""persist: a server of streams, key-value stores and queues on a bus."""

from everlog.persist.ports import Post, ShardOpener
from everlog.persist.server import PersistServer
