"""What filtered reads cost beside a full one, over sealed segments in the page cache and over an open one.

Times are of the CPU, each the best of several in a row, as other programs can only slow it down. Beside each filtered
read stand two colder ones: directly behind a full read, which leaves the processor's caches full of other data, and the
first since the store was opened, which opens the indexes and maps the segments.
"""

import os
import random
import tempfile
from array import array
from time import process_time

from everlog import _kernels
from everlog.base import QOS_SHIFT, MessageColumns, RecordBuilder, Records, TopicTable, gather, select
from everlog.bench.measurement import Row, measure
from everlog.bench.topics_suite import FORMS, mixed_topics
from everlog.commitlog import LogSettings
from everlog.store import LogStore, Positions
from everlog.topics import parse_filter

RECORDS = 2_000_000
TOPICS = 100_000
PAYLOAD_BYTES = 100
RUN = 1_000
ROUNDS = 9
STEP_RECORDS = 1 << 20
STEP_BYTES = 8 << 20
HOUR_US = 3_600_000_000


def run() -> list[Row]:
    """Return all rows in about 30 seconds; interpreted, with a hundredth of the records."""
    records = RECORDS if not _kernels.interpreted() else RECORDS // 100
    topics = TOPICS if records == RECORDS else TOPICS // 100
    rows: list[Row] = []
    for shards, segment_bytes in ((1, 512 << 20), (1, 64 << 20), (4, 64 << 20)):
        with tempfile.TemporaryDirectory(prefix="everlog-bench-") as where:
            rows += _filtered(where, records, topics, shards, segment_bytes)
    return [*rows, *_open_segment_rows(records // 2), *_kernel_rows()]


def topic_names(count: int) -> list[bytes]:
    """Return distinct topics of depth 5 in random order; each of FORMS selects 1% of them."""
    names = mixed_topics(count, lambda i: f"p{i % 10}/q{i // 10 % 10}/r{i // 100 % 10}/s{i // 1000 % 10}/t{i}")
    return [name.encode() for name in names]


def columns_of(count: int) -> MessageColumns:
    """Return QoS 1 messages with random payloads, without topics."""
    columns = MessageColumns(count)
    columns.source = os.urandom(count * PAYLOAD_BYTES)
    starts = array("I", range(0, count * PAYLOAD_BYTES, PAYLOAD_BYTES))
    columns.property_starts[:] = columns.payload_starts[:] = starts.tobytes()
    columns.payload_ends[:] = array("I", [start + PAYLOAD_BYTES for start in starts]).tobytes()
    columns.flags[:] = bytes([1 << QOS_SHIFT]) * count
    return columns


def _fill(where: str, records: int, topics: int, shards: int, segment_bytes: int) -> LogStore:
    """Return a store of sealed segments with records on topics in random order."""
    settings = LogSettings(durability="flush", segment_bytes=segment_bytes, segment_us=HOUR_US, tail_bytes=0)
    store = LogStore.open(where, settings, shards=shards, background=False)
    table = TopicTable()
    ids = [table.intern(name) for name in topic_names(topics)]
    chance = random.Random(2)
    columns = columns_of(RUN)
    now_us = HOUR_US
    for number in range(records // RUN):
        columns.topics[:] = array("I", chance.choices(ids, k=RUN)).tobytes()
        store.append(columns, 0, RUN, now_us + 100 * number, table)
        if number % 10 == 9:
            for log in store.shards:
                log.commit_step()
    for hours in (3, 5):  # a run after so long is the last of its segment, so the run behind it completes that
        store.append(columns, 0, RUN, hours * HOUR_US, table)
        for log in store.shards:
            log.commit_step()
    for log in store.shards:
        while log.seal_step():
            pass
    return store


def _read(store: LogStore, text: str | None) -> tuple[int, float]:
    """Return how many records a reader finds from the beginning to the end, and the CPU time of it."""
    reader = store.reader(None if text is None else [parse_filter(text)])
    positions: Positions = (0,) * len(store.shards)
    found = 0
    start = process_time()
    while True:
        result = reader.read(positions, STEP_RECORDS, STEP_BYTES)
        found += result.count
        positions = result.positions
        if result.caught_up:
            return found, process_time() - start


def _filtered(where: str, records: int, topics: int, shards: int, segment_bytes: int) -> list[Row]:
    store = _fill(where, records, topics, shards, segment_bytes)
    sealed = sum(one.sealed for one in store.statistics())
    texts = (*FORMS, "#", "nope/+/#")
    _read(store, None)
    first = {text: _read(store, text) for text in texts}
    full = min(_read(store, None)[1] for _ in range(ROUNDS))
    best = {text: min(_read(store, text)[1] for _ in range(ROUNDS)) for text in texts}
    behind = dict.fromkeys(FORMS, 1e9)
    for text in FORMS * ROUNDS:
        full = min(full, _read(store, None)[1])
        behind[text] = min(behind[text], _read(store, text)[1])
    store.close()
    what = f"{shards} shard{'s' * (shards > 1)}, {sealed} sealed segment{'s' * (sealed > 1)}"
    note = f"{records:,} records of {PAYLOAD_BYTES} bytes, {topics:,} topics, {what}"
    rows: list[Row] = [("full read, verified, as columns", records / full, "records/s CPU", note)]
    for text in FORMS:
        found, once = first[text]
        more = f"{found:,} records, {best[text] * 1e3:.2f} of {full * 1e3:.1f} ms"
        more += f"; behind a full read {100 * behind[text] / full:.1f} %, first since opening {100 * once / full:.0f} %"
        rows.append((f"filter {text}", 100 * best[text] / full, "% of full", more))
    rows.append(("filter # (everything)", 100 * full / best["#"], "% of full speed", what))
    rows.append(("filter that matches nothing", 1e6 * best["nope/+/#"], "us", what))
    return rows


def _open_segment_rows(records: int) -> list[Row]:
    """Measure sessions that come back for one record each, out of many in a segment that is not sealed."""
    sessions = records // 1000
    with tempfile.TemporaryDirectory(prefix="everlog-bench-") as where:
        settings = LogSettings(durability="flush", segment_bytes=1 << 30)
        store = LogStore.open(where, settings, background=False)
        table = TopicTable()
        crowd = [table.intern(b"crowd/%d" % n) for n in range(sessions)]
        chance = random.Random(4)
        columns = columns_of(RUN)
        for number in range(sessions):
            ids = chance.choices(crowd, k=RUN)
            ids[chance.randrange(RUN)] = table.intern(b"mine/%d" % number)
            columns.topics[:] = array("I", ids).tobytes()
            store.append(columns, 0, RUN, number, table)
            store.shards[0].commit_step()
        times = [_read(store, f"mine/{number}")[1] for number in range(sessions)]
        full = _read(store, None)[1]
        store.close()
    note = f"of {records:,} in an open segment, by {sessions:,} sessions; the first two "
    note += f"{times[0] * 1e3:.0f} and {times[1] * 1e3:.0f} ms, a full read {full * 1e3:.0f} ms"
    return [("one record of a topic", 1e6 * sum(times[2:]) / max(sessions - 2, 1), "us", note)]


def _kernel_rows() -> list[Row]:
    builder, table = RecordBuilder(), TopicTable()
    count = 4_096
    columns = columns_of(count)
    ids = [table.intern(b"t/%d" % n) for n in range(1_000)]
    columns.topics[:] = array("I", random.Random(3).choices(ids, k=count)).tobytes()
    small: list[tuple[Records, bytearray | None]] = []
    for start in range(0, count, 32):
        builder.append(columns, start, start + 32, 5, table)
        small.append((builder.take(start), None))
    whole = gather(small, True)
    wanted = bytearray(n % 10 == 0 for n in range(1_000))
    rows = select(whole, wanted)
    merging = measure(lambda: len(gather(small, True)))
    selecting = measure(lambda: (select(whole, wanted), count)[1])
    gathering = measure(lambda: len(gather([(whole, rows)], True)))
    return [
        ("merge small batches", merging, "records/s CPU", "128 batches of 32 into one"),
        ("select rows by topic", selecting, "records/s CPU", "of 4,096, 10% wanted"),
        ("gather selected rows", gathering, "records/s CPU", "10% of 4,096"),
    ]
