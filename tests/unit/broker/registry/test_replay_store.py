"""Replay from real segments: sealed and open ones, by their indexes, and what retention has removed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.brokers import ServedBroker
from tests.listening import eventually
from tests.raw_client import RawClient

from everlog.commitlog import LogSettings
from everlog.mqtt import Pingreq, Pingresp, Properties, Publish, Suback, Subscribe, Subscription
from everlog.store import LogStore

COUNT = 2000
MINUTE_US = 60_000_000
START_US = 1_700_000_000_000_000
SETTINGS = LogSettings(durability="flush", segment_bytes=10_000, batch_bytes=2_000, retention_bytes=30_000)


class Stage:
    """A broker on files, with many small segments."""

    def __init__(self, directory: Path, shards: int) -> None:
        self.now_us = START_US
        self.store = LogStore.open(str(directory), SETTINGS, shards=shards)
        self.running = ServedBroker(self.store, now_us=lambda: self.now_us, keep=[("#", 0)])  # type: ignore[arg-type]
        self.running.__enter__()

    def fill(self) -> None:
        """A minute between each hundred messages, of eleven topics; then all segments but the last are sealed."""
        with RawClient(self.running.port) as client:
            client.connect("p")
            for start in range(0, COUNT, 100):
                numbers = range(start, start + 100)
                client.send(*(Publish(f"t/{number % 11}", b"%-100d" % number) for number in numbers), Pingreq())
                client.expect(Pingresp)
                eventually(lambda: all(log.committed == log.end for log in self.store.shards), "committed")
                self.now_us += MINUTE_US
        eventually(lambda: all(one.sealed >= one.segments - 1 for one in self.store.statistics()), "sealed")

    def replay(self, begin: str, *filters: str) -> tuple[list[int], Suback]:
        """All the numbers of a history, and the SUBACK."""
        with RawClient(self.running.port) as client:
            client.connect()
            pairs = (("everlog-from", begin), ("everlog-live", "yes"))
            asked = tuple(Subscription(text) for text in filters)
            client.send(Subscribe(1, asked, Properties(user_properties=pairs)))
            said = client.answer(Suback)
            found: list[int] = []
            while (message := client.message()).topic != "$replay/live":
                found.append(int(message.payload))
            return found, said

    def close(self) -> None:
        self.running.__exit__()
        self.store.close()


@pytest.fixture(params=[1, 4], ids=["one shard", "four shards"])
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path / "data", request.param)
    made.fill()
    yield made
    made.close()


def of_topic(number: int, start: int = 0) -> list[int]:
    return [one for one in range(start, COUNT) if one % 11 == number]


def test_each_beginning_finds_its_messages(stage: Stage) -> None:
    assert sorted(stage.replay("earliest", "#")[0]) == list(range(COUNT))
    assert stage.replay("earliest", "t/3")[0] == of_topic(3)
    assert sorted(stage.replay("earliest", "t/3", "+/7")[0]) == sorted(of_topic(3) + of_topic(7))
    assert sorted(stage.replay("-5m", "#")[0]) == list(range(1500, COUNT))
    assert stage.replay("-5m", "t/4")[0] == of_topic(4, 1500)
    assert sorted(stage.replay("2023-11-14T22:23:20Z", "t/#")[0]) == list(range(1000, COUNT))
    assert stage.replay("latest", "#")[0] == []
    assert stage.replay("earliest", "nothing/+")[0] == []
    shard = stage.store.shard_of(b"t/4")
    mine = [one for one in range(COUNT) if stage.store.shard_of(b"t/%d" % (one % 11)) == shard]
    half = len(mine) // 2
    assert stage.replay(f"{shard}:{half}", "t/4")[0] == [one for one in mine[half:] if one % 11 == 4]


def test_what_retention_removed_is_said_and_the_rest_comes(stage: Stage) -> None:
    stage.store.run_retention(stage.now_us)
    starts = [shard.start for shard in stage.store.shards]
    assert max(starts) > 0
    left, said = stage.replay("earliest", "#")
    assert len(left) == COUNT - sum(starts)
    assert said.properties.reason_string is None
    again, said = stage.replay(",".join(f"{shard}:0" for shard in range(len(starts))), "#")
    assert sorted(again) == sorted(left)
    words: Any = said.properties.reason_string
    for shard, start in enumerate(starts):
        assert (f"{shard}:0 to {shard}:{start - 1}" in words) == (start > 0)
    assert stage.running.inside.lost == sum(starts)
