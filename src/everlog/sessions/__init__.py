"""sessions: what a client is owed, what is under way to it, what it has acknowledged, and where that is stored."""

from everlog.sessions.memory_tables import MemoryTables
from everlog.sessions.packing import pack_session, pack_subscription, unpack_session, unpack_will
from everlog.sessions.pieces import is_within
from everlog.sessions.saving import cursor_of, restored, row_of, settle, stored
from everlog.sessions.session import Counters, Delivery, Piece, Session, Subscribed
from everlog.sessions.sqlite_tables import SqliteTables
from everlog.sessions.tables import (
    ALIVE,
    LIVE,
    Changes,
    Cursor,
    SessionRow,
    SessionTables,
    Snapshot,
    StoredSession,
    SubscriptionRow,
)
from everlog.sessions.window import NOT_KEPT, RELEASED, Window

__all__ = [
    "ALIVE",
    "LIVE",
    "NOT_KEPT",
    "RELEASED",
    "Changes",
    "Counters",
    "Cursor",
    "Delivery",
    "MemoryTables",
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
    "is_within",
    "pack_session",
    "pack_subscription",
    "restored",
    "row_of",
    "settle",
    "stored",
    "unpack_session",
    "unpack_will",
]
