"""The commit log: appending at each durability, the latency of a lone commit, reading back, opening many segments."""

import os
import tempfile
import threading
import time
from array import array

from everlog.base import MessageColumns, TopicTable
from everlog.bench.measurement import Row, apart, resident_mb
from everlog.bench.store_suite import columns_of
from everlog.commitlog import Durability, LogSettings, RealDisk, ShardLog, wall_clock_us

TOPICS = 1000
TRIALS = 3  # the best counts: other programs and a machine's first use of its memory can only slow it down


def messages(count: int, table: TopicTable, first_topic: int = 0, topics: int = TOPICS) -> MessageColumns:
    """Return QoS 1 messages of 100 bytes as a parser leaves them."""
    columns = columns_of(count)
    ids = [table.intern(b"sensors/%d/temperature" % (first_topic + i % topics)) for i in range(count)]
    columns.topics[:] = array("I", ids).tobytes()
    return columns


def place() -> tempfile.TemporaryDirectory[str]:
    """Return a new directory on this machine's disk, in BENCH_DIR if that is set, for a `with` statement."""
    where = os.environ.get("BENCH_DIR")
    return tempfile.TemporaryDirectory(prefix="everlog-bench-log-", dir=where, ignore_cleanup_errors=True)


def opened(path: str, durability: Durability, **changes: int) -> ShardLog:
    """Open a log for one measurement."""
    return ShardLog.open(RealDisk(), f"{path}/shard", LogSettings(durability=durability, **changes))


