"""`everlog persist serve`: a persist server in a process of its own, on a bus that is somewhere else.

Alone it keeps everything in its directory. With storage that it shares with others the directory is a cache that only
this process uses, and has its name.
"""

import asyncio
import gc
import logging
import os
import secrets
import signal
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from typing import Any

from msgspec import Struct

from everlog.app.clock_watch import ClockWatch
from everlog.app.event_loop import loop_factory
from everlog.app.log_lines import set_up_logging
from everlog.app.persist_parts import bucket_of, shard_settings
from everlog.app.settings import Settings
from everlog.base import StorageError, UsageError
from everlog.bus import Bus, make_bus
from everlog.commitlog import RealDisk
from everlog.persist import LocalShards, PersistServer, ShardKeeper, SharedShards, open_storage, refuse_strangers
from everlog.store import read_record, write_record

SERVER_FILE = "server.json"
_log = logging.getLogger("everlog.persist")


class ServerRecord(Struct, frozen=True, kw_only=True):
    """What a server's directory says: its name among others, and whose cache the directory is."""

    name: str
    store: str
    version: int = 1


def run_persist(settings: Settings) -> int:
    """Run a persist server until a signal ends it, or others drain it; the exit code."""
    persist = settings.persist
    if persist.bus is None or persist.data is None:
        raise UsageError("a persist server needs a bus and a directory", hint="--bus URL --data DIR, or [persist]")
    set_up_logging(settings.logging.level, settings.logging.format)
    gc.set_threshold(2_000, 5, 800)  # as in `everlog serve`: what requests make dies by itself
    try:
        os.makedirs(persist.data, exist_ok=True)
    except OSError as error:
        raise StorageError(f"{persist.data} can't be made: {error}", hint="choose another --data") from error
    serve = _serve_alone if persist.storage is None else _serve_shared
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(serve(settings, persist.data, make_bus(persist.bus)))
    return 0


async def _serve_alone(settings: Settings, data: str, bus: Bus) -> None:
    persist = settings.persist
    stopping = _signals()
    async with AsyncExitStack() as parts:  # ended in the opposite order
        watch = ClockWatch(data)
        shards = LocalShards(data, watch.clock, persist.shards, shard_settings(settings), bucket_of(settings))
        parts.callback(shards.close)
        server = PersistServer(bus, shards, persist.name or "")
        await server.start()
        parts.push_async_callback(server.stop)
        await refuse_strangers(bus, server.name, "")
        for shard in range(shards.shards):
            await server.own(shard)
        parts.callback(asyncio.create_task(watch.run()).cancel)
        _say(server.name, data, shards.shards, settings)
        await stopping[0].wait()


async def _serve_shared(settings: Settings, data: str, bus: Bus) -> None:
    persist = settings.persist
    assert persist.storage is not None
    stopping, hurrying = _signals()
    async with AsyncExitStack() as parts:  # ended in the opposite order
        parts.callback(RealDisk().lock(os.path.join(data, "lock")).release)
        storage = await asyncio.to_thread(open_storage, persist.storage, persist.shards)
        parts.callback(storage.close)
        name = _name_of(data, storage.record.store, persist.name)
        watch = ClockWatch(data)
        shards = SharedShards(storage, data, watch.clock, shard_settings(settings), bucket_of(settings))
        parts.callback(shards.close)
        server = PersistServer(bus, shards, name, store=storage.record.store)
        await server.start()
        parts.push_async_callback(server.stop)
        await refuse_strangers(bus, name, storage.record.store)
        keeper = ShardKeeper(server, bus, storage, shards, patience_s=persist.patience)
        await keeper.start()
        parts.push_async_callback(keeper.stop)
        parts.callback(asyncio.create_task(watch.run()).cancel)
        _say(name, persist.storage, shards.shards, settings)
        await _until(stopping.wait(), keeper.wait())
        if stopping.is_set():
            await _until(hurrying.wait(), keeper.drain())


async def _until(*waits: Coroutine[Any, Any, object]) -> None:
    """Wait for the first of some; raise what it raises."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    done, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
    for task in done:
        task.result()


def _signals() -> tuple[asyncio.Event, asyncio.Event]:
    """Return what is set by the first SIGTERM or SIGINT, and what by the second."""
    first, second = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, lambda: (second if first.is_set() else first).set())
    return first, second


def _name_of(data: str, store: str, wanted: str | None) -> str:
    """Return the server's name, which its directory keeps; refuse a directory that is a cache of something else."""
    known = read_record(data, SERVER_FILE, ServerRecord, (1,), "remove the directory: it is a cache")
    if known is not None and known.store != store:
        raise UsageError(
            f"{data} belongs to other storage than this", hint="is it mounted? Else choose another --data, or remove it"
        )
    name = wanted or (known.name if known is not None else f"server-{secrets.token_hex(4)}")
    if known is None or known.name != name:
        write_record(data, SERVER_FILE, ServerRecord(name=name, store=store))
    return name


def _say(name: str, place: str, shards: int, settings: Settings) -> None:
    shown = place.rpartition("@")[2] if "://" in place else place  # without a password
    print(f"everlog persist {name} serves {shown} ({shards} shards) on {settings.persist.bus}", flush=True)
