"""delivery: the way of a message through the broker, to the log and to every subscriber; `Router` is its facade."""

from everlog.broker.delivery.cold_reader import ColdReader, Places
from everlog.broker.delivery.history import History
from everlog.broker.delivery.kept_topics import KeptTopics
from everlog.broker.delivery.pending_acks import AckQueue
from everlog.broker.delivery.ports import Log, Shard, SharedGroups, SharedTarget, Sink, WriteBehind
from everlog.broker.delivery.redelivery import batch_of
from everlog.broker.delivery.retained_messages import RetainedMessages, stored_message
from everlog.broker.delivery.router import Router

__all__ = [
    "AckQueue",
    "ColdReader",
    "History",
    "KeptTopics",
    "Log",
    "Places",
    "RetainedMessages",
    "Router",
    "Shard",
    "SharedGroups",
    "SharedTarget",
    "Sink",
    "WriteBehind",
    "batch_of",
    "stored_message",
]
