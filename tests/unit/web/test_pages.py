"""The HTTP port of a running broker: pages, health, and the rule of ports."""

import asyncio
import contextlib
import http.client
import socket
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from tests.brokers import RunningBroker
from tests.listening import eventually, on_loop

from everlog.base import StorageError, Unavailable, UsageError
from everlog.web import Check, Web, is_listening, log_is_writable, not_stopping, start_web
from everlog.web import http as small_http
from everlog.web.http import MAX_CONNECTIONS, MAX_REQUEST_BYTES, Page, Request, parse, render


@pytest.fixture
def running() -> Iterator[RunningBroker]:
    with RunningBroker() as broker:
        yield broker


@contextlib.contextmanager
def served(running: RunningBroker, *checks: Check) -> Iterator[Web]:
    web = on_loop(running, start_web(running.broker.reports, "127.0.0.1", 0, checks=checks))
    assert web is not None
    try:
        yield web
    finally:
        on_loop(running, web.close())


def get(web: Web, path: str, method: str = "GET") -> tuple[int, str]:
    connection = http.client.HTTPConnection(web.host, web.port, timeout=20)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def talk(web: Web, data: bytes) -> bytes:
    got = b""
    with socket.create_connection((web.host, web.port), 20) as peer:
        peer.sendall(data)
        peer.shutdown(socket.SHUT_WR)
        while more := peer.recv(4096):
            got += more
    return got


def test_the_first_page_lists_the_others(running: RunningBroker) -> None:
    with served(running) as web:
        assert web.url == f"http://127.0.0.1:{web.port}"
        status, text = get(web, "/")
        assert status == 200
        assert all(path in text for path in ("/metrics", "/healthz", "/readyz"))
        status, text = get(web, "/nowhere")
        assert status == 404
        assert "/metrics" in text


def test_health_and_readiness(running: RunningBroker) -> None:
    reasons: list[str] = []
    with served(running, not_stopping(lambda: running.broker.closing), lambda: reasons[0] if reasons else None) as web:
        assert get(web, "/healthz") == (200, "ok\n")
        assert get(web, "/readyz") == (200, "ok\n")
        reasons.append("the moon is wrong")
        assert get(web, "/readyz") == (503, "the moon is wrong\n")
        running.inside.closing = True
        assert get(web, "/readyz") == (503, "the broker is stopping\nthe moon is wrong\n")
        assert get(web, "/healthz")[0] == 200
        running.inside.closing = False


def test_a_broker_without_listeners_is_not_ready() -> None:
    listening = SimpleNamespace(closed=False, addresses=lambda: ["somewhere"])
    check = is_listening(listening)
    assert check() is None
    listening.closed = True
    assert check() == "no listener is open"


def test_a_failed_shard_is_named(running: RunningBroker) -> None:
    check = log_is_writable(running.broker.log)
    assert check() is None
    running.log.shards[0].failure = StorageError("disk full", hint="make room")
    assert check() == "shard 0 can't be written: disk full (make room)"


def test_metrics_are_what_prometheus_reads(running: RunningBroker) -> None:
    with served(running) as web:
        connection = http.client.HTTPConnection(web.host, web.port, timeout=20)
        connection.request("GET", "/metrics?x=1")
        answer = connection.getresponse()
        assert answer.status == 200
        assert str(answer.getheader("Content-Type")).startswith("text/plain; version=")
        assert b"\neverlog_connections 0.0\n" in answer.read()
        connection.close()


def test_head_has_no_body(running: RunningBroker) -> None:
    with served(running) as web:
        assert talk(web, b"HEAD /healthz HTTP/1.1\r\n\r\n").endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"POST /metrics HTTP/1.1\r\n\r\n", 405),
        (b"nonsense\r\n\r\n", 400),
        (b"GET /", 400),
        (b"GET /" + b"x" * MAX_REQUEST_BYTES + b" HTTP/1.1\r\n\r\n", 431),
    ],
)
def test_what_is_no_request_for_a_page_is_answered(running: RunningBroker, data: bytes, status: int) -> None:
    with served(running) as web:
        assert talk(web, data).startswith(b"HTTP/1.1 %d " % status)


def test_an_empty_connection_is_closed_without_an_answer(running: RunningBroker) -> None:
    with served(running) as web:
        assert talk(web, b"") == b""


def test_a_request_that_never_ends_is_cut_off(running: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_http, "REQUEST_TIMEOUT_S", 0.01)
    with served(running) as web, socket.create_connection((web.host, web.port), 20) as peer:
        peer.sendall(b"GET /he")
        with contextlib.suppress(ConnectionResetError):
            assert peer.recv(1) == b""


def test_idle_connections_do_not_keep_a_health_check_out(running: RunningBroker) -> None:
    with served(running) as web, contextlib.ExitStack() as peers:
        idle = [peers.enter_context(socket.create_connection((web.host, web.port), 20)) for _ in range(MAX_CONNECTIONS)]
        assert get(web, "/healthz") == (200, "ok\n")  # accepted after them, and the first of them makes room
        with contextlib.suppress(ConnectionResetError):
            assert idle[0].recv(1) == b""
        idle[-1].sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
        assert idle[-1].recv(4096).startswith(b"HTTP/1.1 200 ")


def test_too_many_requests_at_once_are_told_so(running: RunningBroker) -> None:
    answered = asyncio.Event()

    async def slow_site(request: Request) -> Page:
        await answered.wait()
        return Page.say(200, "ok")

    site = small_http.HttpServer(slow_site)
    server = on_loop(running, asyncio.start_server(site.serve, "127.0.0.1", 0))
    address = server.sockets[0].getsockname()
    with contextlib.ExitStack() as peers:
        for _ in range(MAX_CONNECTIONS):
            peers.enter_context(socket.create_connection(address, 20)).sendall(b"GET / HTTP/1.1\r\n\r\n")
        eventually(lambda: running.call(lambda: not site._unasked), "all have asked")
        late = peers.enter_context(socket.create_connection(address, 20))
        assert late.recv(4096).startswith(b"HTTP/1.1 503 ")
        running.call(answered.set)
    running.call(server.close)


def test_a_request_in_parts() -> None:
    assert parse(b"GET /a?b=c HTTP/1.1\r\nHost: x\r\n\r\n") == Request("GET", "/a")
    assert render(Page(b"body"), with_body=False).endswith(b"\r\n\r\n")
    assert b"Content-Length: 4\r\n" in render(Page(b"body"))


def test_a_port_that_must_be_taken_is_an_error_when_it_is_not_free(running: RunningBroker) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert on_loop(running, start_web(running.broker.reports, "127.0.0.1", port, must=False)) is None
        with pytest.raises(Unavailable, match=f"port {port} on 127.0.0.1 is in use") as caught:
            on_loop(running, start_web(running.broker.reports, "127.0.0.1", port))
        assert "--http-port" in caught.value.hint


def test_an_address_of_another_machine_is_an_error_in_any_case(running: RunningBroker) -> None:
    with pytest.raises(UsageError, match=r"203\.0\.113\.7 is not an address"):
        on_loop(running, start_web(running.broker.reports, "203.0.113.7", 0, must=False))
