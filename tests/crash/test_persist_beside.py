"""The process of the persist server beside a broker: killed, left alone by its broker, and sent signals."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.broker_process import PATIENCE_S, BrokerProcess
from tests.listening import eventually

from everlog.bench.load.usage import family
from everlog.client import BlockingClient, connect_blocking

pytestmark = pytest.mark.slow

VALUES = [b"one", b"two", b"three"]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path) as served:
        yield served


@contextmanager
def streams_of(broker: BrokerProcess) -> Iterator[BlockingClient]:
    broker.client().close()  # it listens
    with connect_blocking(f"mqtt://127.0.0.1:{broker.port}", timeout_s=PATIENCE_S) as client:
        yield client


def beside(broker: BrokerProcess) -> int:
    """The process of the persist server."""
    (found,) = family([broker.pid])[1:]
    return found


def is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def read(client: BlockingClient) -> list[bytes | None]:
    return [message.value for message in client.stream("s").get_all()]


def test_one_that_is_killed_is_followed_by_another(broker: BrokerProcess) -> None:
    with streams_of(broker) as client:
        client.stream("s").append(VALUES[0])
        for value in VALUES[1:]:
            killed = beside(broker)
            os.kill(killed, signal.SIGKILL)
            client.stream("s").append(value)
            assert beside(broker) != killed
        assert read(client) == VALUES


def test_one_whose_broker_is_killed_ends_and_leaves_the_directory_to_the_next(broker: BrokerProcess) -> None:
    for count in range(1, 4):
        with streams_of(broker) as client:
            client.stream("s").append(VALUES[count - 1])
            assert read(client) == VALUES[:count]
            alone = beside(broker)
        broker.kill()
        eventually(lambda pid=alone: not is_there(pid), "it has ended", PATIENCE_S)  # type: ignore[misc]
        broker.start()
    with streams_of(broker) as client:
        assert read(client) == VALUES


def test_one_that_is_stopped_where_it_is_ends_with_its_broker_too(broker: BrokerProcess) -> None:
    with streams_of(broker) as client:
        client.stream("s").append(VALUES[0])
    alone = beside(broker)
    os.kill(alone, signal.SIGSTOP)
    broker.kill()
    os.kill(alone, signal.SIGCONT)
    eventually(lambda: not is_there(alone), "it has ended", PATIENCE_S)
    broker.start()
    with streams_of(broker) as client:
        assert read(client) == VALUES[:1]


def test_signals_to_all_processes_are_the_brokers_to_obey(broker: BrokerProcess) -> None:
    with streams_of(broker) as client:
        for value, number in zip(VALUES, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP), strict=True):
            client.stream("s").append(value)
            os.kill(beside(broker), number)
        assert read(client) == VALUES
        served = beside(broker)
    os.kill(served, signal.SIGTERM)
    broker.stop()
    assert not is_there(served)
    broker.start()
    with streams_of(broker) as client:
        assert read(client) == VALUES
