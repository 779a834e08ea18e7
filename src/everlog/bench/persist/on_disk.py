"""What many streams cost on a disk and in a bucket: until they are ready, to open one, each of them, each message."""

import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from time import perf_counter, process_time, thread_time
from typing import NamedTuple

from everlog.bench.measurement import Row, apart, resident_mb
from everlog.bench.persist.contenders import Contender, Running
from everlog.bench.persist.outcome import Outcome
from everlog.bench.persist.scale import Scale
from everlog.bench.streams_suite import VALUE, Bench, bytes_of
from everlog.streams import Call, Get, Message, Set, ShardSettings
from everlog.tiering import BucketPacks, DirectoryBucket, StoredObject, read_packs

SETTINGS = ShardSettings(most_open=1_000, upload_us=10**15)
OPENED = 1_000  # streams that are opened cold, and are open then
CHANGED = 1_000  # streams of a round of packing
_SYNCS = 32
_MESSAGES = 2, 200  # of a stream, in most streams and in some


class Cold(NamedTuple):
    """What a fresh process takes to be ready and to open streams, and what each of those holds."""

    ready_s: float
    ready_cpu_s: float
    p50_ms: float
    p99_ms: float
    cpu_p99_ms: float
    open_mb: float
    idle_mb: float
    descriptors: float


def open_cold(contender: Contender, running: Running, scale: Scale) -> Outcome:
    """Make streams on a disk, and open some of them in a fresh process."""
    directory = str(running.folder)
    begun = perf_counter()
    _fill(directory, scale.kept)
    cold = apart(_cold, directory)
    figures = {
        "ready_s": round(cold.ready_s, 4),
        "open_p99_ms": round(cold.p99_ms, 3),
        "open_cpu_p99_ms": round(cold.cpu_p99_ms, 3),
    }
    opened = min(scale.kept - 1, OPENED)
    return Outcome(opened, perf_counter() - begun, cold.ready_cpu_s, 0.0, cold.p50_ms, cold.p99_ms, more=figures)


class NoServer(Contender):
    """The shard of a server in a process of its own, without a bus."""

    name = "everlog-shard"

    def start(self, folder: Path, running: Running) -> None:
        """Start nothing."""


def measure(streams: int) -> list[Row]:
    """Return all rows; 100,000 streams take a few minutes, most of them to make the files."""
    with tempfile.TemporaryDirectory(prefix="everlog-bench-") as directory:
        _fill(directory, streams)
        a_stream = bytes_of(f"{directory}/files") / streams
        cold = apart(_cold, directory)
        return [
            (
                f"ready with {streams:,} streams on disk",
                cold.ready_s * 1e3,
                "ms",
                f"{cold.ready_cpu_s * 1e3:.1f} ms CPU, after a clean stop",
            ),
            ("cold open, the first read of a stream, p50", cold.p50_ms, "ms", f"of {OPENED:,}, the disk's cache warm"),
            ("cold open, p99", cold.p99_ms, "ms", f"{cold.cpu_p99_ms:.2f} ms of CPU"),
            ("on the disk, a stream", a_stream / 1e3, "KB", f"{_MESSAGES[0]} messages of {len(VALUE)} bytes"),
            ("on the disk, a further message", _a_message(directory), "bytes", f"{len(VALUE)} of value; file alone"),
            ("memory of an open stream", cold.open_mb * 1e3, "KB", f"of {OPENED:,}"),
            ("descriptors of an open stream", cold.descriptors, "", f"of {OPENED:,}"),
            ("memory of a stream that was used, its file closed", cold.idle_mb * 1e3, "KB", "up to 20,000 are kept"),
            *_bucket(directory, streams),
        ]


def _fill(directory: str, streams: int) -> None:
    """Make streams, with many syncs of files at a time."""
    with ThreadPoolExecutor(_SYNCS) as threads:
        bench = Bench(directory, SETTINGS, run=partial(_submit, threads))
        calls = [Call(Set(f"s/{n}", Message(os.urandom(len(VALUE))))) for n in range(streams)]
        bench.run(calls, _MESSAGES[0] * streams)
        bench.shard.close()


def _submit(threads: ThreadPoolExecutor, work: Callable[[], None]) -> None:
    threads.submit(work)


