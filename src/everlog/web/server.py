"""The web pages of a broker and the port that serves them."""

import asyncio
from collections.abc import Sequence

from prometheus_client.registry import Collector

from everlog import __version__
from everlog.base import Unavailable
from everlog.broker import Reports, cannot_listen
from everlog.web.health import Check, why_not_ready
from everlog.web.http import MAX_REQUEST_BYTES, HttpServer, Page, Request
from everlog.web.prometheus import CONTENT_TYPE, Exposition


class Pages:
    """The pages by path."""

    def __init__(self, exposition: Exposition, checks: Sequence[Check], warnings: Sequence[Check] = ()) -> None:
        self._exposition = exposition
        self._checks = checks
        self._warnings = warnings
        self._pages = {
            "/": (self._overview, "this page"),
            "/metrics": (self._metrics, "the broker's numbers, for Prometheus"),
            "/healthz": (self._healthz, "200 as long as the event loop answers, and what an operator should look at"),
            "/readyz": (self._readyz, "200 when clients can be served, else 503 and why not"),
        }

    async def __call__(self, request: Request) -> Page:
        """Return the page for a request."""
        found = self._pages.get(request.path)
        if found is None:
            return Page.say(404, f"no such page; there are {', '.join(self._pages)}")
        return await found[0]()

    async def _overview(self) -> Page:
        lines = [f"everlog {__version__}", ""]
        lines += [f"{path:<10} {what}" for path, (_, what) in self._pages.items()]
        return Page.say(200, "\n".join(lines))

    async def _metrics(self) -> Page:
        return Page(await self._exposition.text(), content_type=CONTENT_TYPE)

    async def _healthz(self) -> Page:
        return Page.say(200, "\n".join(["ok", *why_not_ready(self._warnings)]))

    async def _readyz(self) -> Page:
        reasons = why_not_ready(self._checks)
        return Page.say(503, "\n".join(reasons)) if reasons else Page.say(200, "ok")


class Web:
    """The open HTTP port."""

    def __init__(self, server: asyncio.Server) -> None:
        self._server = server
        self.host, self.port = server.sockets[0].getsockname()[:2]

    @property
    def url(self) -> str:
        """The address of the pages."""
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    async def close(self) -> None:
        """Take no more requests."""
        self._server.close()
        await self._server.wait_closed()


async def start_web(
    reports: Reports,
    host: str,
    port: int,
    *,
    must: bool = True,
    names_clients: bool = False,
    checks: Sequence[Check] = (),
    warnings: Sequence[Check] = (),
    collectors: Sequence[Collector] = (),
) -> Web | None:
    """Serve the pages; if the port is in use, raise an error if it `must` be this one, else return None."""
    pages = Pages(Exposition(reports, names_clients=names_clients, more=collectors), checks, warnings)
    try:
        server = await asyncio.start_server(HttpServer(pages).serve, host, port, limit=MAX_REQUEST_BYTES)
    except OSError as error:
        problem = cannot_listen(host, port, error, "--http-port")
        if isinstance(problem, Unavailable) and not must:
            return None
        raise problem from error
    return Web(server)
