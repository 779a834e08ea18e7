"""Who is measured: Everlog's streams over NATS core and over its own broker, and JetStream as it comes."""

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

import msgspec

from everlog.base import Unavailable
from everlog.bench.load.brokers import free_port
from everlog.bus import FrameKind, encode_frame, request_subject
from everlog.streams import Call, Level, Message, Set

_PATH = "/usr/local/sbin:/usr/sbin:/usr/local/bin:/usr/bin"
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


class Contender:
    """Something that keeps streams."""

    name = ""

    @abstractmethod
    def start(self, folder: Path, running: Running) -> None:
        """Start the processes."""

    def requests(self, streams: int, size: int, level: Level) -> object:
        """Return how to append."""
        return EverlogRequests(streams, size, level)

    @contextmanager
    def running(self) -> Iterator[Running]:
        """Run it for the length of a block, on a fresh directory."""
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="everlog-bench-persist-")))
            running = Running("")
            stack.callback(_stop, running)
            self.start(folder, running)
            yield running


class EverlogOverNats(Contender):
    """A NATS server without JetStream, and a persist server."""

    name = "everlog over NATS"

    def start(self, folder: Path, running: Running) -> None:
        """Start both."""
        _start_nats(folder, running, "")
        command = [sys.executable, "-m", "everlog", "persist", "serve", "--data", str(folder / "data")]
        _start(running, [*command, "--bus", running.url, "--log-level", "error"], b" serves ")


class EverlogOverMqtt(Contender):
    """A broker with its streams."""

    name = "everlog serve"

    def start(self, folder: Path, running: Running) -> None:
        """Start it."""
        port = free_port()
        running.url = f"mqtt://127.0.0.1:{port}"
        command = [sys.executable, "-m", "everlog", "serve", "--port", str(port), "--data", str(folder / "data")]
        flags = ["--http-port", "none", "--set", "limits.connects_per_second=100000", "--log-level", "error"]
        _start(running, [*command, *flags], b"kernels")


class JetStream(Contender):
    """A NATS server with JetStream, file storage, and its default of when to sync."""

    name = "JetStream"

    def start(self, folder: Path, running: Running) -> None:
        """Start it."""
        _start_nats(folder, running, f'jetstream {{ store_dir: "{folder}/js" }}\n')

    def requests(self, streams: int, size: int, level: Level) -> object:
        """Return how to append."""
        return JetStreamRequests(streams, size)


class EverlogRequests:
    """Appends in the persist protocol; one state shard, as on one machine."""

    def __init__(self, streams: int, size: int, level: Level) -> None:
        self._subjects = [request_subject(0, "w", f"bench/{number}") for number in range(streams)]
        calls = [Call(Set(f"bench/{number}", Message(bytes(size)), level=level)) for number in range(streams)]
        self._bodies = [msgspec.msgpack.encode(call) for call in calls]

    def make(self, number: int, id: int) -> tuple[str, bytes]:
        """Return subject and payload of an append."""
        return self._subjects[number], encode_frame(FrameKind.REQUEST, id, 1, 0, self._bodies[number])

    def is_done(self, payload: bytes) -> bool:
        """Return whether an answer says that it is done."""
        return b"\xa2ok" in payload[16:24]


class JetStreamRequests:
    """Appends as JetStream has them."""

    def __init__(self, streams: int, size: int) -> None:
        self._payload = bytes(size)
        self._subjects = [f"bench/{number}" for number in range(streams)]

    def prepare(self) -> list[tuple[str, bytes]]:
        """Return the requests that make the streams."""
        made = []
        for number, subject in enumerate(self._subjects):
            config = {"name": f"S{number}", "subjects": [subject.replace("/", ".")], "storage": "file"}
            made.append((f"$JS/API/STREAM/CREATE/S{number}", msgspec.json.encode(config)))
        return made

    def make(self, number: int, id: int) -> tuple[str, bytes]:
        """Return subject and payload of an append."""
        return self._subjects[number], self._payload

    def is_done(self, payload: bytes) -> bool:
        """Return whether an answer says that it is done."""
        return b'"seq":' in payload


CONTENDERS: dict[str, Contender] = {
    "nats": EverlogOverNats(),
    "mqtt": EverlogOverMqtt(),
    "jetstream": JetStream(),
}


def _start_nats(folder: Path, running: Running, more: str) -> None:
    program = shutil.which("nats-server", path=_PATH)
    if program is None:
        raise Unavailable("nats-server is not installed", hint="run: tools/install-servers")
    port = free_port()
    config = folder / "nats.conf"
    config.write_text(f'host: "127.0.0.1"\nport: {port}\n{more}')
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
