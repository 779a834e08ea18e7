"""The header by which a proxy says from where its client connects (PROXY protocol, versions 1 and 2).

Read byte by byte to its end and no further: what follows is the client's.
"""

import asyncio
import ipaddress
import socket
import struct

from everlog.base import PeerError
from everlog.mqtt import Reason

_SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"  # of version 2, the first 12 bytes
_LONGEST_LINE = 107  # of version 1
_LONGEST = 1024  # of version 2, what follows its 16 bytes; more is no header that a proxy sends
_ADDRESSES = {1: (4, struct.Struct(">4s4sHH")), 2: (6, struct.Struct(">16s16sHH"))}  # by address family


async def read_proxy_header(wire: socket.socket) -> str | None:
    """Return the address and port of a proxy's client; None if the proxy speaks for itself. PeerError without one."""
    head = await _read(wire, len(_SIGNATURE))
    if head == _SIGNATURE:
        return await _binary(wire)
    if not head.startswith(b"PROXY "):
        raise PeerError(Reason.PROTOCOL_ERROR, "no PROXY header where the listener expects one")
    while not head.endswith(b"\r\n"):
        if len(head) >= _LONGEST_LINE:
            raise _malformed()
        head += await _read(wire, 1)
    return _text(head)


def _text(line: bytes) -> str | None:
    words = line.decode("ascii", "replace").split()
    if words[1:2] == ["UNKNOWN"]:
        return None
    if len(words) != 6 or words[1] not in ("TCP4", "TCP6"):
        raise _malformed()
    return _peer(words[2], words[4])


async def _binary(wire: socket.socket) -> str | None:
    kind, family, size = struct.unpack(">BBH", await _read(wire, 4))
    if kind >> 4 != 2 or kind & 15 > 1 or size > _LONGEST:
        raise _malformed()
    body = await _read(wire, size)
    if kind & 15 == 0 or family >> 4 not in _ADDRESSES:  # a check of the proxy's own, or no internet address
        return None
    _, packed = _ADDRESSES[family >> 4]
    if size < packed.size:
        raise _malformed()
    source, _, port, _ = packed.unpack_from(body)
    return _peer(str(ipaddress.ip_address(source)), str(port))


def _peer(address: str, port: str) -> str:
    try:
        return f"{ipaddress.ip_address(address)}:{int(port)}"
    except ValueError:
        raise _malformed() from None


def _malformed() -> PeerError:
    return PeerError(Reason.PROTOCOL_ERROR, "a PROXY header that can't be read")


async def _read(wire: socket.socket, size: int) -> bytes:
    loop, data = asyncio.get_running_loop(), b""
    while len(data) < size:
        more = await loop.sock_recv(wire, size - len(data))
        if not more:
            raise PeerError(Reason.PROTOCOL_ERROR, "the connection ended within a PROXY header")
        data += more
    return data
