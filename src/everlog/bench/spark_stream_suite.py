"""What streams of Spark do on two cores of this machine: how late a message is, and how quickly a backlog is read.

Late is measured from the PUBACK that a publisher gets from a real broker to the call of `foreachBatch` with that
message, and to its rows in the driver's hands; the first batches, in which Spark compiles, are left out. The backlog is
read with `Trigger.AvailableNow` and counted in `foreachBatch`; the clock runs from the start of the query to its end,
workers' start included. Beside it stands the CPU time of the whole machine meanwhile, as workers come and go; beside
lateness the load of the machine before. Other programs can only slow it down.
"""

import os
import socket
import statistics
import threading
import time
from typing import TYPE_CHECKING

from everlog.base import StorageError
from everlog.bench.load.brokers import EVERLOG, Running, started
from everlog.bench.load.usage import sample
from everlog.bench.measurement import Row
from everlog.bench.spark_suite import NOT_MEASURED, TOPICS, bench_session, fill, is_installed, record_count
from everlog.bench.store_suite import PAYLOAD_BYTES
from everlog.mqtt import Connect, Publish, encode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROUNDS = 3
PER_TRIGGER = 5_000_000
MESSAGES = 200
EVERY_S = 0.05
WARM_UP = 60  # messages that are sent before the first that counts


def run() -> list[Row]:
    """Return all rows in about two minutes; interpreted, with a hundredth of the records."""
    if not is_installed():
        return NOT_MEASURED
    records = record_count()
    # the broker first: it forks, which is for a process with one thread
    with started(EVERLOG) as broker, bench_session() as (spark, where):
        rows = lateness_rows(spark, broker, where)
        fill(f"{where}/data", records, TOPICS)
        return [*rows, *backlog_rows(spark, where, records)]


class Arrivals:
    """The times at which each message was acknowledged, was in a batch, and was in hand, by its number."""

    def __init__(self) -> None:
        self.acked: dict[int, float] = {}
        self.called: dict[int, float] = {}
        self.held: dict[int, float] = {}

    def take(self, frame: "DataFrame", number: int) -> None:
        """Note the messages of a batch; `foreachBatch` calls it."""
        called = time.monotonic()
        rows = frame.select("payload").collect()
        now = time.monotonic()
        for row in rows:
            self.called[int(bytes(row[0]))] = called
            self.held[int(bytes(row[0]))] = now

    def delays(self, at: dict[int, float]) -> list[float]:
        """Return the milliseconds from the PUBACK, for the messages that count."""
        return [max(0.0, 1000 * (at[number] - self.acked[number])) for number in range(WARM_UP, WARM_UP + MESSAGES)]


def lateness_rows(spark: "SparkSession", broker: Running, where: str) -> list[Row]:
    """Measure how long a message takes to arrive when one is sent every now and then."""
    arrivals, load = Arrivals(), f"load before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs"
    stream = spark.readStream.format("everlog").option("columns", "topic,payload").option("from", "latest")
    query = (
        stream.load(str(broker.data))
        .writeStream.foreachBatch(arrivals.take)
        .option("checkpointLocation", f"{where}/late")
        .trigger(processingTime="0 seconds")
        .start()
    )
    publisher = threading.Thread(target=_publish, args=(broker.port, arrivals))
    try:
        _until_it_reads(broker.port, arrivals)
        publisher.start()
        publisher.join()
        deadline = time.monotonic() + 60
        while len(arrivals.held) < WARM_UP + MESSAGES + 1 and time.monotonic() < deadline:
            time.sleep(0.01)
    finally:
        query.stop()
    rows: list[Row] = []
    for name, at in (("PUBACK to foreachBatch", arrivals.called), ("PUBACK to rows in hand", arrivals.held)):
        delays = sorted(arrivals.delays(at))
        note = f"median of {MESSAGES}, one every {1000 * EVERY_S:.0f} ms, 99%: {delays[len(delays) * 99 // 100]:.0f} ms"
        rows.append((name, statistics.median(delays), "ms", f"{note}; {load}"))
    return rows


def _until_it_reads(port: int, arrivals: Arrivals) -> None:
    """Send one message until the stream has seen it, as a stream that begins with the latest begins late."""
    with _Publisher(port) as publisher:
        while -1 not in arrivals.held:
            publisher.publish(b"-1")
            time.sleep(EVERY_S)


def _publish(port: int, arrivals: Arrivals) -> None:
    with _Publisher(port) as publisher:
        for number in range(WARM_UP + MESSAGES):
            publisher.publish(b"%d" % number)
            arrivals.acked[number] = time.monotonic()
            time.sleep(EVERY_S)


class _Publisher:
    """A client that publishes and waits for the PUBACK."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._say(encode(Connect(4, "late"), 4))

    def __enter__(self) -> "_Publisher":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def publish(self, payload: bytes) -> None:
        self._say(encode(Publish("late/1", payload, 1, packet_id=1), 4))

    def _say(self, packet: bytes) -> None:
        self._socket.sendall(packet)
        answer = b""
        while len(answer) < 4:
            answer += self._socket.recv(4 - len(answer))


def backlog_rows(spark: "SparkSession", where: str, records: int) -> list[Row]:
    """Measure a whole log through micro-batches, the best of several runs."""
    rows: list[Row] = []
    for columns in (None, "offset"):
        runs = [_drain(spark, where, records, columns, number) for number in range(ROUNDS)]
        wall_s, cpu_s = min(runs)
        note = f"{records:,} records of {PAYLOAD_BYTES} bytes, {PER_TRIGGER:,} a batch, local[2]; {wall_s:.2f} s"
        note += f", CPU of the machine {cpu_s:.2f} s"
        rows.append((f"backlog, {columns or 'all columns'}", records / wall_s, "rows/s", note))
    return rows


def _drain(spark: "SparkSession", where: str, records: int, columns: str | None, number: int) -> tuple[float, float]:
    """Return the seconds of one query over the whole log, and the seconds of CPU that were used meanwhile."""
    counted: list[int] = []

    def count(frame: "DataFrame", batch: int) -> None:
        counted.append(frame.count())

    stream = spark.readStream.format("everlog").option("maxRecordsPerTrigger", str(PER_TRIGGER))
    stream = stream if columns is None else stream.option("columns", columns)
    before = sample([os.getpid()])
    query = (
        stream.load(f"{where}/data")
        .writeStream.foreachBatch(count)
        .option("checkpointLocation", f"{where}/backlog-{columns}-{number}")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    after = sample([os.getpid()])
    if sum(counted) != records:
        raise StorageError(f"{sum(counted)} rows of {records}")
    return (after.at_ns - before.at_ns) / 1e9, after.machine_cpu_s - before.machine_cpu_s
