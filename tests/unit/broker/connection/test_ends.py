"""Connections whose peers have ended them are closed some in each turn; TLS, which can't be left open, at once."""

import asyncio
from itertools import pairwise
from typing import Any

from tests.memory_log import MemoryLog

from everlog.broker import Broker


class Wire(asyncio.Transport):
    """A transport that notes whether it was closed."""

    def __init__(self, **extra: Any) -> None:
        super().__init__(extra)
        self.closed = 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def close(self) -> None:
        self.closed += 1


async def test_of_many_that_end_at_once_some_are_closed_in_each_turn() -> None:
    broker = Broker(MemoryLog())
    broker.start()
    pairs = []
    for _ in range(500):
        connection, wire = broker.connections.new(), Wire()
        connection.connection_made(wire)
        pairs.append((connection, wire))
    left_open = [wire for connection, wire in pairs if connection.eof_received()]
    assert len(left_open) > 400, "the event loop closes few by itself"
    assert not any(wire.closed for wire in left_open)
    closed = [0]
    while closed[-1] < len(left_open):
        await asyncio.sleep(0)
        closed.append(sum(wire.closed for wire in left_open))
    assert max(after - before for before, after in pairwise(closed)) < 100
    assert all(wire.closed == 1 for wire in left_open)
    await asyncio.sleep(0)
    assert not pairs[0][0].eof_received(), "in a calm turn the event loop closes at once"
    for connection, _ in pairs:
        connection.connection_lost(None)
    await broker.stop()


async def test_one_that_is_gone_before_its_turn_is_left_alone() -> None:
    broker = Broker(MemoryLog())
    broker.start()
    pairs = [(broker.connections.new(), Wire()) for _ in range(100)]
    for connection, wire in pairs:
        connection.connection_made(wire)
        last = connection.eof_received()
    assert last
    for connection, _ in pairs:
        connection.connection_lost(None)
        assert not connection.eof_received()
    for _ in range(5):
        await asyncio.sleep(0)
    assert not any(wire.closed for _, wire in pairs)
    await broker.stop()


async def test_tls_is_closed_by_the_event_loop() -> None:
    broker = Broker(MemoryLog())
    broker.start()
    connection, wire = broker.connections.new(), Wire(sslcontext=object())
    connection.connection_made(wire)
    assert not connection.eof_received()
    connection.connection_lost(None)
    await broker.stop()
