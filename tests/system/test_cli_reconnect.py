"""`everlog sub` and `everlog pub -l` outlive their connection: the broker is killed and started again beneath them."""

import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.listening import eventually
from tests.raw_client import RawClient

from everlog.bench.load.brokers import free_port
from everlog.mqtt import Connack

PATIENCE_S = 60
EVERLOG = [sys.executable, "-m", "everlog"]


class Server:
    """A broker that can be killed and started again on its port and data."""

    def __init__(self, data: Path) -> None:
        self.port = free_port()
        self._data = data
        self.start()

    def start(self) -> None:
        command = [*EVERLOG, "serve", "--port", str(self.port), "--data", str(self._data), "--http-port", "none"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        assert any(b"kernels" in line for line in self._process.stdout)

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()

    def client(self, name: str) -> RawClient:
        client = RawClient(self.port)
        assert isinstance(client.connect(name), Connack)
        return client


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path / "data")
    yield server
    server.kill()


def run(command: str, server: Server, *words: str, stdin: int | None = None) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*EVERLOG, command, "-h", "127.0.0.1", "-p", str(server.port), *words],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def publish_until_seen(server: Server, process: subprocess.Popen[bytes], payload: str) -> bytes:
    """Publish, over and over, until the subscriber has printed a line: it says by nothing else that it is there."""
    assert process.stdout is not None
    with server.client("p") as client:

        def seen() -> bool:
            client.publish("t", payload, 1)
            return bool(select.select([process.stdout], [], [], 0.05)[0])

        eventually(seen, "a printed message", PATIENCE_S)
    return process.stdout.readline()


@pytest.mark.parametrize("version", ["311", "5"])
def test_a_subscriber_is_there_again_after_the_broker_was(server: Server, version: str) -> None:
    sub = run("sub", server, "-t", "t", "-q", "1", "-V", version)
    assert publish_until_seen(server, sub, "one") == b"one\n"
    server.kill()
    assert sub.stderr is not None
    said = sub.stderr.readline()
    assert b"trying again in" in said
    server.start()
    line = publish_until_seen(server, sub, "two")
    while line == b"one\n":  # it was published more than once
        line = publish_until_seen(server, sub, "two")
    assert line == b"two\n"
    sub.terminate()
    assert b"connected again" in sub.communicate()[1]


def test_a_first_connection_that_fails_is_an_error(server: Server) -> None:
    server.kill()
    sub = run("sub", server, "-t", "t")
    _, said = sub.communicate(timeout=PATIENCE_S)
    assert sub.returncode == 1
    assert b"can't connect" in said
    server.start()


def test_a_subscriber_whose_session_is_taken_over_gives_up(server: Server) -> None:
    sub = run("sub", server, "-t", "t", "-q", "1", "-i", "one")
    publish_until_seen(server, sub, "x")
    with server.client("one"):
        _, said = sub.communicate(timeout=PATIENCE_S)
    assert sub.returncode == 1
    assert b"session taken over" in said
    assert b"again" not in said


@pytest.mark.parametrize("qos", ["1", "2"])
def test_lines_that_come_while_the_broker_is_away_are_published_when_it_is_back(server: Server, qos: str) -> None:
    sub = run("sub", server, "-t", "l", "-q", "2", "-i", "kept", "-c", "-E")
    assert sub.wait(PATIENCE_S) == 0
    sub.communicate()
    pub = run("pub", server, "-t", "l", "-q", qos, "-l", "-i", "pub", "-c", stdin=subprocess.PIPE)
    assert pub.stdin is not None
    assert pub.stderr is not None
    pub.stdin.write(b"1\n2\n")
    pub.stdin.flush()
    reader = run("sub", server, "-t", "l", "-q", "2", "-i", "kept", "-c", "-C", "2")
    assert reader.communicate(timeout=PATIENCE_S)[0] == b"1\n2\n"
    server.kill()
    assert b"trying again in" in pub.stderr.readline()  # though nothing is to be sent
    pub.stdin.write(b"3\n4\n")
    pub.stdin.flush()
    server.start()
    pub.stdin.write(b"5\n")
    out, said = pub.communicate(timeout=PATIENCE_S)
    assert (pub.returncode, out) == (0, b"")
    assert b"connected again" in said
    reader = run("sub", server, "-t", "l", "-q", "2", "-i", "kept", "-c")
    assert reader.stdout is not None
    lines: list[bytes] = []
    while b"5\n" not in lines:
        lines.append(reader.stdout.readline())
    reader.kill()
    reader.communicate()
    assert lines[-3:] == [b"3\n", b"4\n", b"5\n"]
    assert set(lines[:-3]) <= {b"1\n", b"2\n"}  # again, where the kill came before their acks were stored


def test_a_single_message_is_not_tried_again(server: Server) -> None:
    server.kill()
    pub = run("pub", server, "-t", "l", "-m", "x", "-q", "1")
    _, said = pub.communicate(timeout=PATIENCE_S)
    assert pub.returncode == 1
    assert b"again" not in said
    server.start()
