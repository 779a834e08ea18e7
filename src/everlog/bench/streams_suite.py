"""What streams and key-value stores cost their owner: a write with all that follows, reads, many streams on disk.

Times are of the CPU of the whole process, with the journal's thread. Commits are synced; what a disk takes for that is
not CPU.
"""

import os
import tempfile
import time
from collections.abc import Callable
from queue import SimpleQueue
from time import process_time

from everlog.base import EverlogError
from everlog.bench.measurement import Row, apart, resident_mb
from everlog.streams import (
    Answer,
    Call,
    Get,
    KvGet,
    KvPut,
    LocalJournal,
    Message,
    Set,
    ShardSettings,
    StateShard,
    Tier,
)
from everlog.tiering import Bucket

VALUE = os.urandom(200)
GROUP = 100  # requests a turn
WRITES = 50_000
STREAMS = 100
IN_FLIGHT = 2_000
MANY = 10_000  # streams on disk


def run() -> list[Row]:
    """Return all rows in about 40 seconds."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="everlog-bench-") as directory:
        rows += _writes(f"{directory}/streams")
        rows += _values(f"{directory}/values")
        rows += _many(f"{directory}/many")
    return rows


class _Clock:
    def now_us(self) -> int:
        return time.time_ns() // 1000

    due_us = now_us


def _now(work: Callable[[], None]) -> None:
    work()


class Bench:
    """A shard in a directory, driven as a server drives one."""

    def __init__(
        self,
        directory: str,
        settings: ShardSettings | None = None,
        bucket: Bucket | None = None,
        run: Callable[[Callable[[], None]], None] | None = None,
    ) -> None:
        os.makedirs(directory, exist_ok=True)
        self._posted: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.journal = LocalJournal.open(f"{directory}/journal")
        tier = None
        if bucket is not None:
            tier = Tier.open(bucket, "shard-0", self.journal, _now, _now, is_copied=True)
            tier.prepare(directory)
        self.shard = StateShard(
            self.journal, directory, _Clock(), post=self._posted.put, run=run or _now, settings=settings, tier=tier
        )
        self.shard.on_failure = self._fail
        self.answered = 0
        self.most_pending = 0

    def _fail(self, error: EverlogError) -> None:
        raise error

    def count(self, answer: Answer) -> None:
        """Count an answer."""
        self.answered += 1

    def tick(self) -> None:
        """Do what time demands."""
        self.shard.tick()
        while not self._posted.empty():
            self._posted.get()()

    def run(self, calls: list[Call], count: int) -> float:
        """Make so many of the calls in turn, in groups, and return the CPU seconds of it."""
        start, asked, wanted = process_time(), 0, self.answered + count
        while asked < count:
            for k in range(asked, asked + GROUP):
                self.shard.handle(calls[k % len(calls)], self.count)
            asked += GROUP
            self.shard.turn()
            while not self._posted.empty() or self.answered < wanted - count + asked - IN_FLIGHT:
                self._posted.get()()
            self.most_pending = max(self.most_pending, self.shard.views.pending_rows)
        while self.answered < wanted:
            self._posted.get()()
        return process_time() - start


def _writes(directory: str) -> list[Row]:
    bench = Bench(directory)
    calls = [Call(Set(f"s/{n}", Message(VALUE))) for n in range(STREAMS)]
    bench.run(calls, 64 * STREAMS)
    whole = min(bench.run(calls, WRITES) for _ in range(3)) / WRITES
    pending, size = bench.most_pending, bytes_of(directory)
    messages = 64 * STREAMS + 3 * WRITES
    bench.shard.close()
    alone = _journal(f"{directory}-journal")
    note = f"{len(VALUE)} bytes, {STREAMS} streams, {GROUP} a turn, committed and applied"
    return [
        ("append at fsync", whole * 1e6, "us CPU", note),
        ("of which the journal", alone * 1e6, "us CPU", f"records of {len(VALUE) + 50} bytes, {GROUP} a commit"),
        ("rows that waited for their file, at most", pending, "rows", "they do not grow with time"),
        ("bytes on disk a message", size / messages, "bytes", f"{len(VALUE)} of value, journal and file"),
    ]


def _journal(directory: str) -> float:
    journal = LocalJournal.open(directory)
    ended: SimpleQueue[object] = SimpleQueue()
    records = [(f"s/{n}", VALUE + bytes(50)) for n in range(GROUP)]
    start = process_time()
    for _ in range(WRITES // GROUP):
        journal.append(records)
        journal.commit(ended.put, ended.put)
        ended.get()
    spent = process_time() - start
    journal.close()
    return spent / WRITES


def _values(directory: str) -> list[Row]:
    bench = Bench(directory)
    puts = [Call(KvPut("kv", f"k{n}", Message(VALUE))) for n in range(500)]
    bench.run(puts, 10_000)
    put = min(bench.run(puts, 20_000) for _ in range(3)) / 20_000
    gets = [Call(KvGet("kv", f"k{n}")) for n in range(500)]
    bench.run(gets, 1_000)
    get = min(bench.run(gets, 20_000) for _ in range(3)) / 20_000
    bench.shard.close()
    return [
        ("put at fsync", put * 1e6, "us CPU", "500 keys of one store"),
        ("get", get * 1e6, "us CPU", "of 500 keys, from memory"),
    ]


def _many(directory: str) -> list[Row]:
    bench = Bench(directory)
    calls = [Call(Set(f"s/{n}", Message(VALUE))) for n in range(MANY)]
    bench.run(calls, 2 * MANY)
    bench.shard.close()
    size = bytes_of(f"{directory}/files")
    ready, cold, memory = apart(_cold, directory)
    return [
        (f"ready with {MANY:,} streams on disk", ready * 1e3, "ms CPU", "after a clean stop; nothing is listed"),
        ("read of a stream whose file is closed", cold * 1e3, "ms CPU", "at p99 of 500"),
        ("memory of an open file", memory * 1e3, "KB", "of 500"),
        ("file of a stream", size / MANY / 1e3, "KB", f"2 messages of {len(VALUE)} bytes"),
    ]


def _cold(directory: str) -> tuple[float, float, float]:
    start = process_time()
    bench = Bench(directory)
    ready = process_time() - start
    times = []
    before = resident_mb()
    for n in range(500):
        start = process_time()
        bench.shard.handle(Call(Get(f"s/{n * 7}", 1)), bench.count)
        times.append(process_time() - start)
    memory = (resident_mb() - before) / 500
    bench.shard.close()
    return ready, sorted(times)[494], memory


def bytes_of(directory: str) -> int:
    """Return how many bytes the files of a directory take on the disk."""
    return sum(
        os.stat(os.path.join(where, name)).st_blocks * 512 for where, _, names in os.walk(directory) for name in names
    )
