"""What operators set and see of a cluster: retention of running brokers."""

import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from tests.cluster_processes import PATIENCE_S, ProcessCluster
from tests.raw_client import Closed, RawClient

from everlog.bench.load.brokers import free_port
from everlog.cli import main
from everlog.mqtt import Disconnect, Reason


def until(done: Callable[[], bool]) -> None:
    """Wait for something."""
    deadline = time.monotonic() + PATIENCE_S
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_running_brokers_drop_what_is_too_old_and_so_do_their_copies(tmp_path: Path) -> None:
    options = ["log.retention_age=1s", "log.segment_age=100ms", "log.segment_bytes=20KiB"]
    with ProcessCluster(tmp_path, 1) as cluster:
        broker, follower = cluster.add("one", *options), cluster.add("two", *options)
        publisher = broker.client("publisher")
        publisher.publish("kept", "retained", 1, retain=True)

        def starts() -> tuple[int, ...]:
            with psycopg.connect(cluster.url) as connection:
                found = connection.execute(f"select start from {cluster.schema}.message_shards order by shard")
                return tuple(start for (start,) in found)

        def first_files() -> list[int]:
            return [
                min((int(path.stem) for path in (tmp_path / one.name / "copy/shard-0").glob("*.log")), default=0)
                for one in (broker, follower)
            ]

        def goes_on() -> bool:
            assert not publisher.publish("t", bytes(2000), 1).is_error
            return min(starts()) > 0 and min(first_files()) > 0

        until(goes_on)
        late = follower.client("late")
        late.subscribe("kept", qos=1)
        assert late.message().payload == b"retained"


@pytest.mark.slow
def test_a_broker_that_lacks_what_is_kept_no_more_joins_again(tmp_path: Path) -> None:
    options = ["log.retention_age=1s", "log.segment_age=100ms", "log.segment_bytes=20KiB", "cluster.patience=60s"]
    with ProcessCluster(tmp_path, 1) as cluster:
        both = cluster.add("one", *options), cluster.add("two", *options)
        until(lambda: all("link_open" in one.lines.read_text() for one in both))
        broker, follower = sorted(both, key=lambda one: "shard 0 is owned" not in one.lines.read_text())
        publisher = broker.client("publisher")
        follower.process.send_signal(signal.SIGSTOP)
        publisher.publish("kept", "retained", 1, retain=True)

        def is_behind() -> bool:
            assert not publisher.publish("t", bytes(2000), 1).is_error
            with psycopg.connect(cluster.url) as connection:
                found = connection.execute(f"select start from {cluster.schema}.message_shards").fetchone()
            return found is not None and found[0] > 0 and "link_lost" in broker.lines.read_text()

        until(is_behind)
        follower.process.send_signal(signal.SIGCONT)
        until(lambda: "is no longer kept" in follower.lines.read_text())
        late = follower.client("late")
        late.subscribe("kept", qos=1)
        assert late.message().payload == b"retained"


def pages(port: int, path: str) -> tuple[int, str]:
    """Return what a broker's HTTP port answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_metrics_and_readiness_of_a_running_broker(tmp_path: Path) -> None:
    port = free_port()
    with ProcessCluster(tmp_path, 2) as cluster:
        one = cluster.add("one", f"http.port={port}")
        client = one.client("device")
        assert not client.publish("t", "x", 1).is_error
        status, text = pages(port, "/metrics")
        assert status == 200
        samples = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        for name, value in {
            "shards_owned": 2,
            "shards_unowned": 0,
            "links_down": 0,
            "brokers": 1,
            "sessions_held": 1,
            "standbys": 0,
        }.items():
            assert float(samples[f"everlog_cluster_{name}"]) == value, name
        assert sum(float(samples[f'everlog_cluster_tail_rows{{shard="{shard}"}}']) for shard in (0, 1)) == 1
        until(lambda: pages(port, "/readyz") == (200, "ok\n"))
        found = cluster.status()
        assert (found["replication_factor"], found["standbys_present"]) == (1, 0)


@pytest.mark.soak
@pytest.mark.parametrize("by", ["command", "signal"])
def test_clients_of_a_broker_that_is_drained_are_told_where_to_go(tmp_path: Path, by: str) -> None:
    with ProcessCluster(tmp_path, 2) as cluster:
        one = cluster.add("one", "cluster.client_address=one.example:1883")
        client = one.client("device", clean_start=False, expiry=1000)
        old = RawClient(one.port, 4, deadline_s=PATIENCE_S)
        old.connect("old device")
        cluster.add("two", "cluster.client_address=two.example:8883")
        cluster.until_spread(2)
        if by == "command":
            assert main(["cluster", "drain", "one", cluster.url, "--schema", cluster.schema]) == 0
        else:
            one.process.send_signal(signal.SIGTERM)
        told = client.receive()
        assert isinstance(told, Disconnect)
        assert told.reason is Reason.USE_ANOTHER_SERVER
        assert told.properties.server_reference == "two.example:8883"
        with pytest.raises(Closed):
            old.receive()
        assert one.process.wait(PATIENCE_S) == 0
        old.close()
