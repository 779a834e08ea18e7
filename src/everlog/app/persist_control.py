"""The pair of sockets between a broker and the process of its persist server, and what is said over it.

The broker sends the settings, then one word a byte: `WIRE` with a socket that is a new connection to the broker, `END`
for an end in order. The other process asks for connections by `WIRE`. Who finds the pair closed is alone.
"""

import socket
import struct

from msgspec import msgpack

from everlog.app.settings import Settings
from everlog.base import Unavailable

WIRE, END = b"w", b"e"
_LENGTH = struct.Struct("<I")


def send_settings(control: socket.socket, settings: Settings) -> None:
    """Send what everything else follows."""
    data = msgpack.encode(settings)
    control.sendall(_LENGTH.pack(len(data)) + data)


def receive_settings(control: socket.socket) -> Settings:
    """Return the settings that were sent."""
    (size,) = _LENGTH.unpack(_receive(control, _LENGTH.size))
    return msgpack.decode(_receive(control, size), type=Settings)


def _receive(control: socket.socket, size: int) -> bytes:
    data = control.recv(size, socket.MSG_WAITALL)
    if len(data) < size:
        raise Unavailable("the broker is gone")
    return data
