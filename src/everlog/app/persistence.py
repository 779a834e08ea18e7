"""The persist server beside a broker: a process of its own, so that neither its disk nor its work delays a client.

It starts with the first message below its prefix; until then it costs nothing. To the broker it is a client, over a
pair of sockets. A thread of the broker starts it, hands it its connections, and starts it again if it ends by itself.
"""

import asyncio
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from logging import ERROR

from everlog.app.persist_control import END, WIRE, send_settings
from everlog.app.settings import Settings
from everlog.broker import Broker, connect_inside, event
from everlog.bus import PREFIX

_AGAIN_S = 2.0  # between two starts
_TOLD = (0, 1)  # exit codes of a process that has said why it ends
_log = logging.getLogger("everlog.persist")


class BesideBroker:
    """The persist server of a broker; `arm` and `stop` are called on the broker's thread."""

    def __init__(self, broker: Broker, settings: Settings) -> None:
        self._broker = broker
        self._settings = settings
        self._loop: asyncio.AbstractEventLoop
        self._thread: threading.Thread | None = None
        self._ending = threading.Event()
        self._gate = threading.Lock()  # guards the control socket of the process that runs
        self._control: socket.socket | None = None

    def arm(self) -> None:
        """Start when the first message for it comes."""
        self._loop = asyncio.get_running_loop()
        self._broker.connections.rules.call_once(f"{PREFIX}/".encode(), self._start)

    async def stop(self) -> None:
        """End in order: what is under way is committed and answered."""
        self._ending.set()
        if self._thread is None:
            return
        with self._gate:
            self._end()
        await asyncio.to_thread(self._thread.join)

    def _start(self) -> None:
        if self._ending.is_set():
            return
        self._thread = threading.Thread(target=self._keep_serving, name="everlog-persist", daemon=True)
        self._thread.start()

    def _end(self) -> None:
        if self._control is not None:
            with suppress(OSError):  # it has ended by itself
                self._control.sendall(END)

    def _keep_serving(self) -> None:
        """Have a process serve until the end; one that ends by itself is followed by another."""
        while not self._ending.is_set():
            began = time.monotonic()
            try:
                status = self._serve()
                if status not in _TOLD:
                    event(_log, "persist_failed", ERROR, reason=f"its process ended with status {status}")
            except OSError as error:
                event(_log, "persist_failed", ERROR, reason=error)
            self._ending.wait(max(0.0, began + _AGAIN_S - time.monotonic()))

    def _serve(self) -> int:
        """Start a process, and give it connections until it ends; return its status."""
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                process = _start_process(theirs.fileno())
            with suppress(OSError):  # it has ended
                send_settings(ours, self._settings)
                with self._gate:
                    self._control = ours
                    if self._ending.is_set():
                        self._end()
                while ours.recv(1) == WIRE:
                    self._connect(ours)
            with self._gate:
                self._control = None
        return process.wait()

    def _connect(self, control: socket.socket) -> None:
        inside = asyncio.run_coroutine_threadsafe(connect_inside(self._broker.connections), self._loop)
        with inside.result() as wire:
            socket.send_fds(control, [WIRE], [wire.fileno()])


def _start_process(control: int) -> "subprocess.Popen[bytes]":
    """Start the process, which has its end of the control sockets as a file, and finds modules where this one does."""
    command = [sys.executable, "-P", "-m", "everlog.app.persist_child", str(control)]
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=(control,),
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        start_new_session=True,  # an interrupt from the terminal is the broker's
    )
