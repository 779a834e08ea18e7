"""What stored sessions cost: a broker's start with 100,000 of them, its memory, and writing positions behind."""

import asyncio
import os
import tempfile
from pathlib import Path
from time import perf_counter, process_time

from everlog.bench.measurement import Row, apart, resident_mb
from everlog.broker import Broker
from everlog.commitlog import LogSettings
from everlog.sessions import (
    ALIVE,
    LIVE,
    Changes,
    Cursor,
    Session,
    SessionRow,
    SqliteTables,
    Subscribed,
    SubscriptionRow,
)
from everlog.store import LogStore

SESSIONS = 100_000
_LATER = 4_000_000_000_000_000
_NAMES = [f"client-{number:06}" for number in range(SESSIONS)]
_RECIPE = f"{SESSIONS:,} sessions, one filter of its own each"


def run() -> list[Row]:
    """Return all rows in about 20 seconds."""
    with tempfile.TemporaryDirectory(prefix="everlog-bench-") as directory:
        path = f"{directory}/sessions.db"
        tables = SqliteTables(path)
        _fill(tables, away_us=_LATER)
        size = os.path.getsize(path) + os.path.getsize(f"{path}-wal")
        tables.close()
        away = apart(_start, directory)
        tables = SqliteTables(path)
        _fill(tables, away_us=ALIVE)
        tables.close()
        crashed = apart(_start, directory)
        objects = apart(_objects, directory)
        tables = SqliteTables(path)
        written = _apply_rows(tables)
        tables.close()
    return [
        ("start, everybody away", away[0], "s", f"{_RECIPE}; wall clock, at most 3 s"),
        ("start, everybody away", away[1], "s CPU", _RECIPE),
        ("start after a crash, everybody was connected", crashed[0], "s", f"{_RECIPE}; wall clock, all written anew"),
        ("start after a crash, everybody was connected", crashed[1], "s CPU", _RECIPE),
        ("memory of stored sessions", away[2], "MB", f"{_RECIPE}, kept filters included"),
        ("memory of the whole process", away[3], "MB", f"{_RECIPE}; at most 200 MB"),
        ("memory as session objects", objects[2], "MB", f"{_RECIPE}, kept filters not included: what is avoided"),
        ("file with its write-ahead log", size / 1e6, "MB", f"{SESSIONS:,} sessions written at once"),
        *written,
    ]


def _fill(tables: SqliteTables, away_us: int) -> None:
    """Store sessions whose positions lie inside the (empty) log, so that a start has nothing to put right."""
    position = LIVE if away_us == ALIVE else 0
    cursor = Cursor(position.to_bytes(8, "little", signed=True), 77)
    tables.apply(
        Changes(
            rows=tuple(SessionRow(name, None, 4, 604_800, away_us) for name in _NAMES),
            subscribed=tuple((name, SubscriptionRow(f"dev/{name}/cmd", 1)) for name in _NAMES),
            cursors=tuple((name, cursor) for name in _NAMES),
            routed=(0,),
            alive_us=_LATER,
        ),
        durable=True,
    )


def _apply_rows(tables: SqliteTables) -> list[Row]:
    """Measure batches that differ from the one before: SQLite writes nothing for a row that stays as it is."""
    rows: list[Row] = []
    for count, inflight in ((1_000, 0), (1_000, 100), (10_000, 0)):
        names = _NAMES[:: SESSIONS // count]
        best = min(_seconds(tables, _moved(names, step, inflight), False) for step in range(1, 6))
        note = f"{count:,} sessions in a batch, {inflight} messages in flight each, not synced"
        rows.append(("positions written behind", count / best, "sessions/s", note))
    each = sorted(_seconds(tables, _moved(_NAMES[5:6], step, 0), True) for step in range(10, 61))
    rows.append(("a durable batch of one", each[25] * 1e3, "ms", "median; what a CONNACK or SUBACK waits for"))
    rows.append(("a bare fdatasync", _sync_ms(tables.path.parent), "ms", "median; 4 KiB appended to a file beside it"))
    return rows


def _moved(names: list[str], step: int, inflight: int) -> Changes:
    state = step.to_bytes(8, "little")
    cursor = Cursor(state, 78 + step, (state + b"abc") * inflight)
    return Changes(cursors=tuple((name, cursor) for name in names), routed=(step,), alive_us=step)


def _seconds(tables: SqliteTables, changes: Changes, durable: bool) -> float:
    start = perf_counter()
    tables.apply(changes, durable)
    return perf_counter() - start


def _sync_ms(directory: Path) -> float:
    """Return the median milliseconds of a bare sync, to tell the figures above from those without one."""
    times = []
    with open(directory / "beside", "wb", buffering=0) as file:
        for _ in range(51):
            start = perf_counter()
            file.write(bytes(4096))
            os.fdatasync(file.fileno())
            times.append(perf_counter() - start)
    return sorted(times)[25] * 1e3


def _start(directory: str) -> tuple[float, ...]:
    """Start a broker: return seconds, seconds of CPU, megabytes that it took, and all that the process has then."""

    async def start() -> tuple[float, ...]:
        with tempfile.TemporaryDirectory(dir=directory) as log:
            store = LogStore.open(log, LogSettings(durability="memory"), shards=1)
            tables = SqliteTables(f"{directory}/sessions.db")
            broker = Broker(store, tables=tables, now_us=lambda: _LATER + 1)
            before, began, worked = resident_mb(), perf_counter(), process_time()
            broker.start()
            figures = perf_counter() - began, process_time() - worked, resident_mb() - before, resident_mb()
            assert len(broker.registry) == SESSIONS
            await broker.stop()
            tables.close()
            store.close()
            return figures

    return asyncio.run(start())


def _objects(directory: str) -> tuple[float, ...]:
    """Make the same sessions as objects: return seconds, seconds of CPU and megabytes."""
    before, began, worked = resident_mb(), perf_counter(), process_time()
    sessions = []
    for name in _NAMES:
        session = Session(name, 4, 604_800)
        session.subscribe(Subscribed(f"dev/{name}/cmd", 1))
        session.read_on(0, 1_000_000)
        sessions.append(session)
    return perf_counter() - began, process_time() - worked, resident_mb() - before
