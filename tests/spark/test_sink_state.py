"""Rows written to streams and key-value stores: each is there once, wherever the writer is stopped."""

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.brokers import RunningBroker
from tests.persist_process import PersistProcess

import everlog
from everlog.base import Unavailable, UsageError
from everlog.client import connect_blocking
from everlog.spark.sink import batch_journal, state_rows
from everlog.spark.sink.batch_journal import BatchJournal
from everlog.spark.sink.sink_options import StateTarget
from everlog.spark.sink.staged_rows import stage
from everlog.spark.sink.state_publisher import write_batch
from everlog.spark.sink.state_rows import StateCheck, check_state_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = pa.schema([("stream", pa.string()), ("value", pa.binary())])
ROWS = 40


class Stopped(Exception):
    """The process of a writer ends here."""


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_rows, "WINDOW", 15)
    monkeypatch.setattr(state_rows, "GROUP", 4)


def put(staging: Path, count: int = ROWS) -> str:
    rows = [{"stream": f"s/{n % 3}", "value": b"%d" % n} for n in range(count)]
    target = StateTarget("streams", ("s/#",))
    batch = pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
    return stage([batch], f"{staging}/app", SCHEMA, StateCheck(target))[0]


def contents(client: Any) -> dict[str, list[bytes]]:
    return {name: [one.value for one in client.stream(name).get_all()] for name in ("s/0", "s/1", "s/2")}


WHOLE = {f"s/{k}": [b"%d" % n for n in range(ROWS) if n % 3 == k] for k in range(3)}


def test_a_batch_is_written_once_wherever_its_writer_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is stopped before and after each note on the disk, by turns, until one comes through."""
    target = StateTarget("streams", ("s/#",), directory=str(tmp_path / "data"))
    with closing(BatchJournal(str(tmp_path), "app")) as journal:
        journal.take(7, [put(tmp_path)])
    write = BatchJournal._write

    def stop_at(number: int, after: bool) -> None:
        notes = iter(range(100))

        def stop(journal: BatchJournal, state: batch_journal.State) -> None:
            is_now = next(notes) == number
            if is_now and not after:
                raise Stopped
            write(journal, state)
            if is_now:
                raise Stopped

        monkeypatch.setattr(BatchJournal, "_write", stop)

    for after in (False, True):
        for number in (0, 1, 0, 1):
            stop_at(number, after)
            with closing(BatchJournal(str(tmp_path), "app")) as journal, pytest.raises(Stopped):
                write_batch(journal, target, 30)
            if journal.state is not None and journal.state.complete:
                break
    monkeypatch.setattr(BatchJournal, "_write", write)
    with closing(BatchJournal(str(tmp_path), "app")) as journal:
        if journal.take(7, [put(tmp_path)]):
            write_batch(journal, target, 30)
        assert not journal.take(7, [put(tmp_path)])
    with everlog.open(str(tmp_path / "data")) as client:
        assert contents(client) == WHOLE


def test_a_writer_that_can_not_know_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = StateTarget("streams", ("s/#",), directory=str(tmp_path / "data"))
    with everlog.open(str(tmp_path / "data")) as client:
        for name in WHOLE:
            client.stream(name).configure(dedup_ids=1)

    def stop(journal: BatchJournal, rows: int, seen: dict[str, int] | None = None) -> None:
        raise Stopped

    with closing(BatchJournal(str(tmp_path), "app")) as journal:
        journal.take(0, [put(tmp_path)])
        with monkeypatch.context() as patch:
            patch.setattr(BatchJournal, "receive", stop)
            with pytest.raises(Stopped):
                write_batch(journal, target, 30)
    with everlog.open(str(tmp_path / "data")) as client:
        for name in WHOLE:
            client.stream(name).append("another")
            client.stream(name).append("and one more")
    with (
        closing(BatchJournal(str(tmp_path), "app")) as journal,
        pytest.raises(Unavailable, match="has forgotten the message ids"),
    ):
        write_batch(journal, target, 30)


def test_rows_go_over_a_bus_with_all_that_they_have(tmp_path: Path) -> None:
    schema = pa.schema(
        [
            ("key", pa.string()),
            ("value", pa.string()),
            ("headers", pa.map_(pa.string(), pa.string())),
            ("timestamp", pa.float64()),
            ("ttl", pa.int32()),
        ]
    )
    rows: list[dict[str, Any]] = [
        {"key": "large", "value": "x" * 600_000},
        {"key": "full", "value": "v", "headers": [("h", "1")], "timestamp": 1.5, "ttl": 3600},
        {"key": "none", "value": None},
    ]
    with RunningBroker() as broker:
        bus = f"mqtt://127.0.0.1:{broker.port}"
        with PersistProcess(tmp_path, bus), closing(BatchJournal(str(tmp_path), "app")) as journal:
            target = StateTarget("kv", ("store",), bus=bus)
            check_state_schema(schema, target)
            staged = [pa.RecordBatch.from_pylist(rows, schema=schema)]
            journal.take(0, [stage(staged, f"{tmp_path}/app", schema, StateCheck(target))[0]])
            assert write_batch(journal, target, 30) == 3
            with connect_blocking(bus) as client:
                found = {entry.key: entry for entry in client.kv("store").entries()}
    assert found["large"].value == b"x" * 600_000
    assert (found["full"].value, found["full"].headers, found["full"].timestamp) == (b"v", {"h": "1"}, 1.5)
    assert found["full"].expires_us - found["full"].time_us == 3600 * 1_000_000
    assert found["none"].value is None


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"stream": "other", "value": b"x"}, "not what the option streams says"),
        ({"stream": None, "value": b"x"}, "1 rows have no stream"),
        ({"stream": "s//x", "value": b"x"}, "empty level"),
    ],
)
def test_rows_that_belong_nowhere_are_refused(row: dict[str, Any], said: str) -> None:
    batch = pa.RecordBatch.from_pylist([row], schema=SCHEMA)
    with pytest.raises(UsageError, match=said):
        StateCheck(StateTarget("streams", ("s/#",)))(batch)


def test_a_frame_and_a_stream_of_spark_are_written_to_streams(spark: "SparkSession", tmp_path: Path) -> None:
    data = tmp_path / "data"
    frame = spark.range(0, 100, 1, 4).selectExpr("concat('s/', id % 2) AS stream", "CAST(id AS STRING) AS value")
    for _ in range(2):  # the second time it is done already
        frame.write.format("everlog").mode("append").options(streams="s/+", app="copy", batch="1").save(str(data))
    found = spark.read.format("everlog").option("streams", "s/#").option("value", "string").load(str(data))
    assert sorted(int(row.value) for row in found.collect()) == list(range(100))
    entries = found.selectExpr("value AS key", "value")
    entries.write.format("everlog").mode("append").option("kv", "copy").save(str(data))
    stored = spark.read.format("everlog").option("kv", "copy").load(str(data))
    assert stored.count() == 100
