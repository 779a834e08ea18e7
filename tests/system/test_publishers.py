"""Who published what is in the log of a broker process, after it was killed and started again, unless that is off."""

import contextlib
import socket
from pathlib import Path

import pytest
from tests.broker_process import PATIENCE_S, BrokerProcess
from tests.listening import eventually
from tests.raw_client import RawClient
from tests.replays import replay

from everlog.base import NO_PUBLISHER, split_publisher
from everlog.store import LogStore

PUBLISHER = "everlog-publisher"
Said = tuple[bytes, str | None]  # payload, client id


def listens(port: int) -> bool:
    with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


def publish(port: int, client_id: str, payload: bytes) -> None:
    with RawClient(port) as client:
        client.connect(client_id)
        client.publish("a/b", payload, 1)


def said(data: Path) -> list[Said]:
    store = LogStore.open(str(data), writable=False)
    found: list[Said] = []
    for records in store.shards[0].read(0, 1 << 20):
        publishers = records.table.publishers
        for k in range(len(records)):
            who = records.publisher(k)
            name = None if who == NO_PUBLISHER or publishers is None else split_publisher(publishers.name(who))[0]
            found.append((records.row(k)[5], name))
    store.close()
    return found


@pytest.mark.parametrize("kept", [True, False])
def test_publishers_are_kept_across_a_kill_unless_that_is_off(tmp_path: Path, kept: bool) -> None:
    flags = () if kept else ("--set", "keep.publishers=false")
    with BrokerProcess(tmp_path, *flags) as served:
        for number in range(2):
            eventually(lambda: listens(served.port), "the broker listens", PATIENCE_S)
            publish(served.port, "one", b"%d one" % number)
            publish(served.port, "two", b"%d two" % number)
            served.kill()
            if number == 0:
                served.start()
    expected = [(b"0 one", "one"), (b"0 two", "two"), (b"1 one", "one"), (b"1 two", "two")]
    assert said(served.data) == [(payload, client if kept else None) for payload, client in expected]


def test_publishers_are_told_from_sealed_segments_and_live(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, "--set", "log.segment_bytes=1MiB") as served:
        with served.client() as client:
            client.connect("large")
            for number in range(24):  # of which few are asked for, so that these are found by an index
                client.publish(f"other/{number}", bytes(100_000), 1)
                if number % 6 == 0:
                    publish(served.port, f"client {number}", b"%d" % number)
        with served.client() as asks:
            asks.connect("asks")
            replay(asks, "earliest", "a/b", publisher=True)
            found = [asks.message() for _ in range(4)]
            publish(served.port, "live", b"99")
            found.append(asks.message())
        expected = [*((f"client {number}", b"%d" % number) for number in (0, 6, 12, 18)), ("live", b"99")]
        assert [(dict(one.properties.user_properties).get(PUBLISHER), one.payload) for one in found] == expected
