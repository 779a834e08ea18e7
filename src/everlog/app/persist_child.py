"""The persist server beside a broker, in a process that the broker started: it shares no interpreter lock with it.

It ends in order when the broker says so, and at once when the broker is gone, as if it had been killed with it: what
was not committed was not answered, and the lock on the directory is free for the next broker. Signals that a terminal
or a service manager sends to all processes are the broker's to obey.
"""

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
import threading
from contextlib import AsyncExitStack
from logging import ERROR, INFO

from everlog.app.clock_watch import ClockReader
from everlog.app.event_loop import loop_factory
from everlog.app.log_lines import set_up_logging
from everlog.app.persist_control import END, WIRE, receive_settings
from everlog.app.persist_parts import bucket_of, shard_settings
from everlog.app.settings import Settings
from everlog.base import EverlogError
from everlog.broker import event
from everlog.bus import MqttBus
from everlog.persist import LocalShards, PersistServer

GONE = 2  # the exit code of one whose broker is gone
_log = logging.getLogger("everlog.persist")


class BrokerLine:
    """The line to the broker: dials it, and hears what it says on a thread of its own."""

    def __init__(self, control: socket.socket) -> None:
        self.ending = asyncio.Event()
        self._control = control
        self._loop = asyncio.get_running_loop()
        self._wire: asyncio.Future[socket.socket] | None = None
        threading.Thread(target=self._listen, name="everlog-broker-line", daemon=True).start()

    async def dial(self, protocol: asyncio.BaseProtocol) -> None:
        """Connect a protocol to the broker."""
        self._wire = self._loop.create_future()
        self._control.sendall(WIRE)
        wire = await self._wire
        await self._loop.create_unix_connection(lambda: protocol, sock=wire)

    def _listen(self) -> None:
        while True:
            word, sockets, _, _ = socket.recv_fds(self._control, 1, 1)
            if not word:
                os._exit(GONE)  # whatever other threads do just now
            if word == END:
                self._loop.call_soon_threadsafe(self.ending.set)
            elif sockets:
                self._loop.call_soon_threadsafe(self._take, socket.socket(fileno=sockets[0]))

    def _take(self, wire: socket.socket) -> None:
        if self._wire is None or self._wire.done():
            wire.close()  # whoever asked for it has given up
        else:
            self._wire.set_result(wire)


def main(control: socket.socket) -> int:
    """Serve until the broker ends it; the exit code."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    settings = receive_settings(control)
    set_up_logging(settings.logging.level, settings.logging.format)
    gc.set_threshold(2_000, 5, 800)  # as in `everlog serve`: what requests make dies by itself
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(_serve(settings, control))
    except (EverlogError, OSError) as error:
        event(_log, "persist_failed", ERROR, reason=error)
        return 1
    return 0


async def _serve(settings: Settings, control: socket.socket) -> None:
    line = BrokerLine(control)
    async with AsyncExitStack() as parts:  # ended in the opposite order
        clock = ClockReader(settings.log.data)
        parts.callback(asyncio.create_task(clock.run()).cancel)
        persist = settings.persist
        directory = persist.data or os.path.join(settings.log.data, "persist")
        shards = LocalShards(directory, clock.clock, persist.shards, shard_settings(settings), bucket_of(settings))
        parts.callback(shards.close)
        server = PersistServer(MqttBus([], dialer=line.dial), shards, "everlog serve")
        await server.start()
        parts.push_async_callback(server.stop)
        for shard in range(shards.shards):
            await server.own(shard)
        event(_log, "persist_started", INFO, shards=shards.shards)
        gc.freeze()  # modules stay: no collection need walk them
        await line.ending.wait()


if __name__ == "__main__":
    sys.exit(main(socket.socket(fileno=int(sys.argv[1]))))
