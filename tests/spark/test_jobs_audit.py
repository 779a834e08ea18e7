"""Planted losses, duplicates and reorderings are found where they are, and nothing else is."""

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.spark.history import T0_US, Sent, write_store

from everlog.base import UsageError
from everlog.cli import main
from everlog.spark.jobs import audit_histories, audit_store, filter_regex, logged_in, read_history
from everlog.spark.jobs.run_audit import LOG
from everlog.spark.jobs.store_audit import Run, join_runs
from everlog.topics import matches, parse_filter

Rows = list[dict[str, Any]]


def write_lines(path: Path, rows: Rows) -> str:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return str(path)


class History:
    """Two publishers with two topics each, everything kept and delivered to one subscriber; then something is done."""

    def __init__(self) -> None:
        self.published: Rows = [
            {"publisher": who, "topic": f"run/{where}", "sequence": number}
            for number in range(20)
            for who in ("anna", "bert")
            for where in "ab"
        ]
        self.logged: Rows = [{**row, "shard": 0, "offset": at} for at, row in enumerate(self.published)]
        self.delivered: Rows = [{**row, "subscriber": "sam", "position": at} for at, row in enumerate(self.published)]

    def frames(self, spark: SparkSession, where: Path) -> dict[str, DataFrame]:
        return {
            kind: read_history(spark, kind, write_lines(where / f"{kind}.jsonl", getattr(self, kind)))
            for kind in ("published", "logged", "delivered")
        }


def row_of(rows: Rows, publisher: str, topic: str, sequence: int) -> dict[str, Any]:
    return next(r for r in rows if (r["publisher"], r["topic"], r["sequence"]) == (publisher, topic, sequence))


def lose(history: History) -> None:
    history.logged.remove(row_of(history.logged, "anna", "run/a", 7))
    history.delivered.remove(row_of(history.delivered, "anna", "run/a", 7))
    history.delivered.remove(row_of(history.delivered, "bert", "run/b", 19))


def double(history: History) -> None:
    history.logged.append({**row_of(history.logged, "bert", "run/a", 3), "offset": 1000})
    again = row_of(history.delivered, "anna", "run/b", 5)
    history.delivered += [{**again, "position": 1001}, {**again, "position": 1002, "dup": True}]


def reorder(history: History) -> None:
    first, second = (row_of(history.logged, "anna", "run/a", number) for number in (10, 11))
    first["offset"], second["offset"] = second["offset"], first["offset"]
    row_of(history.delivered, "bert", "run/b", 2)["position"] = 500


def intrude(history: History) -> None:
    history.logged.append({"publisher": "eve", "topic": "run/a", "sequence": 0, "shard": 0, "offset": 999})
    history.delivered.append(
        {"publisher": "eve", "topic": "run/b", "sequence": 4, "subscriber": "sam", "position": 999}
    )


def test_everything_that_was_planted_is_found_and_nothing_else(spark: SparkSession, tmp_path: Path) -> None:
    history = History()
    for plant in (lose, double, reorder, intrude):
        plant(history)
    found = audit_histories(**history.frames(spark, tmp_path))
    assert not found.is_good
    kinds = ("lost", "duplicated", "redelivered", "reordered", "foreign")
    lines = {
        (line.where, line.publisher, line.topic): {kind: getattr(line, kind) for kind in kinds if getattr(line, kind)}
        for line in found.lines
    }
    assert lines == {
        (LOG, "anna", "run/a"): {"lost": 1, "reordered": 1},
        (LOG, "bert", "run/a"): {"duplicated": 1},
        (LOG, "eve", "run/a"): {"foreign": 1},
        ("sam", "anna", "run/b"): {"duplicated": 1, "redelivered": 1},
        ("sam", "bert", "run/b"): {"lost": 1, "reordered": 1},
        ("sam", "eve", "run/a"): {"lost": 1},  # the log has it, and sam has the topic
        ("sam", "eve", "run/b"): {"foreign": 1},
    }
    (worst,) = (line for line in found.lines if (line.where, line.publisher) == (LOG, "anna"))
    assert (worst.lost_from, worst.lost_to, worst.reordered_at) == (7, 7, 10)


def test_a_run_without_mistakes_is_good(spark: SparkSession, tmp_path: Path) -> None:
    history = History()
    history.published.append({"publisher": "anna", "topic": "run/a", "sequence": 20, "acked": False})
    found = audit_histories(**history.frames(spark, tmp_path))
    assert found.is_good
    assert (found.lines, found.unacked) == ((), 1)
    assert {where: sums["arrived"] for where, sums in found.places} == {LOG: 80, "sam": 80}


def test_a_subscriber_that_got_nothing_is_found_by_its_subscription(spark: SparkSession, tmp_path: Path) -> None:
    frames = History().frames(spark, tmp_path)
    rows = [{"subscriber": "tom", "filter": "run/+"}, {"subscriber": "sam", "filter": "run/a"}]
    subscriptions = read_history(spark, "subscriptions", write_lines(tmp_path / "subscriptions.jsonl", rows))
    found = audit_histories(**frames, subscriptions=subscriptions)
    assert {where: sums["lost"] for where, sums in found.places} == {LOG: 0, "sam": 0, "tom": 80}
    assert [(line.lost_from, line.lost_to) for line in found.lines] == [(0, 19)] * 4


