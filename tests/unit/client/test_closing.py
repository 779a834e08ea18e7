"""A client before and after its time: nobody waits for ever, and nothing is told in Python's own words."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

import everlog
from everlog.base import UsageError
from everlog.client import Client, TimedOut, connect

PATIENCE_S = 30.0


async def watch(client: Client) -> None:
    async for _ in client.stream("s").watch():
        pass


async def take(client: Client) -> None:
    queue = client.stream("s").queue("q")
    async for _ in queue.messages():
        pass


async def test_a_client_that_is_not_open_says_so() -> None:
    client = connect("mqtt://127.0.0.1:1")
    with pytest.raises(UsageError, match="not open"):
        await client.stream("s").append("x")


async def test_a_closed_client_says_so_at_once(tmp_path: Path) -> None:
    async with everlog.open(str(tmp_path)) as client:
        await client.stream("s").append("x")
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(UsageError, match="not open"):
            await client.stream("s").append("y")
        with pytest.raises(UsageError, match="not open"):
            [one async for one in client.stream("s").get_all()]


@pytest.mark.parametrize("follow", [watch, take])
async def test_whoever_follows_a_client_that_is_closed_is_told(
    tmp_path: Path, follow: Callable[[Client], Awaitable[None]]
) -> None:
    async with everlog.open(str(tmp_path)) as client:
        await client.stream("s").append("x")
        await client.stream("s").queue("q").configure(start_seq=None)
        following = asyncio.ensure_future(follow(client))
        await asyncio.sleep(0.1)
        assert not following.done()
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(UsageError, match="not open"):
            await following


async def test_a_call_under_way_at_the_end_is_told_that_nobody_knows(tmp_path: Path) -> None:
    async with everlog.open(str(tmp_path)) as client:
        calling = asyncio.ensure_future(client.stream("s").append("x"))
        await asyncio.sleep(0)
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(TimedOut, match="closed before the answer"):
            await calling


def test_threads_and_iterators_outlive_a_closed_client(tmp_path: Path) -> None:
    ends: list[Exception] = []

    def follow() -> None:
        try:
            for _ in stream.watch():
                begun.set()
        except UsageError as error:
            ends.append(error)

    begun = threading.Event()
    with everlog.open(str(tmp_path)) as client:
        stream = client.stream("s")
        stream.append("x")
        iterator = iter(stream.watch())
        next(iterator)
        thread = threading.Thread(target=follow)
        thread.start()
        assert begun.wait(PATIENCE_S)
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert len(ends) == 1
    with pytest.raises(UsageError, match="not open"):
        stream.append("y")
    with pytest.raises((UsageError, StopIteration)):
        next(iterator)