def append_rate(durability: Durability, run: int, total: int) -> float:
    """Return records per second that one producer appends in runs until the last is committed."""
    with place() as path:
        log, table = opened(path, durability), TopicTable()
        columns = messages(run, table)
        began = time.perf_counter()
        for _ in range(total // run):
            log.append(columns, 0, run, wall_clock_us(), table)
            log.commit()
        log.wait_committed(log.end)
        taken = time.perf_counter() - began
        log.close()
        return total / taken


def producers_rate(producers: int, run: int, seconds: float) -> tuple[float, float]:
    """Return records per second at `fsync`, and records per commit, of producers that each wait for their commit."""
    with place() as path:
        log = opened(path, "fsync")
        stop = time.perf_counter() + seconds

        def produce(number: int) -> None:
            table = TopicTable()
            columns = messages(run, table, number * run, run)
            while time.perf_counter() < stop:
                log.append(columns, 0, run, wall_clock_us(), table)
                log.wait_committed(log.end)

        threads = [threading.Thread(target=produce, args=(number,)) for number in range(producers)]
        began = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        taken = time.perf_counter() - began
        records, commits = log.committed, log.statistics().commits
        log.close()
        return records / taken, records / commits


def lone_latency_us(rounds: int, listening: bool) -> tuple[float, float]:
    """Return the median microseconds of a lone append until it is committed, and of a bare write and sync in turns.

    When somebody listens, as a broker does, the committing thread commits; else the thread that waits.
    """
    with place() as path:
        log, table = opened(path, "fsync"), TopicTable()
        if listening:
            log.on_commit = lambda log, committed: None
        columns = messages(1, table)
        size = 320  # what the log writes for it
        bare = os.open(f"{path}/bare", os.O_RDWR | os.O_CREAT)
        ours, theirs = [], []
        for k in range(rounds):
            began = time.perf_counter()
            log.append(columns, 0, 1, 1, table)
            log.wait_committed(log.end)
            between = time.perf_counter()
            os.pwrite(bare, bytes(size), size * k)
            os.fdatasync(bare)
            ours.append(between - began)
            theirs.append(time.perf_counter() - between)
        os.close(bare)
        log.close()
        return 1e6 * sorted(ours)[rounds // 2], 1e6 * sorted(theirs)[rounds // 2]


def read_rates(total: int, run: int) -> tuple[float, float]:
    """Return records per second read as verified columns, and bytes per second of raw ranges, from the page cache."""
    with place() as path:
        log, table = opened(path, "flush", tail_bytes=0), TopicTable()
        columns = messages(run, table)
        for _ in range(total // run):
            log.append(columns, 0, run, wall_clock_us(), table)
            log.commit_step()
        best_records = best_bytes = 0.0
        for _ in range(3):
            began, offset = time.perf_counter(), 0
            while batches := log.read(offset, 1 << 20):
                offset = batches[-1].base_offset + batches[-1].count
            best_records = max(best_records, offset / (time.perf_counter() - began))
            began, size = time.perf_counter(), 0
            for view in log.segments():
                at = 0
                while data := view.read_at(at, 1 << 20):
                    at += len(data)
                size += at
            best_bytes = max(best_bytes, size / (time.perf_counter() - began))
        log.close()
        return best_records, best_bytes


def open_cost(segments: int, topics: int) -> tuple[float, float, float]:
    """Return milliseconds and MB of opening a log of sealed segments, and milliseconds after an unclean stop."""
    with place() as path:
        run = topics // segments
        settings = LogSettings(durability="flush", segment_bytes=run * 100)
        log = ShardLog.open(RealDisk(), f"{path}/shard", settings, background=False)
        for k in range(segments + 1):
            table = TopicTable()
            log.append(messages(run, table, run * k, run), 0, run, wall_clock_us(), table)
            log.commit_step()
        while log.seal_step():
            pass
        log.close()
        clean = apart(_opening, f"{path}/shard", "fork")
        os.truncate(f"{path}/shard/mark", 0)
        for name in sorted(os.listdir(f"{path}/shard"))[-3:]:
            if name.endswith(".idx"):
                os.unlink(f"{path}/shard/{name}")
        unclean = apart(_opening, f"{path}/shard", "fork")
        return clean[0], clean[1], unclean[0]


def _opening(path: str) -> tuple[float, float]:
    """Return milliseconds and MB of an open."""
    before = resident_mb()
    began = time.perf_counter()
    log = ShardLog.open(RealDisk(), path, background=False)
    taken = time.perf_counter() - began
    held = resident_mb() - before
    assert log.end > 0, os.listdir(path)
    return 1e3 * taken, held


def run() -> list[Row]:
    """Return every measurement; each says what it must reach."""
    results: list[Row] = []
    for durability, at_least in (("memory", ""), ("flush", "at least 1.5 M/s"), ("fsync", "")):
        rate = max(append_rate(durability, 500, 1_000_000) for _ in range(TRIALS))  # type: ignore[arg-type]
        results.append((f"append, {durability}, one producer, runs of 500", rate / 1e6, "M records/s", at_least))
    for size, at_least in ((20, "at least 300 k/s"), (1, "")):
        rate, together = max(producers_rate(50, size, 1.0) for _ in range(TRIALS))
        note = f"{together:.0f} records a commit" + (f"; {at_least}" if at_least else "")
        results.append((f"append, fsync, 50 producers waiting, runs of {size}", rate / 1e3, "k records/s", note))
    for listening, who in ((False, "in the producer's thread"), (True, "by the committing thread")):
        ours, bare = lone_latency_us(1000, listening)
        note = f"{ours:.0f} µs; bare write+fdatasync in turns with it {bare:.0f} µs; at most 1.5x"
        results.append((f"lone append, fsync, median, committed {who}", ours / bare, "x", note))
    records, raw = read_rates(2_000_000, 500)
    results.append(("sequential read as verified columns, batches of 500", records / 1e6, "M records/s", "at least 4"))
    results.append(("raw range from the page cache", raw / 1e9, "GB/s", "at least 1"))
    clean, held, unclean = open_cost(1000, 1_000_000)
    results.append(("open, 1,000 sealed segments, 1 M topics", clean, "ms", f"{held:.0f} MB; under 1 s and 150 MB"))
    results.append(("the same after an unclean stop", unclean, "ms", "scans the last segment"))
    return results
