"""`everlog top`: what it reads, what it shows, and what it says when there is nothing to show."""

import http.server
import io
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from rich.console import Console
from tests.brokers import RunningBroker
from tests.listening import on_loop

from everlog import __version__
from everlog.base import Unavailable, UsageError
from everlog.broker import Metrics
from everlog.cli import main
from everlog.cli.metrics_sample import Rates, parse_sample
from everlog.cli.top import _TROUBLES, fetch, sparkline, view
from everlog.web import start_web

TEXT = """\
# TYPE everlog_build_info gauge
everlog_build_info{kernels="compiled",version="1.2.3"} 1.0
# TYPE everlog_uptime_seconds gauge
everlog_uptime_seconds 93784.0
# TYPE everlog_connections gauge
everlog_connections 1200.0
# TYPE everlog_messages_received counter
everlog_messages_received_total {received}
# TYPE everlog_auth_failures counter
everlog_auth_failures_total 3.0
# TYPE everlog_session_lag_messages gauge
everlog_session_lag_messages{client_id="slow\\u001b[2J"} 12345.0
# TYPE everlog_log_failed gauge
everlog_log_failed{shard="0"} 1.0
# TYPE process_open_fds gauge
process_open_fds 7.0
"""


def sample(received: int) -> str:
    return TEXT.replace("{received}", str(received)).replace("\\u001b", "\x1b")


def shown(rates: Rates, history: deque[float] | None = None) -> str:
    console = Console(width=100, file=io.StringIO())
    console.print(view(rates, "http://x", history))
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def test_a_frame_has_numbers_rates_and_troubles() -> None:
    rates = Rates(parse_sample(sample(100), 10.0), parse_sample(sample(50_100), 12.0))
    text = shown(rates, deque([0.0, 25_000.0]))
    for part in ("everlog 1.2.3", "up 1d 02:03:04", "1200", "25.0k", "auth_failures 3", "12.3k", "can't be written"):
        assert part in text
    assert "▁█" in text


def test_a_client_id_can_not_command_the_terminal() -> None:
    one = parse_sample(sample(0), 0.0)
    assert "\x1b" not in shown(Rates(one, one))


def test_a_restart_between_two_looks_is_no_negative_rate() -> None:
    rates = Rates(parse_sample(sample(100), 1.0), parse_sample(sample(5), 2.0))
    assert rates.per_second("messages_received_total") == 0


def test_a_sparkline_of_nothing_is_flat() -> None:
    assert sparkline(deque([0.0, 0.0])) == "▁▁"
    assert sparkline(deque([1.0, 4.0, 8.0])) == "▂▅█"


def test_troubles_are_counters_of_the_broker() -> None:
    known = {*Metrics.__dataclass_fields__, "messages_dropped", "messages_expired"}
    assert set(_TROUBLES) <= known


@pytest.mark.parametrize("doubted", [False, True])
def test_once_prints_one_frame_of_a_running_broker(capsys: pytest.CaptureFixture[str], doubted: bool) -> None:
    with RunningBroker(due_us=(lambda: 0) if doubted else None) as running:
        web = on_loop(running, start_web(running.broker.reports, "127.0.0.1", 0))
        assert web is not None
        assert main(["top", "--once", "--interval", "0.05", "--url", web.url]) == 0
        on_loop(running, web.close())
    out = capsys.readouterr().out
    assert f"everlog {__version__}" in out
    assert "connections" in out
    assert ("the wall clock has jumped" in out) is doubted
    assert "\x1b" not in out


@contextmanager
def answering(status: int, body: bytes) -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (404, b"", "answers 404"),
        (200, b"<html>", "is not metrics"),
        (200, b"other_metric 1\n", "not an Everlog broker's"),
    ],
)
def test_another_server_is_told_apart(status: int, body: bytes, message: str) -> None:
    with answering(status, body) as url, pytest.raises(Unavailable, match=message):
        fetch(url)


def test_no_server_is_said_with_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--once", "--url", "http://127.0.0.1:1"]) == 1
    assert "no broker answers" in capsys.readouterr().err


def test_views_follow_each_other_where_the_output_is_no_terminal() -> None:
    """The reader has two of them and goes, as `head` does; an output that is full ends it too."""
    with answering(200, (TEXT.replace("{received}", "1") + "everlog_connections 1.0\n").encode()) as url:
        command = [sys.executable, "-m", "everlog", "top", "--interval", "0.05", "--url", url]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True) as process:
            assert process.stdout is not None
            seen = 0
            while seen < 2:
                seen += "everlog 1.2.3" in process.stdout.readline()
            process.stdout.close()
            assert process.wait(60) == 1
        with open("/dev/full", "wb") as full:
            ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
        assert (ended.returncode, "can't be written" in ended.stderr) == (1, True)


def test_what_is_no_url_is_refused() -> None:
    with pytest.raises(UsageError, match="is not the URL"):
        fetch("ftp://localhost:9001")
