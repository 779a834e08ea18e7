"""A real broker whose disk is really full, or whose syncs fail: it goes on without a restart, and nothing is lost."""

import contextlib
import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.broker_process import PATIENCE_S, BrokerProcess
from tests.raw_client import RawClient

from everlog.bench.load.brokers import free_port
from everlog.commitlog import LogSettings, RealDisk, verify_directory
from everlog.mqtt import Pingreq, Pingresp, Puback, Publish, Reason
from everlog.store import LogStore

DISK_BYTES = 24 << 20
PAYLOAD = b"x" * 4000
MOST_UNANSWERED = 4096  # of limits.receive_maximum; many times what is left of the disk
WINDOW = 50


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MiB of its own; only who may mount one has it."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "everlog-test", str(place)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


class Publisher(contextlib.ExitStack):
    """A client that publishes numbered messages at QoS 1, some at once, on one connection, and notes the answers."""

    def __init__(self, port: int, version: int = 5) -> None:
        super().__init__()
        self.answers: dict[int, Reason] = {}
        self.sent = 0
        self.client = self.enter_context(started(port, version))

    def send(self, count: int) -> None:
        for _ in range(count):
            self.client.send(Publish("kept/a", b"%d " % self.sent + PAYLOAD, qos=1, packet_id=1 + self.sent % 65_000))
            self.sent += 1

    def answered(self, count: int) -> None:
        while len(self.answers) < count:
            packet = self.client.expect(Puback)
            self.answers[len(self.answers)] = packet.reason  # in the order of the messages

    @property
    def acknowledged(self) -> list[int]:
        return [number for number, reason in self.answers.items() if not reason.is_error]


def started(port: int, version: int) -> RawClient:
    """Connect to a broker as soon as it listens."""
    until(lambda: is_listening(port))
    client = RawClient(port, version)
    client.connect("publisher", clean_start=False)
    return client


def is_listening(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def until(condition: Callable[[], object]) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Watched(BrokerProcess):
    """A broker with a port for metrics and health."""

    def __init__(self, directory: Path, *arguments: str, sync_ms: int = 0) -> None:
        self.http_port = free_port()
        more = ("--keep", "kept/#", "--set", "log.segment_bytes=1MiB", "--http-port", str(self.http_port))
        super().__init__(directory, *more, *arguments, sync_ms=sync_ms)

    def page(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}{path}", timeout=PATIENCE_S) as page:
                return page.status, page.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def metric(self, name: str) -> float:
        lines = [line for line in self.page("/metrics")[1].splitlines() if line.startswith(f"everlog_{name}")]
        return float(lines[0].rsplit(" ", 1)[1])


def ballast(place: Path, leave: int) -> Path:
    """Fill a disk up to a few bytes."""
    file = place / "ballast"
    free = os.statvfs(place)
    file.write_bytes(bytes(free.f_bavail * free.f_frsize - leave))
    return file


def kept(data: Path) -> list[int]:
    """The numbers of the messages in the log."""
    store = LogStore.open(str(data), LogSettings(), writable=False)
    try:
        found: list[int] = []
        at = store.shards[0].start
        while batches := store.shards[0].read(at, 1 << 20):
            for records in batches:
                found += [int(row[5].split()[0]) for row in records.rows()]
                at = records.end_offset
        return found
    finally:
        store.close()


def is_still_served(port: int) -> None:
    """Another client connects, subscribes, publishes what is not kept and gets it."""
    with RawClient(port) as client:
        client.connect("another")
        client.subscribe("free/#")
        client.publish("free/a", b"unkept", qos=1)
        assert client.payloads(1) == ["unkept"]


@pytest.mark.parametrize("version", [4, 5])
def test_a_publisher_goes_on_when_a_full_disk_has_space_again(small_disk: Path, version: int) -> None:
    broker = Watched(small_disk, "--set", "log.reserve_bytes=0")
    with broker, Publisher(broker.port, version) as publisher:
        publisher.send(WINDOW)
        publisher.answered(WINDOW)
        file = ballast(small_disk, leave=1 << 20)
        while not broker.metric("log_failed"):
            if publisher.sent - len(publisher.answers) + WINDOW <= MOST_UNANSWERED:
                publisher.send(WINDOW)
        assert "No space left on device" in broker.page("/readyz")[1]
        is_still_served(broker.port)
        file.unlink()
        publisher.answered(publisher.sent)
        assert (broker.metric("log_failed"), broker.metric("log_troubles_total")) == (0, 1)
        assert broker.page("/readyz") == (200, "ok\n")
        publisher.send(WINDOW)
        publisher.answered(publisher.sent)
        broker.kill()
        assert set(publisher.answers.values()) == {Reason.SUCCESS}
        assert kept(broker.data) == list(range(publisher.sent))
    assert verify_directory(RealDisk(), f"{broker.data}/shard-0").damage == ()
    store = LogStore.open(str(broker.data))
    assert (store.shards[0].damage, store.shards[0].end) == ([], publisher.sent)
    store.close()


def test_messages_are_refused_before_the_disk_is_full_and_taken_again_later(small_disk: Path) -> None:
    broker = Watched(small_disk)
    with broker, Publisher(broker.port) as publisher:
        publisher.send(WINDOW)
        publisher.answered(WINDOW)
        file = ballast(small_disk, leave=DISK_BYTES // 20 - (64 << 10))
        until(lambda: broker.metric("disk_full"))
        publisher.send(WINDOW)
        publisher.answered(publisher.sent)
        assert {publisher.answers[WINDOW + n] for n in range(WINDOW)} == {Reason.QUOTA_EXCEEDED}
        status, why = broker.page("/readyz")
        assert (status, "free some space" in why) == (503, True)
        is_still_served(broker.port)
        with RawClient(broker.port, 4) as old:
            old.connect("old")
            old.send(Pingreq())
            assert isinstance(old.receive(), Pingresp)
            old.send(Publish("kept/a", b"0", qos=1, packet_id=1))
            old.expect_closed()
        file.unlink()
        until(lambda: not broker.metric("disk_full"))
        publisher.send(WINDOW)
        publisher.answered(publisher.sent)
        assert (broker.metric("not_kept_total"), broker.page("/readyz")[0]) == (WINDOW + 1, 200)
        broker.kill()
        assert publisher.acknowledged == [*range(WINDOW), *range(2 * WINDOW, 3 * WINDOW)]
        assert kept(broker.data) == publisher.acknowledged


def test_a_publisher_goes_on_when_syncs_that_failed_work_again(tmp_path: Path) -> None:
    broker = Watched(tmp_path, sync_ms=1)
    with broker, Publisher(broker.port) as publisher:
        for _ in range(3):
            publisher.send(WINDOW)
            publisher.answered(publisher.sent)
            (tmp_path / "syncs-fail").touch()
            publisher.send(WINDOW)
            until(lambda: broker.metric("log_failed"))
            publisher.client.send(Pingreq())
            assert isinstance(publisher.client.receive(), Pingresp)  # and no ack before it
            (tmp_path / "syncs-fail").unlink()
            publisher.answered(publisher.sent)
        broker.kill()
        assert set(publisher.answers.values()) == {Reason.SUCCESS}
        assert kept(broker.data) == list(range(publisher.sent))