def _cold(directory: str) -> Cold:
    """Open streams that this process knows nothing of yet."""
    begun, spent = perf_counter(), process_time()
    bench = Bench(directory, SETTINGS)
    bench.run([Call(Get("s/0", 1))], 100)
    ready, cpu = perf_counter() - begun, process_time() - spent
    streams = bench.shard.views.catalogue.count()
    names = Random(1).sample(range(1, streams), min(streams - 1, 5 * OPENED))
    before, open_before, times, spents = resident_mb(), len(os.listdir("/proc/self/fd")), [], []
    for n in names[:OPENED]:
        begun, spent = perf_counter(), thread_time()
        bench.shard.handle(Call(Get(f"s/{n}", 1)), bench.count)
        times.append(perf_counter() - begun)
        spents.append(thread_time() - spent)
    count = len(times)
    memory = (resident_mb() - before) / count
    descriptors = (len(os.listdir("/proc/self/fd")) - open_before) / min(count, SETTINGS.most_open)
    before = resident_mb()
    for n in names[OPENED:]:
        bench.shard.handle(Call(Get(f"s/{n}", 1)), bench.count)
    idle = (resident_mb() - before) / max(1, len(names) - OPENED)
    bench.shard.close()
    times.sort()
    spents.sort()
    at = count * 99 // 100
    milliseconds = (times[count // 2] * 1e3, times[at] * 1e3, spents[at] * 1e3)
    return Cold(ready, cpu, *milliseconds, memory, idle, descriptors)


def _a_message(directory: str) -> float:
    """Return what a message adds to a file that has many."""
    place = f"{directory}/messages"
    bench = Bench(place, SETTINGS)
    calls = [Call(Set(f"s/{n}", Message(VALUE))) for n in range(100)]
    bench.run(calls, 100 * _MESSAGES[1])
    bench.shard.close()
    return bytes_of(f"{place}/files") / 100 / _MESSAGES[1]


def _bucket(directory: str, streams: int) -> Iterator[Row]:
    """Yield what a first upload, a round of packing and fetches ask of a bucket."""
    bucket = CountingBucket(f"{directory}/bucket")
    changed = min(CHANGED, streams)
    bench = Bench(directory, replace(SETTINGS, upload_us=1), bucket)
    bench.tick()
    yield from _asked(bucket, "first upload", streams)
    values = [Message(os.urandom(len(VALUE))) for _ in range(64 * changed)]
    bench.run([Call(Set(f"s/{n % changed}", value)) for n, value in enumerate(values)], 64 * changed)
    bench.tick()
    yield from _asked(bucket, f"a round, {changed:,} streams changed by 64 messages each", changed)
    bench.shard.close()
    files = read_packs(bucket, "shard-0/manifest").files
    chosen = Random(2).sample(sorted(files), min(200, len(files)))
    bucket.asked.clear()
    for name in chosen:
        pack, file = files[name]
        BucketPacks(bucket).fetch(pack, file.offset, file.length, f"{directory}/fetched.db")
    yield "fetch of a stream: requests", bucket.asked["get"] / len(chosen), "GET", ""
    yield "fetch of a stream: bytes", bucket.asked["got"] / len(chosen) / 1e3, "KB", ""


def _asked(bucket: "CountingBucket", what: str, streams: int) -> Iterator[Row]:
    asked = bucket.asked
    yield f"{what}: requests", asked["put"] + asked["create"], "PUT", f"{asked['get']} GET, {asked['list']} LIST"
    yield f"{what}: bytes", asked["sent"] / 1e6, "MB", f"{asked['sent'] / streams / 1e3:.2f} KB a stream"
    asked.clear()


class CountingBucket(DirectoryBucket):
    """A bucket in a directory that counts what is asked of it."""

    def __init__(self, directory: str) -> None:
        super().__init__(directory)
        self.asked: Counter[str] = Counter()

    def create(self, name: str, data: bytes) -> bytes | None:
        """Make an object unless there is one."""
        self.asked.update(create=1, sent=len(data))
        return super().create(name, data)

    def put(self, name: str, data: bytes | memoryview) -> None:
        """Make or replace an object."""
        self.asked.update(put=1, sent=len(data))
        super().put(name, data)

    def put_file(self, name: str, path: str) -> None:
        """Make or replace an object from a local file."""
        self.asked.update(put=1, sent=os.path.getsize(path))
        super().put_file(name, path)

    def get(self, name: str) -> bytes | None:
        """Return an object's content."""
        found = super().get(name)
        self.asked.update(get=1, got=len(found or b""))
        return found

    def get_range(self, name: str, start: int, size: int) -> bytes | None:
        """Return a part of an object."""
        found = super().get_range(name, start, size)
        self.asked.update(get=1, got=len(found or b""))
        return found

    def find(self, prefix: str) -> Iterator[StoredObject]:
        """Yield the objects of a folder."""
        self.asked.update(list=1)
        return super().find(prefix)
