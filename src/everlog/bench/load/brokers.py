"""Brokers to compare: how each is started on a free port with a fresh data directory, and stopped."""

import contextlib
import getpass
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from everlog.base import Unavailable
from everlog.bench.load.engine import Trouble
from everlog.bench.load.load_client import Client
from everlog.bench.load.options import Options
from everlog.bench.load.run import Run

START_S = 15.0
STOP_S = 10.0
_PATH = os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin"

Command = Callable[[int, Path], list[str]]  # of port and data directory


@dataclass(frozen=True, slots=True)
class Running:
    """A broker that answers."""

    name: str
    port: int
    pid: int
    data: Path


def _everlog(port: int, data: Path) -> list[str]:
    flags = ["--durability", "fsync", "--keep", "#", "--http-port", "none"]
    limits = ["--set", "limits.connects_per_second=1000000"]  # a load of connects is what is measured
    return [sys.executable, "-m", "everlog", "serve", "--port", str(port), "--data", str(data), *flags, *limits]


def _mosquitto(port: int, data: Path) -> list[str]:
    config = data / "mosquitto.conf"
    config.write_text(
        f"listener {port} 127.0.0.1\nallow_anonymous true\nuser {getpass.getuser()}\nmax_queued_messages 0\n"
        "max_inflight_messages 0\nset_tcp_nodelay true\npersistence true\n"
        f"persistence_location {data}/\nlog_dest none\n"
    )
    return [_find("mosquitto") or "mosquitto", "-c", str(config)]


def _nats(port: int, data: Path) -> list[str]:
    config = data / "nats.conf"
    config.write_text(
        f'host: "127.0.0.1"\nport: -1\nserver_name: "peer"\njetstream {{ store_dir: "{data}" }}\n'
        f'mqtt {{ host: "127.0.0.1", port: {port}, max_ack_pending: 30000 }}\n'
    )
    return [_find("nats-server") or "nats-server", "-c", str(config)]


def _find(program: str) -> str | None:
    return shutil.which(program, path=_PATH)


BROKERS: dict[str, Command] = {"everlog": _everlog, "mosquitto": _mosquitto, "nats": _nats}
_PROGRAMS = {"mosquitto": "mosquitto", "nats": "nats-server"}


def installed() -> list[str]:
    """The brokers that can be started here, ours first."""
    return [name for name in BROKERS if name not in _PROGRAMS or _find(_PROGRAMS[name])]


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def started(name: str, cpus: set[int] | None = None) -> Iterator[Running]:
    """A broker for the length of a block, on these CPUs only; its data is deleted afterwards."""
    with tempfile.TemporaryDirectory(prefix=f"everlog-bench-{name}-") as folder:
        port = free_port()
        with (Path(folder) / "log").open("wb") as log:
            process = subprocess.Popen(
                BROKERS[name](port, Path(folder)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=lambda: _prepare(cpus),  # safe, as this process has one thread
            )
        try:
            if not answers(port, process):
                words = (Path(folder) / "log").read_text(errors="replace").strip().splitlines()
                raise Unavailable(f"{name} did not start: {' | '.join(words[-3:])}")
            yield Running(name, port, process.pid, Path(folder))
        finally:
            _stop(process)


def _prepare(cpus: set[int] | None) -> None:
    if cpus:
        os.sched_setaffinity(0, cpus)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End what `started` began: its own process group and nothing else."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def answers(port: int, process: subprocess.Popen[bytes] | None = None) -> bool:
    """Wait until a broker accepts a CONNECT."""
    until = time.monotonic() + START_S
    while time.monotonic() < until and (process is None or process.poll() is None):
        run = Run(Options("probe", port, timeout=2.0))
        try:
            run.engine.connect([Client(run.shared, run.name("x", 0))], 1)
            return True
        except (Unavailable, Trouble):
            time.sleep(0.02)
        finally:
            run.engine.close()
    return False
