"""Just enough HTTP/1.1 for machines that read a page: GET and HEAD, one request a connection, no request bodies."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

MAX_REQUEST_BYTES = 8192  # a longer request: 431
REQUEST_TIMEOUT_S = 10.0  # a slower one, or one that does not read its answer: cut off
MAX_CONNECTIONS = 64  # one more: who has sent no whole request for longest is cut off; 503 if all have

TEXT = "text/plain; charset=utf-8"
_STATUS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


@dataclass(frozen=True, slots=True)
class Page:
    """A response."""

    body: bytes
    status: int = 200
    content_type: str = TEXT
    headers: tuple[str, ...] = ()

    @classmethod
    def say(cls, status: int, text: str, *headers: str) -> "Page":
        """Return a response in plain text."""
        return cls(f"{text}\n".encode(), status, headers=headers)


@dataclass(frozen=True, slots=True)
class Request:
    """A request; `path` is without the query."""

    method: str
    path: str


Site = Callable[[Request], Awaitable[Page]]


def parse(head: bytes) -> Request | Page:
    """Return the request in these bytes, or the response to one that is not valid."""
    words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        return Page.say(400, "this is not an HTTP/1.1 request")
    if words[0] not in ("GET", "HEAD"):
        return Page.say(405, "pages here can only be read", "Allow: GET, HEAD")
    return Request(words[0], words[1].partition("?")[0])


def render(page: Page, with_body: bool = True) -> bytes:
    """Return the bytes of a response, after which the connection closes."""
    lines = (
        f"HTTP/1.1 {page.status} {_STATUS[page.status]}",
        f"Content-Type: {page.content_type}",
        f"Content-Length: {len(page.body)}",
        "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff",
        "Connection: close",
        *page.headers,
    )
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + (page.body if with_body else b"")


class HttpServer:
    """The server of a site; every connection is a task with a time limit."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._open = 0
        self._unasked: dict[asyncio.StreamWriter, None] = {}  # that have sent no whole request, the oldest first

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection: read a request, answer it, close."""
        self._open += 1
        self._unasked[writer] = None
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                await self._answer(reader, writer)
        except TimeoutError:
            writer.transport.abort()
        except ConnectionError:
            pass  # the peer left, which is its right
        finally:
            self._open -= 1
            self._unasked.pop(writer, None)
            writer.close()
            with contextlib.suppress(ConnectionError, TimeoutError):
                await writer.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request: Request | Page
        if self._open > MAX_CONNECTIONS and not self._cut_off_another(writer):
            request = Page.say(503, "too many connections at once", "Retry-After: 1")
        else:
            request = await self._read(reader)
        self._unasked.pop(writer, None)
        if isinstance(request, Page):
            writer.write(render(request))
        else:
            writer.write(render(await self._site(request), request.method == "GET"))
        await writer.drain()

    def _cut_off_another(self, newcomer: asyncio.StreamWriter) -> bool:
        """Make room by cutting off who has been silent for longest: a health check must not wait for idle peers."""
        oldest = next(iter(self._unasked))
        if oldest is newcomer:
            return False
        del self._unasked[oldest]
        oldest.transport.abort()
        return True

    async def _read(self, reader: asyncio.StreamReader) -> Request | Page:
        try:
            return parse(await reader.readuntil(b"\r\n\r\n"))
        except asyncio.LimitOverrunError:
            return Page.say(431, f"the request is longer than {MAX_REQUEST_BYTES} bytes")
        except asyncio.IncompleteReadError as error:
            if not error.partial:
                raise ConnectionResetError from None
            return Page.say(400, "the request ends too early")
