"""client: streams, key-value stores and queues from Python, over any bus, with or without async."""

from everlog.client.blocking import Blocking, BlockingClient, connect_blocking
from everlog.client.client import DEFAULT_URL, Client, connect
from everlog.client.errors import (
    BadRequest,
    Denied,
    Exists,
    Full,
    NotFound,
    NotServed,
    PersistError,
    RateExceeded,
    ServerFailed,
    StaleRetry,
    TimedOut,
    TooLarge,
    WrongKind,
    WrongRevision,
)
from everlog.client.kv import KV
from everlog.client.queue import Queue
from everlog.client.requester import Requester, SeriesLost
from everlog.client.stream import Stream
from everlog.client.watch import Chain, Item, Position, Watch
from everlog.streams import CaughtUp, Entry, Level, StoredMessage