def test_a_history_may_be_parquet(spark: SparkSession, tmp_path: Path) -> None:
    frames = History().frames(spark, tmp_path)
    frames["published"].write.parquet(str(tmp_path / "published"))
    assert read_history(spark, "published", str(tmp_path / "published")).count() == 80


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"topic": "t", "sequence": 1}], "lacks something"),
        ([{"publisher": "p", "topic": "t", "sequence": "x"}], "lacks"),
    ],
)
def test_an_incomplete_history_is_refused(spark: SparkSession, tmp_path: Path, rows: Rows, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_history(spark, "published", write_lines(tmp_path / "published.jsonl", rows))


def test_filters_mean_the_same_to_spark(spark: SparkSession) -> None:
    texts = ["#", "+", "a/+/c", "a/#", "+/b", "a.b/+", "$SYS/#", "a b/(c)", "+/+", "/+", "a\\d"]
    topics = ["a", "a/b", "a/b/c", "/a", "a//c", "axb/c", "a.b/c", "$SYS/x", "$SYS", "a b/(c)", "b/b", "a\\d", "a1"]
    frame = spark.createDataFrame([(topic,) for topic in topics], "topic STRING")
    rows = frame.select("topic", *(F.col("topic").rlike(filter_regex(text)) for text in texts)).collect()
    assert [list(row) for row in rows] == [
        [topic, *(matches(parse_filter(text), topic) for text in texts)] for topic in topics
    ]


def store_of(where: Path, count: int = 500, shards: int = 2) -> Path:
    sent = [
        Sent(T0_US + n * 1000, f"run/{n % 7}", b'{"publisher": "p%d", "sequence": %d}' % (n % 7, n // 7))
        for n in range(count)
    ]
    return write_store(where, sent, shards=shards, segment_bytes=10_000)


def test_a_store_is_checked_alone(spark: SparkSession, tmp_path: Path) -> None:
    messages = spark.read.format("everlog").load(str(store_of(tmp_path / "data")))
    shards = audit_store(messages)
    assert sum(shard.records for shard in shards) == 500
    assert all(shard.is_good and shard.first == 0 and shard.last == shard.records - 1 for shard in shards)


@pytest.mark.parametrize("max_runs", [10_000, 3])
def test_holes_copies_and_times_that_go_back_are_found_in_any_order(spark: SparkSession, max_runs: int) -> None:
    rows = [(0, n, T0_US + n) for n in range(200) if not 50 <= n < 53]
    rows += [(0, 120, T0_US + 120), (1, 7, T0_US), (1, 8, T0_US - 5)]
    frame = spark.createDataFrame(rows, "shard INT, offset BIGINT, us BIGINT")
    frame = frame.withColumn("timestamp", F.timestamp_micros("us")).orderBy(F.hash("offset", "shard"))
    first, second = audit_store(frame, max_runs=max_runs)
    assert (first.missing_ranges, first.duplicated_ranges, first.back_at) == (((50, 52),), ((120, 120),), ())
    assert (first.records, first.first, first.last) == (198, 0, 199)
    assert (second.missing, second.duplicated, second.back_at) == (0, 0, ((8, 5),))


def test_a_filtered_store_has_no_missing_offsets(spark: SparkSession, tmp_path: Path) -> None:
    store = store_of(tmp_path / "data", shards=1)
    messages = spark.read.format("everlog").option("topic", "run/3").load(str(store))
    (shard,) = audit_store(messages, filtered=True)
    assert shard.is_good
    assert shard.records == len([n for n in range(500) if n % 7 == 3])
    (twice,) = audit_store(messages.union(messages), filtered=True)
    assert twice.duplicated == shard.records


def test_overlapping_runs_count_each_copy() -> None:
    runs = [Run(0, 0, 99, 0, 99, 100), Run(0, 50, 149, 50, 149, 100), Run(0, 60, 69, 60, 69, 10)]
    found = join_runs(runs)
    assert (found.missing, found.duplicated, found.time_back, found.last) == (0, 60, 0, 149)


def test_messages_of_a_store_say_who_sent_them(spark: SparkSession, tmp_path: Path) -> None:
    store = store_of(tmp_path / "data")
    logged = logged_in(spark.read.format("everlog").load(str(store)), "json")
    assert audit_histories(published=logged.withColumn("acked", F.lit(True)), logged=logged).is_good
    with pytest.raises(UsageError, match="who sent them"):
        logged_in(logged, "guess")


def test_the_command_says_1_when_something_is_lost(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = store_of(tmp_path / "data")
    assert main(["spark", "audit", str(store)]) == 0
    rows: Rows = [{"publisher": f"p{n % 7}", "topic": f"run/{n % 7}", "sequence": n // 7} for n in range(500)]
    published = write_lines(tmp_path / "published.jsonl", rows)
    page = tmp_path / "audit.html"
    assert main(["spark", "audit", str(store), "--published", published, "--html", str(page)]) == 0
    rows.append({"publisher": "p1", "topic": "run/1", "sequence": 4711})
    published = write_lines(tmp_path / "published.jsonl", rows)
    assert main(["spark", "audit", str(store), "--published", published, "--html", str(page)]) == 1
    assert "lost 4711" in capsys.readouterr().out
    assert "lost 4711" in page.read_text()


def test_an_audit_of_nothing_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["spark", "audit"]) == 2
    published = write_lines(tmp_path / "published.jsonl", [])
    assert main(["spark", "audit", "--published", published]) == 2
    assert main(["spark", "audit", "--delivered", published]) == 2
    assert capsys.readouterr().err.count("\n") == 3
