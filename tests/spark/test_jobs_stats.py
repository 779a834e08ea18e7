"""The numbers of a real store, against a plain model."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.spark.history import T0_US, Sent, write_store

from everlog.base import UsageError
from everlog.spark.jobs import Stats, choose_slice, levels_key, shape_key, slices_of, stats_of, structure_of, time_span
from everlog.spark.jobs.stats import SECOND_US, _key_stats

HOUR_US = 3600 * SECOND_US


@pytest.fixture(scope="module")
def sent() -> list[Sent]:
    """Three hours: five steady topics, one with a gap, one that goes silent."""
    chance = Random(1)
    made = []
    for second in range(0, 3 * 3600, 20):
        us = T0_US + second * SECOND_US
        for number in range(5):
            made.append(Sent(us + number, f"line/{number}/state", chance.randbytes(chance.randrange(80))))
        if not 1800 <= second < 5400:
            made.append(Sent(us + 10, "line/gap/state", b"12345"))
        if second < 3600:
            made.append(Sent(us + 11, "line/quiet/state", b""))
    return made


@pytest.fixture(scope="module")
def messages(spark: SparkSession, sent: list[Sent], tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    store = write_store(tmp_path_factory.mktemp("stats") / "data", sent, shards=2, segment_bytes=100_000)
    return spark.read.format("everlog").load(str(store))


@pytest.fixture(scope="module")
def slices(messages: DataFrame) -> Iterator[DataFrame]:
    frame = slices_of(messages, 60 * SECOND_US).persist()
    yield frame
    frame.unpersist()


@pytest.fixture(scope="module")
def by_topic(slices: DataFrame) -> Stats:
    return stats_of(slices, 60 * SECOND_US, top=100)


def of_topic(sent: Sequence[Sent], topic: str) -> list[Sent]:
    return [message for message in sent if message.topic == topic]


def test_every_topic_has_the_numbers_of_the_model(by_topic: Stats, sent: Sequence[Sent]) -> None:
    assert (by_topic.messages, by_topic.bytes) == (len(sent), sum(len(message.payload) for message in sent))
    assert by_topic.key_count == len(by_topic.keys) == len({message.topic for message in sent})
    for key in by_topic.keys:
        own = of_topic(sent, key.key)
        sizes = [len(message.payload) for message in own]
        assert (key.topics, key.messages, key.bytes) == (1, len(own), sum(sizes))
        assert (key.smallest, key.largest) == (min(sizes), max(sizes))
        assert key.first.timestamp() * SECOND_US == pytest.approx(own[0].us, abs=1)
        assert key.last.timestamp() * SECOND_US == pytest.approx(own[-1].us, abs=1)
        assert key.rate == pytest.approx((len(own) - 1) * SECOND_US / (own[-1].us - own[0].us))
        assert key.peak == 3 / 60
        gaps = [after.us - before.us for before, after in pairwise(own)]
        assert key.longest_gap_s == max(gaps) / SECOND_US


def test_the_longest_gap_is_found_with_its_place(by_topic: Stats, sent: Sequence[Sent]) -> None:
    key = next(key for key in by_topic.keys if key.key == "line/gap/state")
    assert key.longest_gap_s == 3620
    assert key.gap_from is not None
    assert key.gap_from.timestamp() == pytest.approx(T0_US / SECOND_US + 1780, abs=1e-3)


def test_only_the_topic_that_stopped_is_silent(by_topic: Stats) -> None:
    assert [(key.key, round(key.silent_s)) for key in by_topic.silent] == [("line/quiet/state", 7200)]


def test_slices_of_time_add_up(by_topic: Stats, sent: Sequence[Sent]) -> None:
    counted: dict[int, int] = {}
    for message in sent:
        slice_us = message.us // (60 * SECOND_US) * 60 * SECOND_US
        counted[slice_us] = counted.get(slice_us, 0) + 1
    assert {round(when.timestamp() * SECOND_US): count for when, count, _ in by_topic.slices} == counted


def test_topics_are_counted_together_by_their_first_levels(slices: DataFrame, sent: Sequence[Sent]) -> None:
    (key,) = stats_of(slices, 60 * SECOND_US, levels_key(1)).keys
    assert (key.key, key.topics, key.messages) == ("line/#", 7, len(sent))
    assert key.longest_gap_s == pytest.approx(20, abs=0.1)
    with pytest.raises(UsageError):
        levels_key(0)


def test_topics_are_counted_together_by_shape(messages: DataFrame, slices: DataFrame, sent: Sequence[Sent]) -> None:
    found = stats_of(slices, 60 * SECOND_US, shape_key(structure_of(messages)))
    assert [(key.key, key.topics, key.messages) for key in found.keys] == [("line/{7 values}/state", 7, len(sent))]


def test_an_empty_history_has_empty_numbers(spark: SparkSession, tmp_path: Path) -> None:
    messages = spark.read.format("everlog").load(str(write_store(tmp_path / "data", [])))
    assert time_span(messages) is None
    found = stats_of(slices_of(messages, SECOND_US), SECOND_US)
    assert (found.messages, found.key_count, found.keys, found.slices) == (0, 0, (), ())


@pytest.mark.parametrize(
    ("span_s", "slice_s"), [(0, 1), (500, 1), (501, 10), (5000, 10), (86_400, 600), (86_400 * 365, 3600)]
)
def test_slices_grow_with_the_history_up_to_an_hour(span_s: int, slice_s: int) -> None:
    assert choose_slice(T0_US, T0_US + span_s * SECOND_US) == slice_s * SECOND_US


def test_a_burst_that_is_shorter_than_a_slice_has_a_peak_no_lower_than_its_rate() -> None:
    facts = {"key": "k", "topics": 1, "messages": 20, "bytes": 20, "smallest": 1, "largest": 1}
    times = {"first_us": T0_US, "last_us": T0_US + 19_000, "gap_from_us": None, "longest_us": None, "silent_us": 0}
    found = _key_stats({**facts, **times, "peak_messages": 20, "is_silent": False}, 60 * SECOND_US)  # type: ignore[arg-type]
    assert found.rate == pytest.approx(1000)
    assert found.peak == found.rate
