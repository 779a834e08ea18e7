"""The state that all connections of a broker share: the read buffer, topic names, limits, byte counts."""

from collections.abc import Callable
from typing import Any

import cython

from everlog.broker.limits import Limits
from everlog.broker.metrics import Metrics
from everlog.broker.turns import Turns

if not cython.compiled:
    from everlog.base import TopicTable
    from everlog.broker.delivery.router import Router


class Traffic:
    """The shared state; owned by the event loop's thread."""

    def __init__(
        self,
        buffer: bytearray,
        router: Router,
        limits: Limits,
        metrics: Metrics,
        stores: bool,
        time: Callable[[], float],
        turns: Turns,
    ) -> None:
        self.buffer = buffer
        self.table: TopicTable = router.table
        self.router = router
        self.metrics = metrics
        self.time = time
        self.turns = turns
        self.rules: Any = None  # `PublishRules`: which messages of a run are taken
        self.hold_back: Any = None  # called with a reader when too much is under way
        self.reserved = bytearray()  # a byte for each topic id: whether it is the server's own
        self.checks = False  # there are rules of who may publish what
        self.stores = stores  # there are tables for what sessions are owed
        self.refused_flags = (0x06, 0x04, 0)[limits.qos] | (not limits.retain)  # of messages: QoS and RETAIN
        self.receive_maximum = limits.receive_maximum
        self.inflight_bytes = limits.inflight_bytes
        self.topics = limits.topics
        self.topics_bytes = limits.topics_bytes
        self.bytes_in = 0
        self.bytes_out = 0
