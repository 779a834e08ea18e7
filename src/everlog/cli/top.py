"""`everlog top`: a live view of a broker, from the metrics that it serves over HTTP."""

import os
import select
import sys
import termios
import time
import tty
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from everlog.app import DEFAULT_HTTP_PORT
from everlog.base import Unavailable, UsageError, system_reason
from everlog.cli.metrics_sample import Rates, Sample, parse_sample
from everlog.cli.table_printer import cell

_TIMEOUT_S = 10.0
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a broker is never reached through a web proxy
_HISTORY = 60  # rates in a sparkline
_BLOCKS = "▁▂▃▄▅▆▇█"
_DEFAULT_URL = f"http://127.0.0.1:{DEFAULT_HTTP_PORT}"

# Counters that stay at 0 when all is well; those that do not are shown.
_TROUBLES = (
    "connects_refused",
    "connects_limited",
    "protocol_errors",
    "auth_failures",
    "keep_alive_timeouts",
    "connect_timeouts",
    "refused",
    "retained_refused",
    "subscribes_refused",
    "over_quota",
    "held_back",
    "table_resets",
    "messages_dropped",
    "messages_expired",
)


def top(
    url: Annotated[str, typer.Option(metavar="URL", help="The broker's HTTP port.")] = _DEFAULT_URL,
    interval: Annotated[float, typer.Option(metavar="SECONDS", min=0.05, help="Time between two updates.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print one view and end.")] = False,
) -> None:
    """Watch a running broker: connections, messages a second, lag. The key q ends it.

    Where the output is no terminal, one view is printed after the other.
    """
    console = Console()
    before = fetch(url)
    if once:
        time.sleep(interval)
        console.print(view(Rates(before, fetch(url)), url))
        return
    history: deque[float] = deque(maxlen=_HISTORY)
    with keys() as pressed, _display(console) as display:
        display(view(Rates(before, before), url))
        while pressed(interval) not in ("q", "Q"):
            rates = Rates(before, fetch(url))
            before = rates.now
            history.append(rates.per_second("messages_received_total") + rates.per_second("messages_sent_total"))
            display(view(rates, url, history))


@contextmanager
def _display(console: Console) -> Iterator[Callable[[RenderableType], None]]:
    """Yield a function that shows a view: in the place of the one before, or below it where that can't be done."""
    if not console.is_terminal:
        yield lambda view: console.print(view, Text())
        return
    with Live(console=console, screen=True, auto_refresh=False) as live:
        yield lambda view: live.update(view, refresh=True)


def _sleep(seconds: float) -> str:
    time.sleep(seconds)
    return ""


@contextmanager
def keys() -> Iterator[Callable[[float], str]]:
    """Yield a function that waits for so many seconds at most and returns the key that was pressed, if any was."""
    if not sys.stdin.isatty():
        yield _sleep
        return
    number = sys.stdin.fileno()
    before = termios.tcgetattr(number)

    def pressed(seconds: float) -> str:
        ready, _, _ = select.select([number], [], [], seconds)
        return os.read(number, 1).decode(errors="replace") if ready else ""

    tty.setcbreak(number)
    try:
        yield pressed
    finally:
        termios.tcsetattr(number, termios.TCSADRAIN, before)


def fetch(url: str) -> Sample:
    """Fetch the metrics; raises an error that says why they can't be had."""
    address = url.rstrip("/") if "://" in url else f"http://{url.rstrip('/')}"
    address = address if address.endswith("/metrics") else f"{address}/metrics"
    if not address.startswith(("http://", "https://")):
        raise UsageError(f"{url!r} is not the URL of a broker's HTTP port", hint=f"write it like {_DEFAULT_URL}")
    try:
        with _DIRECT.open(address, timeout=_TIMEOUT_S) as answer:
            text = answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            raise Unavailable(f"{address} answers {error.code}", hint="is this the broker's HTTP port?") from None
    except OSError as error:
        reason = getattr(error, "reason", error)
        reason = system_reason(reason) if isinstance(reason, OSError) else reason
        raise Unavailable(
            f"no broker answers at {address}: {reason}", hint="everlog serve says at start where its HTTP port is"
        ) from None
    sample = parse_sample(text, time.monotonic())
    if "connections" not in sample.values:
        raise Unavailable(f"{address} is not an Everlog broker's", hint="everlog serve says where its HTTP port is")
    return sample


