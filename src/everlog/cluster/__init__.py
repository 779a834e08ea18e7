"""cluster: messages and sessions of several brokers: PostgreSQL commits and fences, a bucket remembers, all follow."""

from everlog.cluster.broker_keeper import BrokerKeeper, ShardMoves, refuses
from everlog.cluster.cluster_log import ClusterLog
from everlog.cluster.cluster_numbers import ClusterCount, ClusterNumbers, ShardNumbers
from everlog.cluster.cluster_ownership import ClusterOwnership
from everlog.cluster.cluster_place import find_cluster, init_cluster
from everlog.cluster.cluster_settings import ClusterSettings
from everlog.cluster.cluster_shard import ClusterShard, NotOwned
from everlog.cluster.database import ClusterDatabase
from everlog.cluster.directory_export import export_directory
from everlog.cluster.directory_import import Carried, import_directory
from everlog.cluster.formats import BrokerAbout, about_of, agreed_format, check_formats, describe
from everlog.cluster.forwarder import ClusterForwarder
from everlog.cluster.group_claims import GroupAnswer, GroupClaims
from everlog.cluster.group_holding import GroupHolding
from everlog.cluster.history import ShardHistory, Stretch, Trimmed
from everlog.cluster.link_tls import LinkTls, read_link_tls
from everlog.cluster.links import Links
from everlog.cluster.log_reader import Left, LogReader, RowRun, ShardExtent, TailSegment, pin_folder
from everlog.cluster.origins import Closed, Gap
from everlog.cluster.outbox import Outbox, OutboxRow, take_off
from everlog.cluster.overview import BrokerStatus, ClusterStatus, drain_broker, read_status
from everlog.cluster.ports import Answerer, Hearer, LinkKind, LinkWatcher, Peers
from everlog.cluster.reader_role import make_reader
from everlog.cluster.referrals import ClusterReferrals
from everlog.cluster.restored import Lifted, lift_restored, refuse_living
from everlog.cluster.retention import ClusterRetention
from everlog.cluster.row_names import read_together
from everlog.cluster.rows import ListedSegment
from everlog.cluster.schema import Store, make_message_tables, read_store
from everlog.cluster.session_claims import ClaimAnswer, Claimant, SessionClaims
from everlog.cluster.session_holding import SessionHolding
from everlog.cluster.session_schema import make_session_tables, message_shard
from everlog.cluster.session_tables import PostgresTables
from everlog.cluster.uploads import RetentionLimits
