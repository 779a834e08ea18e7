"""cluster: messages and sessions of several brokers: PostgreSQL commits and fences, a bucket remembers, all follow."""

from everlog.cluster.cluster_log import ClusterLog
from everlog.cluster.cluster_settings import ClusterSettings
from everlog.cluster.cluster_shard import ClusterShard
from everlog.cluster.database import ClusterDatabase
from everlog.cluster.group_claims import GroupAnswer, GroupClaims
from everlog.cluster.history import ShardHistory, Stretch, Trimmed
from everlog.cluster.origins import Closed, Gap
from everlog.cluster.outbox import Outbox, OutboxRow, take_off
from everlog.cluster.schema import Store, make_message_tables, read_store
from everlog.cluster.session_claims import ClaimAnswer, Claimant, SessionClaims
from everlog.cluster.session_schema import make_session_tables, message_shard
from everlog.cluster.session_tables import PostgresTables
