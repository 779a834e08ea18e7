"""MQTT over WebSocket: an asyncio protocol for the peer, and a transport for the `Connection` inside.

The payload of each read goes to the connection at once, and each write of the connection is one binary frame. Until
the handshake is done the peer counts as connecting, so limits and the connect timeout apply from the first byte.
Owned by the event loop's thread.
"""

import asyncio
import logging
from collections.abc import Callable
from logging import WARNING
from typing import Any, cast

from everlog.broker.connection import Connection
from everlog.broker.events import event as report
from everlog.broker.transport.websocket_frames import (
    BINARY,
    GOING_AWAY,
    NORMAL,
    PONG,
    Close,
    FrameReader,
    Ping,
    Violation,
    close_frame,
    header,
)
from everlog.broker.transport.websocket_handshake import answer, plain
from everlog.broker.turns import Steps
from everlog.mqtt import Reason

_log = logging.getLogger("everlog.broker")
_FRAMES_PER_STEP = 256  # of one peer, before others have their turn
_GOING_AWAY = (Reason.SERVER_SHUTTING_DOWN, Reason.USE_ANOTHER_SERVER)
CLOSE_WAIT_S = 2.0  # for the peer's half of the closing handshake; then the connection is cut


class WebSocket(asyncio.Protocol):
    """The server's end of one WebSocket; it stands in for the transport of the connection that it carries."""

    __slots__ = (
        "_closing",
        "_cut",
        "_full",
        "_in_line",
        "_open",
        "_origins",
        "_path",
        "_paused",
        "_reader",
        "_request",
        "_transport",
        "connection",
    )

    def __init__(
        self, make_connection: Callable[[], Connection], path: str = "/mqtt", origins: tuple[str, ...] = ()
    ) -> None:
        self.connection = make_connection()
        self._path = path
        self._origins = origins
        self._transport: asyncio.Transport | None = None
        self._reader = FrameReader(_FRAMES_PER_STEP)
        self._in_line = False  # for a turn to take the frames that wait; nothing is read meanwhile
        self._paused = False  # the connection does not want to read
        self._request = b""  # of the handshake; at most MAX_REQUEST_BYTES plus one read
        self._open = False
        self._closing = False
        self._full = False  # the peer does not read: pongs are left out
        self._cut: asyncio.TimerHandle | None = None

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin with a peer; it has as long for handshake and CONNECT as others have for CONNECT alone."""
        self._transport = cast(asyncio.Transport, transport)
        self.connection.connection_made(cast(asyncio.Transport, self))

    def data_received(self, data: bytes) -> None:
        """Take bytes that have arrived: first the handshake, then frames."""
        if self._open:
            self._frames(data)
        elif not self._closing:
            self._request += data
            self._handshake()

    def pause_writing(self) -> None:
        """Stop writing: the peer reads too slowly."""
        self._full = True
        self.connection.pause_writing()

    def resume_writing(self) -> None:
        """Write again: the peer has caught up."""
        self._full = False
        self.connection.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Clean up after the connection."""
        if self._cut is not None:
            self._cut.cancel()
        self._closing = True
        self.connection.connection_lost(exc)
        self._transport = None

    # What the connection calls, as of a transport

    def write(self, data: bytes) -> None:
        """Send bytes as one binary frame; before the handshake they are dropped."""
        if self._open and not self._closing and self._transport is not None:
            self._transport.write(header(len(data), BINARY) + data)

    def close(self) -> None:
        """End the connection properly: with an HTTP answer before the handshake, with a close frame after it."""
        if self._closing or self._transport is None:
            return
        if not self._open:
            self._refuse(plain(503, self.connection.closing_reason or "the broker closes the connection"))
        else:
            code = GOING_AWAY if self.connection.closing_code in _GOING_AWAY else NORMAL
            self._say_close(code, self.connection.closing_reason)

    def abort(self) -> None:
        """End the connection at once."""
        self._closing = True
        if self._transport is not None:
            self._transport.abort()

    def is_closing(self) -> bool:
        """Return whether the connection has ended or is about to."""
        return self._closing

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return what is known about the peer."""
        return default if self._transport is None else self._transport.get_extra_info(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set when writing pauses and resumes."""
        if self._transport is not None:
            self._transport.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        """Return how many bytes have not been sent yet."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def pause_reading(self) -> None:
        """Stop reading from the peer."""
        self._paused = True
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read from the peer again."""
        self._paused = False
        if self._transport is not None and not self._in_line:
            self._transport.resume_reading()

    # Inside

    def _handshake(self) -> None:
        found = answer(self._request, self._path, self._origins)
        if found is None or self._transport is None:
            return
        self._request = b""
        if not found.accepted:
            self.connection.closing_reason = f"not a WebSocket: {found.why}"
            report(_log, "websocket_refused", WARNING, peer=self.connection.peer, reason=found.why)
            self._refuse(found.data)
            return
        self._open = True
        self._transport.write(found.data)
        if found.rest:
            self._frames(found.rest)

    def _refuse(self, data: bytes) -> None:
        if self._transport is not None:
            self._last(data)
            self._transport.close()

    def _frames(self, data: bytes) -> None:
        if self._in_line:
            self._reader.hold(data)
            return
        self._take(data)
        if self._reader.has_more and self._transport is not None:
            self._in_line = True
            self._transport.pause_reading()
            self.connection.reader.traffic.turns.later(self._rest(), self._caught_up, self._failed)

    def _rest(self) -> Steps:
        """Take the frames that wait, some in each step."""
        while self._reader.has_more and self._transport is not None:
            self._take(b"")
            yield

    def _caught_up(self, _: object) -> None:
        self._in_line = False
        if self._transport is not None and (self._closing or not self._paused):
            self._transport.resume_reading()

    def _failed(self, error: Exception) -> None:
        self.abort()
        raise error

    def _take(self, data: bytes) -> None:
        pongs = []
        for event in self._reader.feed(data):
            if isinstance(event, bytes):
                if not self._closing:  # what comes after our close frame is not read any more
                    self.connection.reader.receive(event)
            elif isinstance(event, Ping):
                pongs.append(header(len(event.payload), PONG) + event.payload)
            elif isinstance(event, Close):
                self._pong(pongs)
                self._peer_closed(event)
            else:
                self._violated(event)
        self._pong(pongs)

    def _pong(self, pongs: list[bytes]) -> None:
        """Answer pings, all of a step in one write."""
        if pongs and self._transport is not None and not self._closing and not self._full:
            self._transport.write(b"".join(pongs))
        pongs.clear()

    def _peer_closed(self, event: Close) -> None:
        """Answer with the same code unless we closed first; either way both sides are done."""
        if self._transport is None:
            return
        if not self._closing:
            self.connection.closing_reason = self.connection.closing_reason or f"WebSocket closed ({event.code})"
            self._last(close_frame(event.code))
        self._transport.close()

    def _violated(self, event: Violation) -> None:
        self.connection.violated(event.message)
        self._say_close(event.code, event.message)
        if self._transport is not None:
            self._transport.close()

    def _say_close(self, code: int, why: str) -> None:
        if not self._closing and self._transport is not None:
            self._last(close_frame(code, why))
            if not self._in_line:
                self._transport.resume_reading()  # for the peer's close frame; everything else is dropped

    def _last(self, data: bytes) -> None:
        """Write the last bytes; a peer that neither reads nor closes is cut off after a while."""
        assert self._transport is not None
        self._closing = True
        self._transport.write(data)
        self._cut = asyncio.get_running_loop().call_later(CLOSE_WAIT_S, self._transport.abort)
