"""A real broker process, what it counts and what memory it takes, and a client that must stay served meanwhile."""

import contextlib
import resource
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType

from tests.raw_client import RawClient

from everlog.bench.load.brokers import free_port

PATIENCE_S = 60.0


class Served:
    """`everlog serve` on free ports; `settings` are `section.key: value`."""

    def __init__(self, data: Path, *arguments: str, **settings: object) -> None:
        _allow_files(20_000)
        self.port, self.http_port = free_port(), free_port()
        sets = [word for key, value in settings.items() for word in ("--set", f"{key.replace('__', '.')}={value}")]
        command = [
            *(sys.executable, "-m", "everlog", "serve", "--port", str(self.port), "--data", str(data)),
            *("--http-port", str(self.http_port), *arguments, *sets),
        ]
        self.start_lines: list[str] = []
        self._log = open(data.parent / "broker.log", "wb")  # noqa: SIM115 - closed at the end
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self._log)

    def __enter__(self) -> "Served":
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.start_lines.append(line.decode())
            if b"kernels" in line:
                return self
        raise AssertionError("the broker did not start")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._process.terminate()
        assert self._process.stdout is not None
        self._process.stdout.close()
        try:
            status = self._process.wait(PATIENCE_S)
        finally:
            self._process.kill()
            self._process.wait()
            self._log.close()
        assert kind is not None or status == 0

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    def cpu_s(self) -> float:
        """How long the thread of the event loop has worked."""
        return int(Path(f"/proc/{self.pid}/task/{self.pid}/schedstat").read_text().split()[0]) / 1e9

    def send(self, number: int) -> None:
        """Send a signal to it."""
        self._process.send_signal(number)

    def metrics(self) -> dict[str, float]:
        """Every metric without labels, by its name without the prefix."""
        url = f"http://127.0.0.1:{self.http_port}/metrics"
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as page:
            lines = page.read().decode().splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#") and "{" not in line)
        return {name.removeprefix("everlog_"): float(value) for name, value in pairs}

    def until(self, name: str, least: float) -> dict[str, float]:
        """Wait until a metric is at least so much; all of them then."""
        return self._once(name, f"at least {least}", lambda value: value >= least)

    def down_to(self, name: str, value: float) -> None:
        """Wait until a metric has come to this value."""
        self._once(name, f"{value}", lambda now: now == value)

    def _once(self, name: str, wanted: str, fits: Callable[[float], bool]) -> dict[str, float]:
        deadline = time.monotonic() + PATIENCE_S
        while not fits((found := self.metrics())[name]):
            assert time.monotonic() < deadline, f"{name} is {found[name]}, not {wanted}"
            time.sleep(0.02)
        return found

    def memory(self, field: str = "VmRSS") -> int:
        """Resident bytes, now (VmRSS) or at their peak (VmHWM)."""
        for line in Path(f"/proc/{self._process.pid}/status").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) << 10
        raise AssertionError(f"no {field}")

    @contextlib.contextmanager
    def growing_at_most(self, limit: int) -> Iterator[None]:
        """What happens in here may take so many bytes more at its peak than the broker had before."""
        Path(f"/proc/{self._process.pid}/clear_refs").write_text("5")
        before = self.memory()
        yield
        grown = self.memory("VmHWM") - before
        assert grown <= limit, f"{grown >> 20} MiB more, not {limit >> 20}"


class Probe:
    """A client in a thread that publishes to itself, one message at a time; each has to come back."""

    def __init__(self, port: int) -> None:
        self.trips = 0
        self._error: BaseException | None = None
        self._ended = threading.Event()
        self._client = RawClient(port)
        self._client.connect("probe")
        self._client.subscribe("probe/+", qos=1)
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Probe":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._client.close()
        assert self._error is None, f"the probe failed after {self.trips} round trips: {self._error!r}"
        assert self.trips > 0

    def _run(self) -> None:
        client = self._client
        try:
            while not self._ended.wait(0.002):
                payload = str(self.trips).encode()
                client.publish("probe/a", payload, 1)
                assert client.message().payload == payload
                self.trips += 1
        except BaseException as error:  # noqa: BLE001 - told at the end
            self._error = error

    def goes_on(self, trips: int = 20) -> None:
        """Wait until so many more round trips are done."""
        goal, deadline = self.trips + trips, time.monotonic() + PATIENCE_S
        while self.trips < goal:
            assert self._error is None, repr(self._error)
            assert time.monotonic() < deadline, f"{goal - self.trips} round trips are missing"
            time.sleep(0.005)


def _allow_files(count: int) -> None:
    """Room for so many sockets, here and in the broker that inherits it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
