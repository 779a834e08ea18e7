"""Builds a broker from its parts and runs it until a signal ends it. The only place that knows all of them."""

import asyncio
import logging
import os
import secrets
import signal
import sys

from everlog import __version__, _kernels
from everlog.app.settings import Settings, limits_of, log_arguments
from everlog.broker import Broker, Connection, Security
from everlog.commitlog import LogSettings
from everlog.store import LogStore

_log = logging.getLogger("everlog")


def run(settings: Settings) -> int:
    """Run a broker; the exit code."""
    logging.basicConfig(level=settings.logging.level.upper(), stream=sys.stderr, format="%(message)s")
    store = LogStore.open(settings.log.data, LogSettings(**log_arguments(settings)), shards=settings.log.shards)
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(_serve(settings, store))
    finally:
        store.close()


def _loop_factory() -> type[asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # not on every system; asyncio's own loop does the same, slower
        return None
    return uvloop.Loop


async def _serve(settings: Settings, store: LogStore) -> int:
    security = Security(
        allow_anonymous=settings.allows_anonymous,
        password_file=settings.security.password_file,
        acl_file=settings.security.acl_file,
    )
    broker = Broker(
        store,  # type: ignore[arg-type]
        limits_of(settings),
        security,
        keep=[(text, settings.keep.min_qos) for text in settings.keep.filters],
        seed=secrets.randbits(64),
    )
    broker.start()
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, _stop, stopping)
    listener = settings.listener
    server = await loop.create_server(
        lambda: Connection(broker), listener.host, listener.port, backlog=listener.backlog
    )
    _announce(settings, [f"mqtt://{host}:{port}" for host, port, *_ in (s.getsockname() for s in server.sockets)])
    await stopping.wait()
    server.close()
    await broker.stop()
    return 0


def _stop(stopping: asyncio.Event) -> None:
    """The first signal ends the broker in order, the second at once."""
    if stopping.is_set():
        os._exit(1)
    stopping.set()


def _announce(settings: Settings, addresses: list[str]) -> None:
    """What an operator wants to know at start."""
    print(
        f"everlog {__version__} listens on {', '.join(addresses)}\n"
        f"  data        {os.path.abspath(settings.log.data)} ({settings.log.shards} shard(s))\n"
        f"  durability  {settings.log.durability}\n"
        f"  keeps       {', '.join(settings.keep.filters) or 'what durable sessions are subscribed to'}\n"
        f"  kernels     {_kernels.describe()}",
        flush=True,
    )
