"""An innocent client in a process of its own: how much CPU a broker's loop spends while a PINGREQ waits for its answer.

CPU, not time, since the machine may be busy: `Innocent.worst_ms` is the most that the broker's main thread worked
between a PINGREQ and its PINGRESP, without what it did while this client itself waited for a processor, and without
what a virtual machine was not given: its threads seem to run meanwhile.
"""

import contextlib
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PINGREQ = b"\xc0\x00"
CONNECT = b"\x10\x15\x00\x04MQTT\x04\x02\x00\x00\x00\x09innocent!"


@dataclass(slots=True)
class Trips:
    """What the innocent client has seen; known when it has ended."""

    count: int = 0
    worst_ms: float = 0.0


def scheduled_ns(thread: str) -> tuple[int, int]:
    """How long a thread has run, and how long it has waited for a processor."""
    ran, waited, _ = Path(f"/proc/{thread}/schedstat").read_text().split()
    return int(ran), int(waited)


def stolen_ns() -> int:
    """How long the machine's processors were given to others; told in hundredths of a second."""
    return int(Path("/proc/stat").read_text().split(maxsplit=9)[8]) * 10_000_000


def ping(port: int, broker: int) -> None:
    """Send PINGREQs one after the other until standard input ends; print what was seen."""
    worst = count = 0
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.sendall(CONNECT)
        assert client.recv(4) == b"\x20\x02\x00\x00"
        print("ready", flush=True)
        sys.stdin.close()
        ended = socket.socket(fileno=0)
        ended.setblocking(False)
        while True:
            with contextlib.suppress(BlockingIOError):
                ended.recv(1)
                break
            (before, _), (_, waited) = scheduled_ns(f"{broker}/task/{broker}"), scheduled_ns("self")
            stolen = stolen_ns()
            client.sendall(PINGREQ)
            assert client.recv(2) == b"\xd0\x00"
            (after, _), (_, waited_since) = scheduled_ns(f"{broker}/task/{broker}"), scheduled_ns("self")
            worst = max(worst, after - before - (waited_since - waited) - (stolen_ns() - stolen))
            count += 1
    print(json.dumps({"count": count, "worst_ms": worst / 1e6}))


@contextlib.contextmanager
def innocent(port: int, broker: int) -> Iterator[Trips]:
    """Let the client go on with its round trips while something happens to the broker, which has this process id."""
    ours, its = socket.socketpair()
    command = [sys.executable, "-S", str(Path(__file__)), str(port), str(broker)]
    with subprocess.Popen(command, stdin=its, stdout=subprocess.PIPE) as process, ours:
        its.close()
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        trips = Trips()
        try:
            yield trips
        finally:
            ours.shutdown(socket.SHUT_WR)
            found = process.stdout.read()
        seen = json.loads(found)
        trips.count, trips.worst_ms = seen["count"], seen["worst_ms"]


if __name__ == "__main__":
    ping(int(sys.argv[1]), int(sys.argv[2]))
