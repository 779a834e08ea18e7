"""Rows published to a broker: each appears once, wherever the publisher is stopped and whoever comes back."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.brokers import RunningBroker

from everlog.base import StorageError, Unavailable, UsageError
from everlog.mqtt import Client, Reason
from everlog.spark.sink import batch_publisher
from everlog.spark.sink.batch_journal import BatchJournal
from everlog.spark.sink.batch_publisher import publish_batch
from everlog.spark.sink.blocking_client import BlockingClient, ConnectionLost
from everlog.spark.sink.sink_options import Address
from everlog.spark.sink.staged_rows import check_messages, check_schema, stage

SCHEMA = pa.schema([("topic", pa.string()), ("payload", pa.binary()), ("qos", pa.int32())])
ROWS = 13
ACK_BYTES = 4


@pytest.fixture
def broker() -> Iterator[RunningBroker]:
    with RunningBroker(keep=[("#", 0)]) as running:
        yield running


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_publisher, "WINDOW", 5)
    monkeypatch.setattr(batch_publisher, "PAUSE_S", (0.0,))


def put(staging: Path, first: int, count: int, qos: int | None = None, app: str = "app") -> str:
    rows = [{"topic": f"t/{n % 3}", "payload": b"%d" % n, "qos": qos} for n in range(first, first + count)]
    batch = pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
    return stage([batch.slice(0, 4), batch.slice(4)], f"{staging}/{app}", SCHEMA, check_messages)[0]


def logged(broker: RunningBroker) -> list[bytes]:
    """The payloads in the log, in order."""
    return [payload for records in broker.log.shards[0].batches for *_, payload in records.rows()]


class Stopped(Exception):
    """The process of a publisher ends here."""


class Stopping(BlockingClient):
    """A connection whose owner ends at its n-th word to the broker or from it; before, or just after it was said."""

    words = 0
    stop_at = 0
    after = False
    unread = b""

    def send(self, data: bytes) -> None:
        self._step(lambda: BlockingClient.send(self, data))

    def receive(self) -> bytes:
        self._step(self._read)
        size = len(self.unread) if self.session.connack is None else ACK_BYTES
        data, self.unread = self.unread[:size], self.unread[size:]
        return data

    def _read(self) -> None:
        self.unread = self.unread or BlockingClient.receive(self)

    def _step(self, really: Callable[[], None]) -> None:
        Stopping.words += 1
        if Stopping.words == Stopping.stop_at and not Stopping.after:
            raise Stopped
        really()
        if Stopping.words == Stopping.stop_at and Stopping.after:
            raise Stopped


def dialer(broker: RunningBroker, kind: type[BlockingClient] = BlockingClient) -> Callable[[bool], BlockingClient]:
    return lambda clean: kind(Address("127.0.0.1", broker.port), "publisher", clean_start=clean)


def publish(
    broker: RunningBroker,
    staging: Path,
    batch: int,
    *files: str,
    kind: type[BlockingClient] = BlockingClient,
    qos: int = 2,
) -> int:
    journal = BatchJournal(str(staging), "app")
    try:
        return publish_batch(journal, dialer(broker, kind), 2, 5.0) if journal.take(batch, files) else 0
    finally:
        journal.close()


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_each_row_appears_once_wherever_a_publisher_ends(broker: RunningBroker, tmp_path: Path, after: bool) -> None:
    Stopping.after = after
    number, batch = 1, 0
    while True:
        Stopping.words, Stopping.stop_at = 0, number
        first = ROWS * batch
        try:
            publish(broker, tmp_path, batch, put(tmp_path, first, 6), put(tmp_path, first + 6, 7), kind=Stopping)
            break
        except Stopped:
            publish(broker, tmp_path, batch, put(tmp_path, first, ROWS))  # Spark computes the batch again
        number += 1
        batch += 1
    assert number > 3 * ROWS // 2
    assert logged(broker) == [b"%d" % n for n in range(ROWS * (batch + 1))]


def test_a_publisher_may_end_again_and_again(broker: RunningBroker, tmp_path: Path) -> None:
    name = put(tmp_path, 0, ROWS)
    for stop_at in (3, 9, 4, 12, 14, 2, 13, 11):
        Stopping.words, Stopping.stop_at, Stopping.after = 0, stop_at, bool(stop_at % 2)
        with pytest.raises(Stopped):
            publish(broker, tmp_path, 0, name, kind=Stopping)
    assert publish(broker, tmp_path, 0) > 0
    assert logged(broker) == [b"%d" % n for n in range(ROWS)]


def test_a_batch_that_is_published_is_not_published_again(broker: RunningBroker, tmp_path: Path) -> None:
    assert publish(broker, tmp_path, 4, put(tmp_path, 0, 7)) == 7
    assert publish(broker, tmp_path, 4, put(tmp_path, 0, 7)) == 0
    assert publish(broker, tmp_path, 3, put(tmp_path, 0, 7)) == 0
    assert len(logged(broker)) == 7
    assert not list(tmp_path.glob("app/*.arrow"))
    assert publish(broker, tmp_path, 5, put(tmp_path, 7, 2)) == 2
    assert logged(broker) == [b"%d" % n for n in range(9)]


def test_a_lost_connection_is_made_again(broker: RunningBroker, tmp_path: Path) -> None:
    lost = iter([4, 9, 11, 17])

    class Losing(BlockingClient):
        left = 1_000_000

        def receive(self) -> bytes:
            Losing.left -= 1
            if Losing.left == 0:
                self._socket.close()
                raise ConnectionLost("cut")
            return super().receive()

    def dial(clean: bool) -> BlockingClient:
        Losing.left = next(lost, 1_000_000)
        return dialer(broker, Losing)(clean)

    journal = BatchJournal(str(tmp_path), "app")
    assert journal.take(0, [put(tmp_path, 0, ROWS)])
    assert publish_batch(journal, dial, 2, 5.0) == ROWS
    journal.close()
    assert logged(broker) == [b"%d" % n for n in range(ROWS)]


def test_qos_1_repeats_at_most_the_window_that_was_interrupted(broker: RunningBroker, tmp_path: Path) -> None:
    Stopping.words, Stopping.stop_at, Stopping.after = 0, 11, False  # in the midst of the second window's answers
    name = put(tmp_path, 0, ROWS, qos=1)
    with pytest.raises(Stopped):
        publish(broker, tmp_path, 0, name, kind=Stopping)
    publish(broker, tmp_path, 0)
    found = logged(broker)
    assert set(found) == {b"%d" % n for n in range(ROWS)}
    assert [payload for payload in set(found) if found.count(payload) > 1] != []
    assert all(5 <= int(payload) < 10 for payload in found if found.count(payload) > 1)


def test_rows_tell_application_batch_and_number(broker: RunningBroker, tmp_path: Path) -> None:
    publish(broker, tmp_path, 3, put(tmp_path, 0, 2))
    (records,) = broker.log.shards[0].batches
    properties = [bytes(row[4]) for row in records.rows()]
    for number, found in enumerate(properties):
        for key, value in ((b"everlog-app", b"app"), (b"everlog-batch", b"3"), (b"everlog-row", b"%d" % number)):
            assert key + len(value).to_bytes(2, "big") + value in found


def test_two_processes_do_not_publish_as_one_application(tmp_path: Path) -> None:
    held = BatchJournal(str(tmp_path), "app")
    with pytest.raises(Unavailable, match="another process publishes as app"):
        BatchJournal(str(tmp_path), "app")
    held.close()
    BatchJournal(str(tmp_path), "app").close()


def test_a_file_that_the_driver_does_not_see_is_an_error(broker: RunningBroker, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="is not there"):
        publish(broker, tmp_path, 0, "elsewhere.arrow")


def test_a_broker_that_is_away_is_waited_for_and_then_named(tmp_path: Path) -> None:
    journal = BatchJournal(str(tmp_path), "app")
    assert journal.take(0, [put(tmp_path, 0, 3)])

    def dial(clean: bool) -> BlockingClient:
        return BlockingClient(Address("127.0.0.1", 1), "publisher", clean_start=clean)

    with pytest.raises(Unavailable, match=r"no connection to 127\.0\.0\.1:1.*0 rows of batch 0"):
        publish_batch(journal, dial, 2, 0.05)
    journal.close()


def test_a_refused_row_names_its_topic(broker: RunningBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    really = Client._answered

    def refusing(self: Client, qos: int, ids: memoryview, reasons: bytes, events: list[Any]) -> None:
        really(self, qos, ids, bytes([Reason.NOT_AUTHORIZED]) * len(ids), events)

    monkeypatch.setattr(Client, "_answered", refusing)
    with pytest.raises(Unavailable, match="refuses 3 rows, the first on t/0: not authorized"):
        publish(broker, tmp_path, 0, put(tmp_path, 0, 3))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ([("topic", pa.string())], "need a column payload"),
        ([("topic", pa.string()), ("payload", pa.int64())], "payload is int64"),
        ([("topic", pa.string()), ("payload", pa.binary()), ("colour", pa.string())], "no colour"),
        ([("topic", pa.string()), ("payload", pa.binary()), ("user_properties", pa.string())], "user_properties is"),
    ],
)
def test_columns_that_make_no_message_are_refused(fields: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        check_schema(pa.schema(fields))


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"topic": "a/#", "payload": b""}, "a/#"),
        ({"topic": None, "payload": b""}, "1 rows have no topic"),
        ({"topic": "a", "payload": b"", "qos": 3}, "qos"),
    ],
)
def test_rows_that_make_no_message_are_refused_before_anything_is_sent(
    tmp_path: Path, row: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        stage([pa.RecordBatch.from_pylist([row], schema=SCHEMA)], str(tmp_path), SCHEMA, check_messages)