def view(rates: Rates, url: str, history: deque[float] | None = None) -> RenderableType:
    """Return one frame of the view."""
    now = rates.now
    version = now.labels("build_info").get("version", "?")
    head = Text.assemble((f"everlog {version}", "bold"), f"  {url}  up {_duration(now.value('uptime_seconds'))}")
    parts: list[RenderableType] = [head, _numbers(rates)]
    if history:
        parts.append(Text(f"messages/s  {sparkline(history)}  {_number(history[-1])}"))
    behind = now.series("session_lag_messages", "client_id")
    if behind:
        table = Table("most behind", "messages", box=None, pad_edge=False, show_edge=False)
        for client, lag in sorted(behind, key=lambda one: -one[1])[:5]:
            table.add_row(cell(client), _number(lag))
        parts.append(table)
    troubles = [(name, now.value(f"{name}_total")) for name in _TROUBLES if now.value(f"{name}_total")]
    if troubles:
        parts.append(Text("  ".join(f"{name} {_number(count)}" for name, count in troubles), style="yellow"))
    if any(value for _, value in now.series("log_failed", "shard")):
        parts.append(Text("a shard of the log can't be written", style="bold red"))
    if now.value("disk_full"):
        parts.append(Text("the disk is full: no messages are kept", style="bold red"))
    if now.value("clock_doubted"):
        parts.append(Text("the wall clock has jumped and nothing expires: everlog clock DATA_DIR", style="bold red"))
    return Group(*parts)


def _numbers(rates: Rates) -> Table:
    now = rates.now
    rows = (
        ("connections", now.value("connections"), "connects/s", rates.per_second("connects_total")),
        ("sessions", now.value("sessions"), "messages in/s", rates.per_second("messages_received_total")),
        ("subscriptions", now.value("subscriptions"), "messages kept/s", rates.per_second("messages_kept_total")),
        ("retained", now.value("retained_messages"), "messages out/s", rates.per_second("messages_sent_total")),
        ("in flight", now.value("inflight_messages"), "bytes in/s", rates.per_second("received_bytes_total")),
        ("held bytes", now.value("held_bytes"), "bytes out/s", rates.per_second("sent_bytes_total")),
        ("max lag", now.value("session_lag_max_messages"), "log records", now.total("log_committed")),
        ("behind", now.value("sessions_behind"), "log bytes", now.total("log_bytes")),
    )
    table = Table.grid(padding=(0, 2))
    for _ in range(2):
        table.add_column()
        table.add_column(justify="right", min_width=8)
    for left, one, right, two in rows:
        table.add_row(left, _number(one), right, _number(two))
    return table


def sparkline(values: deque[float]) -> str:
    """Return the values as blocks, the highest a full one."""
    highest = max(values) or 1.0
    return "".join(_BLOCKS[min(len(_BLOCKS) - 1, int(value / highest * len(_BLOCKS)))] for value in values)


def _number(value: float) -> str:
    """Return a number in short: 950, 12.3k, 4.5M."""
    for limit, suffix in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= limit:
            return f"{value / (1e3 if suffix == 'k' else limit):.1f}{suffix}"
    return f"{value:.0f}" if value == int(value) or value >= 100 else f"{value:.1f}"


def _duration(seconds: float) -> str:
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    return f"{days}d {hour:02}:{minute:02}:{second:02}" if days else f"{hour:02}:{minute:02}:{second:02}"
