"""Brokers to compare: how each is started on a free port with a fresh data directory, and stopped."""

import contextlib
import ctypes
import getpass
import os
import resource
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from everlog.base import Unavailable, UsageError
from everlog.bench.load.engine import Trouble
from everlog.bench.load.load_client import Client
from everlog.bench.load.options import Options
from everlog.bench.load.run import Run

START_S = 60.0
STOP_S = 10.0
_PORTS = range(20_000, 32_000)  # below those that Linux gives to clients
_PATH = os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin"
_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker that can be started. `python` and `keeps` (every message or none) are for Everlog only."""

    name: str
    program: str = "everlog"
    python: str = sys.executable
    keeps: bool = True

    @property
    def is_everlog(self) -> bool:
        """Whether it is Everlog, of whatever checkout."""
        return self.program == "everlog"


EVERLOG = Broker("everlog")


@dataclass(frozen=True, slots=True)
class Running:
    """A broker that answers."""

    name: str
    port: int
    pid: int
    data: Path


def _everlog(broker: Broker, port: int, data: Path) -> list[str]:
    keep = ["--keep", "#"] if broker.keeps else ["--set", "keep.filters="]
    flags = ["--durability", "fsync", *keep, "--http-port", "none"]
    limits = ["--set", "limits.connects_per_second=1000000"]  # a load of connects is what is measured
    return [broker.python, "-P", "-m", "everlog", "serve", "--port", str(port), "--data", str(data), *flags, *limits]


def _mosquitto(broker: Broker, port: int, data: Path) -> list[str]:
    config = data / "mosquitto.conf"
    config.write_text(
        f"listener {port} 127.0.0.1\nallow_anonymous true\nuser {getpass.getuser()}\nmax_queued_messages 0\n"
        "max_inflight_messages 0\nset_tcp_nodelay true\npersistence true\n"
        f"persistence_location {data}/\nlog_dest none\n"
    )
    return [_find("mosquitto") or "mosquitto", "-c", str(config)]


def _nats(broker: Broker, port: int, data: Path) -> list[str]:
    config = data / "nats.conf"
    config.write_text(
        f'host: "127.0.0.1"\nport: -1\nserver_name: "peer"\njetstream {{ store_dir: "{data}" }}\n'
        f'mqtt {{ host: "127.0.0.1", port: {port}, max_ack_pending: 30000 }}\n'
    )
    return [_find("nats-server") or "nats-server", "-c", str(config)]


def _find(program: str) -> str | None:
    return shutil.which(program, path=_PATH)


_COMMANDS: dict[str, Callable[[Broker, int, Path], list[str]]] = {
    "everlog": _everlog,
    "mosquitto": _mosquitto,
    "nats": _nats,
}
_PEERS = {"mosquitto": "mosquitto", "nats": "nats-server"}


def installed() -> list[Broker]:
    """Return the brokers that can be started here, ours first."""
    return [EVERLOG, *(Broker(name, name) for name, program in _PEERS.items() if _find(program))]


def checkout(directory: Path, name: str) -> Broker:
    """Return the broker of another checkout, which has an environment of its own and its kernels compiled."""
    python = directory / ".venv/bin/python"
    code = "import everlog; from everlog import _kernels; print(everlog.__file__); print(*_kernels.interpreted())"
    if not python.exists():
        raise UsageError(f"{directory} has no .venv", hint=f"run: make -C {directory} install")
    found = subprocess.run([python, "-P", "-c", code], capture_output=True, text=True, env=_environment(str(python)))
    where, _, interpreted = found.stdout.strip().partition("\n")
    if found.returncode or directory.resolve() not in Path(where).parents:
        raise UsageError(f"{python} does not run the Everlog of {directory}", hint=found.stderr.strip() or where)
    if interpreted:
        raise UsageError(f"the kernels of {directory} are not compiled", hint=f"run: make -C {directory} kernels")
    return Broker(name, python=str(python))


def _environment(python: str) -> dict[str, str]:
    """Return this process's environment, without a path for modules that are not of that Python."""
    return {name: text for name, text in os.environ.items() if name != "PYTHONPATH" or python == sys.executable}


def free_port() -> int:
    """Return a port that nobody listens on now."""
    while True:
        port = secrets.choice(_PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def _as_it_is(folder: Path) -> dict[str, str]:
    return {}


@contextlib.contextmanager
def started(
    broker: Broker,
    cpus: set[int] | None = None,
    arguments: Sequence[str] = (),
    environment: Callable[[Path], dict[str, str]] = _as_it_is,
    folder: Path | None = None,
) -> Iterator[Running]:
    """Run a broker for the length of a block, on these CPUs only, with more `arguments` of its command line.

    Its data is in a folder that is deleted afterwards, or in one that is there; `environment` says which variables it
    gets for that folder.
    """
    with contextlib.ExitStack() as stack:
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f"everlog-bench-{broker.program}-")))
        variables = _environment(broker.python) | environment(folder)
        port = free_port()
        log = stack.enter_context((folder / "log").open("wb"))
        command = [*_COMMANDS[broker.program](broker, port, folder), *arguments]
        parent = os.getpid()
        signals = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # until `_stop` knows the process
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=variables,
                start_new_session=True,
                preexec_fn=lambda: _prepare(parent, cpus, signals),  # safe, as this process has one thread
            )
            stack.callback(_stop, process)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, signals)
        if not answers(port, process):
            words = (folder / "log").read_text(errors="replace").strip().splitlines()
            raise Unavailable(f"{broker.name} did not start: {' | '.join(words[-3:])}")
        yield Running(broker.name, port, process.pid, folder)


def _prepare(parent: int, cpus: set[int] | None, signals: set[int]) -> None:
    """Set up the process that becomes the broker: it ends with the one that started it, however that ends."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os._exit(1)
    signal.pthread_sigmask(signal.SIG_SETMASK, signals)
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


def answers(port: int, process: subprocess.Popen[bytes]) -> bool:
    """Wait until a broker accepts a CONNECT; return whether it does."""
    until = time.monotonic() + START_S
    while time.monotonic() < until and process.poll() is None:
        run = Run(Options("probe", port, timeout=2.0))
        try:
            run.engine.connect([Client(run.shared, run.name("x", 0))], 1)
            return True
        except (Unavailable, Trouble):
            time.sleep(0.02)
        finally:
            run.engine.close()
    return False
