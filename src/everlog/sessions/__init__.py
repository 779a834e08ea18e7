"""sessions: what a client is owed, what is under way to it, what it has acknowledged, and where that is stored."""

from everlog.sessions.groupcursor import GroupCursor, Owed, shares
from everlog.sessions.packing import (
    pack_session,
    pack_subscription,
    unpack_inflight,
    unpack_offsets,
    unpack_owed,
    unpack_session,
    unpack_subscription,
    unpack_will,
)
from everlog.sessions.pieces import is_within, row_at
from everlog.sessions.saving import cursor_of, group_row, restored, row_of, settle, settle_group, stored
from everlog.sessions.session import Counters, Delivery, Piece, Session, Subscribed
from everlog.sessions.sqlite_tables import SqliteTables
from everlog.sessions.tables import (
    ALIVE,
    GROUP_ORDERED,
    GROUP_SERVED,
    LIVE,
    Changes,
    Cursor,
    GroupRow,
    SessionRow,
    SessionTables,
    Snapshot,
    StoredSession,
    SubscriptionRow,
)
from everlog.sessions.window import RELEASED, Window

__all__ = [
    "ALIVE",
    "GROUP_ORDERED",
    "GROUP_SERVED",
    "LIVE",
    "RELEASED",
    "Changes",
    "Counters",
    "Cursor",
    "Delivery",
    "GroupCursor",
    "GroupRow",
    "Owed",
    "Piece",
    "Session",
    "SessionRow",
    "SessionTables",
    "Snapshot",
    "SqliteTables",
    "StoredSession",
    "Subscribed",
    "SubscriptionRow",
    "Window",
    "cursor_of",
    "group_row",
    "is_within",
    "pack_session",
    "pack_subscription",
    "restored",
    "row_at",
    "row_of",
    "settle",
    "settle_group",
    "shares",
    "stored",
    "unpack_inflight",
    "unpack_offsets",
    "unpack_owed",
    "unpack_session",
    "unpack_subscription",
    "unpack_will",
]
