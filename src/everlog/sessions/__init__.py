"""sessions: what a client is owed, what is under way to it, what it has acknowledged, and where that is stored."""

from everlog.sessions.counters import Counters
from everlog.sessions.group_cursor import GroupCursor, Owed, shares
from everlog.sessions.inflight_copies import CopiesTotal
from everlog.sessions.journaled_tables import JournaledTables, saved_tables
from everlog.sessions.merged_subscription import MergedSubscription
from everlog.sessions.outgoing_rows import OutgoingRows, is_within, row_at
from everlog.sessions.retained_feed import RetainedFeed
from everlog.sessions.retained_row import unpack_retained
from everlog.sessions.row_format import (
    pack_ids,
    pack_offsets,
    pack_positions,
    pack_session,
    pack_subscription,
    pack_unsure,
    pack_will,
    unpack_inflight,
    unpack_offsets,
    unpack_owed,
    unpack_positions,
    unpack_session,
    unpack_subscription,
    unpack_unsure,
    unpack_will,
)
from everlog.sessions.session import Packets, Session
from everlog.sessions.session_memory import STORED_BYTES, SessionMemory, filter_bytes, will_bytes
from everlog.sessions.sqlite_tables import SqliteTables
from everlog.sessions.stored_session import (
    cursor_of,
    group_row,
    restored,
    retained_end,
    row_of,
    settle,
    settle_group,
    stored,
    stored_bytes,
    without_retained,
    without_unproven,
)
from everlog.sessions.subscriber import SHARED_PREFIX
from everlog.sessions.subscription import Subscribed
from everlog.sessions.table_check import TablesFound, check_tables
from everlog.sessions.tables import (
    ALIVE,
    DEAL_BACK,
    DEAL_TAKEN,
    GROUP_ORDERED,
    GROUP_SERVED,
    LIVE,
    Changes,
    Cursor,
    GroupDeal,
    GroupRow,
    Refused,
    RetainedNames,
    RetainedRow,
    SentWill,
    SessionRow,
    SessionTables,
    Snapshot,
    StoredSession,
    SubscriptionRow,
    WillRow,
)
from everlog.sessions.terms import Terms
from everlog.sessions.window import RELEASED, Window
