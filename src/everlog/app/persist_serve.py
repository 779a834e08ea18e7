"""`everlog persist serve`: a persist server in a process of its own, on a bus that is somewhere else."""

import asyncio
import gc
import logging
import os
import signal
from contextlib import AsyncExitStack
from dataclasses import dataclass

from everlog.app.clock_watch import ClockWatch
from everlog.app.log_lines import set_up_logging
from everlog.app.serve import loop_factory
from everlog.base import StorageError
from everlog.bus import make_bus
from everlog.persist import LocalShards, PersistServer
from everlog.streams import ShardSettings
from everlog.tiering import open_bucket

_log = logging.getLogger("everlog.persist")


@dataclass(frozen=True, slots=True)
class PersistOptions:
    """What a persist server is started with."""

    data: str
    bus: str
    shards: int | None = None
    name: str = ""
    log_level: str = "info"
    log_format: str = "text"
    bucket: str | None = None  # where streams go too
    local_files: int = 0  # files of a shard that stay here beside it; 0: all
    local_bytes: int = 0


def run_persist(options: PersistOptions) -> int:
    """Run a persist server until a signal ends it; the exit code."""
    set_up_logging(options.log_level, options.log_format)
    gc.set_threshold(5_000, 5, 320)  # as in `everlog serve`: what requests make dies by itself
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_serve(options))
    return 0


async def _serve(options: PersistOptions) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    async with AsyncExitStack() as parts:  # ended in the opposite order
        bus = make_bus(options.bus)
        try:
            os.makedirs(options.data, exist_ok=True)
        except OSError as error:
            raise StorageError(f"{options.data} can't be made: {error}", hint="choose another --data") from error
        watch = ClockWatch(options.data)
        limits = ShardSettings(most_files=options.local_files, files_bytes=options.local_bytes)
        bucket = None if options.bucket is None else open_bucket(options.bucket)
        shards = LocalShards(options.data, watch.clock, options.shards, limits, bucket)
        parts.callback(shards.close)
        server = PersistServer(bus, shards, options.name)
        await server.start()
        parts.push_async_callback(server.stop)
        for shard in range(shards.shards):
            await server.own(shard)
        parts.callback(asyncio.create_task(watch.run()).cancel)
        print(
            f"everlog persist {server.name} serves {options.data} ({shards.shards} shards) on {options.bus}", flush=True
        )
        await stopping.wait()
