"""Streams through faults of one server and its bus, which also loses a message in a hundred.

Writers, followers and clients that compete for a key go on while the server is killed and the bus restarted. In the end
no acknowledged write is missing, none is there twice, followers have the same state, and every revision had one winner.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.broker_process import BrokerProcess
from tests.nats_servers import NatsServer, needs_nats
from tests.persist_process import PersistProcess
from tests.persist_world import World

from everlog.client import Chain
from everlog.streams import FeedEvent


async def live_through(url: str, fault: Callable[[], Awaitable[None]]) -> None:
    """Let clients work through a fault, and check what they were told."""
    async with World(url) as world:
        await world.until_acked(40)
        await fault()
        await world.until_acked(40)
        await world.check()


@needs_nats
@pytest.mark.slow
async def test_a_killed_server_loses_nothing_that_it_acknowledged(tmp_path: Path) -> None:
    with NatsServer(tmp_path) as nats, PersistProcess(tmp_path, nats.url) as server:

        async def fault() -> None:
            server.kill()
            await asyncio.to_thread(server.start)

        await live_through(nats.url, fault)


@needs_nats
@pytest.mark.slow
async def test_a_restarted_bus_costs_time_and_nothing_else(tmp_path: Path) -> None:
    with NatsServer(tmp_path) as nats, PersistProcess(tmp_path, nats.url):

        async def fault() -> None:
            nats.stop()
            await asyncio.to_thread(nats.start)

        await live_through(nats.url, fault)


@needs_nats
@pytest.mark.slow
async def test_a_follower_that_takes_every_newer_event_for_the_next_one_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant M17: without the position before each event nobody notices what the bus has lost."""

    def is_newer(chain: Chain, event: FeedEvent) -> bool | None:
        if chain.at is not None and (event.epoch, event.position) <= chain.at:
            return None
        chain.at = (event.epoch, event.position)
        return True

    monkeypatch.setattr(Chain, "follows", is_newer)
    with NatsServer(tmp_path) as nats, PersistProcess(tmp_path, nats.url):
        async with World(nats.url) as world:
            await world.until_acked(1000)
            monkeypatch.setattr("tests.persist_world.PATIENCE_S", 5.0)
            with pytest.raises(AssertionError):
                await world.check()


@pytest.mark.soak
async def test_a_killed_broker_with_its_streams_loses_nothing(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, "--log-level", "error", sync_ms=10) as broker:

        async def fault() -> None:
            broker.kill()
            broker.start()

        await live_through(f"mqtt://127.0.0.1:{broker.port}", fault)
