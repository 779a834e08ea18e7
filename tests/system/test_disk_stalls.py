"""A disk that stalls: who waits for no commit goes on, who does is answered when it is over."""

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.broker_process import PATIENCE_S, BrokerProcess
from tests.raw_client import RawClient

from everlog.mqtt import Pingreq, Pingresp, Puback, Publish, Reason

NOTHING_KEPT = ("--set", "keep.filters=[]")  # but for durable subscribers
ALL_KEPT = ("--set", 'keep.never=["free/#"]')


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_listening(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


@contextmanager
def connected(broker: BrokerProcess, name: str, **terms: int) -> Iterator[RawClient]:
    with RawClient(broker.port) as client:
        client.connect(name, **terms)
        yield client


@contextmanager
def stalled(directory: Path) -> Iterator[None]:
    """No sync that begins in here ends before this does."""
    stall = directory / "syncs-stall"
    stall.touch()
    try:
        yield
    finally:
        stall.unlink()


@pytest.mark.parametrize("flags", [NOTHING_KEPT, ALL_KEPT], ids=["nothing kept", "all kept"])
def test_a_stalled_sync_delays_nobody_who_waits_for_no_commit(tmp_path, flags):
    with BrokerProcess(tmp_path, *flags, may_stall=True) as broker:
        until(lambda: is_listening(broker.port))
        with connected(broker, "durable", expiry=3600) as durable:
            durable.subscribe("kept/#", qos=1)
        with connected(broker, "p") as publisher, connected(broker, "o") as other, connected(broker, "w") as watcher:
            watcher.subscribe("free/#", qos=1)
            for _ in range(60):  # so that commits are known to be quick
                publisher.publish("kept/a", b"quick", 1)
            with stalled(tmp_path):
                publisher.send(Publish("kept/a", b"slow", 1, packet_id=1000))
                until((tmp_path / "syncs-stall.now").exists)
                for number in range(20):
                    other.send(Pingreq())
                    other.expect(Pingresp)
                    with connected(broker, f"newcomer{number}"):
                        pass
                    other.publish("free/a", b"0", 0)
                    assert other.publish("free/a", b"1", 1) is Reason.SUCCESS
                    assert watcher.payloads(2) == ["0", "1"]
                publisher.expect_nothing()
            assert publisher.expect(Puback).packet_id == 1000
