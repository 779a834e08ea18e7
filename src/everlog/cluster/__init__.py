"""cluster: the message log of several brokers; PostgreSQL commits, a bucket remembers, every broker follows."""

from everlog.cluster.cluster_log import ClusterLog
from everlog.cluster.cluster_settings import ClusterSettings
from everlog.cluster.cluster_shard import ClusterShard
from everlog.cluster.database import ClusterDatabase
from everlog.cluster.history import ShardHistory, Stretch, Trimmed
from everlog.cluster.origins import Closed, Gap
from everlog.cluster.schema import Store, make_message_tables, read_store
