"""sessions: what a client is owed, what is under way to it, and what it has acknowledged."""

from everlog.sessions.session import Counters, Delivery, Piece, Session, Subscribed
from everlog.sessions.window import NOT_KEPT, RELEASED, Window

__all__ = ["NOT_KEPT", "RELEASED", "Counters", "Delivery", "Piece", "Session", "Subscribed", "Window"]
