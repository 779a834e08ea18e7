"""One connection between two brokers: frames both ways, each turn's together, and never more than a peer takes.

Credit: what waits to leave is bounded. Offers are dropped beyond `OFFER_BYTES` (the peer reads the tail instead);
whatever else is sent is bounded by its sender: forwards by their window, questions by their number, confirmations by
what was forwarded. A peer of which nothing is heard is given up.
"""

import asyncio
import socket
from typing import TYPE_CHECKING, cast

from everlog.base import EverlogError
from everlog.cluster.link_frames import MAX_BODY, BadFrame, LinkDecoder, LinkFrame, frame_head
from everlog.cluster.link_hello import Hello, decode_hello, encode_hello
from everlog.cluster.ports import Bytes, LinkKind

if TYPE_CHECKING:
    from everlog.cluster.links import Links

OFFER_BYTES = 16 << 20  # that wait to leave; beyond it offers to this peer are dropped
_APART_BYTES = 16 << 10  # a body of this size is not copied together with others
_INBOX_BYTES = 256 << 10  # that are read at once
HELLO_S = 5.0  # for a peer to say who it is


class Link(asyncio.BufferedProtocol):
    """A connection, dialled or accepted. It is `open` once both sides know each other."""

    def __init__(self, links: "Links", to: int = 0) -> None:
        self.incarnation = 0  # of the peer, once it is known
        self.name = ""
        self.is_open = False
        self.heard = 0.0  # when something came last
        self.lost: asyncio.Future[EverlogError | None] = asyncio.get_running_loop().create_future()
        self._links = links
        self.to = to  # whom we have dialled; 0: the peer has
        self._decoder = LinkDecoder()
        self._inbox = bytearray(_INBOX_BYTES)
        self._room = memoryview(self._inbox)  # of which TLS takes parts, and they must be of the inbox itself
        self._transport: asyncio.Transport | None = None
        self._out: list[Bytes] = []
        self._out_bytes = 0
        self._is_asked = False
        self.why: EverlogError | None = None  # we have closed it

    # asyncio calls these

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say who we are if we dialled."""
        transport = cast(asyncio.Transport, transport)  # uvloop's is one by what it does, not by its class
        self._transport = transport
        transport.set_write_buffer_limits(high=OFFER_BYTES)
        wire = transport.get_extra_info("socket")
        if wire is not None and wire.family != socket.AF_UNIX:
            wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.heard = self._links.time()
        self._links.made(self)
        if self.to:
            self._greet()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where to put what comes."""
        return self._room

    def buffer_updated(self, size: int) -> None:
        """Take frames in."""
        self.heard = self._links.time()
        was_open = self.is_open
        try:
            for frame in self._decoder.feed(self._inbox, size):
                self._take(frame)
            if self.is_open and not was_open:
                for frame in self._decoder.feed(b""):  # what came with the hello
                    self._take(frame)
            self._links.rested()
        except EverlogError as error:
            self.close(error)

    def connection_lost(self, error: Exception | None) -> None:
        """Tell that the connection is over."""
        self.is_open = False
        self._links.ended(self)
        if not self.lost.done():
            self.lost.set_result(self.why)

    # Everyone else calls these

    @property
    def waiting_bytes(self) -> int:
        """How much waits to leave."""
        return self._out_bytes + (self._transport.get_write_buffer_size() if self._transport is not None else 0)

    def send(self, kind: int, number: int, body: Bytes, rest: Bytes = b"") -> None:
        """Send a frame by the end of this turn of the event loop; nothing if the connection is over.

        Its body may be in two pieces, of which a large `rest` is not copied: it must stay as it is.
        """
        self._put(frame_head(kind, number, body, rest), body, rest)

    def offer(self, head: bytes, body: Bytes, rest: Bytes) -> bool:
        """Send a frame, whose head is known, unless the peer is slow; return whether it was sent."""
        if self.waiting_bytes > OFFER_BYTES:
            return False
        self._put(head, body, rest)
        return True

    def _put(self, head: bytes, body: Bytes, rest: Bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        size = len(body) + len(rest)
        self._out_bytes += size
        if size < _APART_BYTES:
            self._out.append(b"".join((head, body, rest)))
        else:
            self._out += (head, body, rest)
        if not self._is_asked:
            self._is_asked = True
            asyncio.get_running_loop().call_soon(self._flush)

    def close(self, why: EverlogError | None = None) -> None:
        """End the connection at once."""
        self.why = self.why or why
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    def _flush(self) -> None:
        self._is_asked = False
        out, self._out, self._out_bytes = self._out, [], 0
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        transport.writelines(out)  # one call of the system for all of it

    def _greet(self) -> None:
        self.send(LinkKind.HELLO, 0, encode_hello(self._links.hello(self.to)))

    def _take(self, frame: LinkFrame) -> None:
        if self.is_open:
            self._links.received(self, frame)
            return
        if frame.kind != LinkKind.HELLO:
            raise BadFrame("a peer sent something before it said who it is")
        hello: Hello = decode_hello(frame.body)
        self._links.meet(self, hello, called=not self.to)
        if not self.to:
            self._greet()
        self.incarnation, self.name = hello.incarnation, hello.name
        self._decoder.max_body = MAX_BODY
        self.is_open = True
        self._links.opened(self)
