"""A replay of what only the lake table has: table, log and live as one, as `everlog serve` puts them together."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.brokers import ServedBroker
from tests.raw_client import RawClient
from tests.spark.in_process import InProcess
from tests.spark.lake_data import NOON_US, fill, messages

from everlog.app.cold_tier import cold_tier
from everlog.broker import Limits
from everlog.commitlog import LogSettings
from everlog.mqtt import Properties, Publish, Suback, Subscribe, Subscription
from everlog.spark import Compaction, CompactionOptions, locate
from everlog.store import LogStore

Serve = Callable[[Path], ServedBroker]
COUNT = 3000
PUBLISHED = messages(COUNT)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A store whose history is in its table, and whose log has lost its first segments."""
    fill(tmp_path / "data", PUBLISHED, shards=2, first_us=NOON_US, segment_bytes=20_000)
    return tmp_path / "data"


def compact(data: Path) -> None:
    Compaction(str(data), locate(str(data / "lake")), InProcess(), CompactionOptions(group_bytes=60_000)).run()


@pytest.fixture
def serve() -> Iterator[Serve]:
    """A broker on a data directory after its retention, in this process."""
    running: list[tuple[ServedBroker, LogStore]] = []

    def start(data: Path) -> ServedBroker:
        store = LogStore.open(str(data), LogSettings(durability="flush", retention_bytes=60_000))
        store.run_retention(NOON_US)
        cold = cold_tier(str(data), store.identity)
        settings = {"limits": Limits(packet_bytes=1 << 22), "keep": [("#", 0)], "now_us": lambda: NOON_US}
        broker = ServedBroker(store, cold=cold, **settings)  # type: ignore[arg-type]
        running.append((broker.__enter__(), store))
        return broker

    yield start
    for broker, store in running:
        broker.__exit__()
        store.close()


def replayed(client: RawClient, begin: str, *filters: str, position: bool = False) -> Suback:
    pairs = (("everlog-from", begin), ("everlog-live", "yes"), *((("everlog-position", "yes"),) if position else ()))
    asked = tuple(Subscription(text, 1) for text in filters)
    client.send(Subscribe(1, asked, Properties(user_properties=pairs)))
    return client.answer(Suback)


def history(client: RawClient) -> list[Publish]:
    """Everything up to the end of history."""
    found = []
    while (message := client.message()).topic != "$replay/live":
        found.append(message)
    return found


def plain(found: list[Publish]) -> list[tuple[str, bytes]]:
    return sorted((one.topic, one.payload) for one in found)


def test_history_is_whole_though_the_log_has_lost_its_beginning(data: Path, serve: Serve) -> None:
    compact(data)
    broker = serve(data)
    starts = [shard.start for shard in broker.log.shards]
    assert min(starts) > 100
    with RawClient(broker.port) as client:
        client.connect("c", receive_maximum=500)
        assert replayed(client, "earliest", "#", position=True).properties.reason_string is None
        found = history(client)
        assert plain(found) == sorted((one.topic, one.payload) for one in PUBLISHED)
        for shard in (0, 1):
            positions = [dict(one.properties.user_properties)["everlog-position"].split(":") for one in found]
            offsets = [int(offset) for number, offset in positions if int(number) == shard]
            assert offsets == list(range(len(offsets)))
        client.publish(PUBLISHED[0].topic, "now", 1)
        assert client.message().payload == b"now"


def test_a_filter_and_a_place_are_found_in_the_table(data: Path, serve: Serve) -> None:
    compact(data)
    broker = serve(data)
    topic = PUBLISHED[5].topic
    mine = [one.payload for one in PUBLISHED if one.topic == topic]
    with RawClient(broker.port) as client:
        client.connect("c")
        replayed(client, "earliest", topic, position=True)
        found = history(client)
        assert [one.payload for one in found] == mine
        at, time = (dict(found[2].properties.user_properties)[f"everlog-{key}"] for key in ("position", "time"))
        replayed(client, at, topic)
        assert [one.payload for one in history(client)] == mine[2:]
        replayed(client, time, topic)
        assert [one.payload for one in history(client)][-len(mine) + 2 :] == mine[2:]


def test_a_table_that_is_made_while_the_broker_runs_counts(data: Path, serve: Serve) -> None:
    compact(data)
    record = (data / "lake.json").rename(data / "hidden")
    broker = serve(data)
    with RawClient(broker.port) as client:
        client.connect("c")
        replayed(client, "earliest", "#")
        assert len(history(client)) < COUNT
        record.rename(data / "lake.json")
        replayed(client, "earliest", "#")
        assert len(history(client)) == COUNT
