"""cluster: sessions of several brokers; PostgreSQL says who holds which, and fences everybody else."""

from everlog.cluster.group_claims import GroupAnswer, GroupClaims
from everlog.cluster.outbox import Outbox, OutboxRow, take_off
from everlog.cluster.session_claims import ClaimAnswer, Claimant, SessionClaims
from everlog.cluster.session_schema import make_session_tables, message_shard
from everlog.cluster.session_tables import PostgresTables
