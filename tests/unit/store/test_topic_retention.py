"""Short-lived topics: what is too old goes out of segments that others keep, and readers never see what is left."""

from collections.abc import Callable
from random import Random
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.messages import Message
from tests.simulated_disk import SimulatedDisk
from tests.stores import PLENTY, Row, append, drain, filters, rows_of, settle, small

from everlog.base import DROPPED, GONE, UsageError
from everlog.commitlog import Disk, SegmentView, verify_directory
from everlog.commitlog.segment_format import THINNED
from everlog.store import LogStore, TopicClasses
from everlog.topics import matches, parse_filter

CLASSES = (("telemetry/#", 1_000), ("audit/#", 50_000))
LATER = 10_000  # when all telemetry is too old, and no audit
SIDE = "/data/shard-0/00000000000000000000.idx"


def open_store(
    disk: Disk, shards: int | None = None, classes: tuple[tuple[str, int | None], ...] = CLASSES, **changes: object
) -> LogStore:
    return LogStore.open(
        "/data", small(**changes), shards=shards, disk=disk, classes=TopicClasses(classes), background=False
    )


def mixed(count: int, share: int = 4) -> list[Message]:
    """Telemetry with large payloads, and one audit message in `share`."""
    return [
        (b"audit/%d" % (n % 3), 2, b"", b"%04d" % n)
        if n % share == 0
        else (b"telemetry/%d" % (n % 5), 0, b"", b"%0300d" % n)
        for n in range(count)
    ]


def filled(disk: Disk, count: int = 120, **changes: object) -> LogStore:
    """One message every 10 us from 1,000 on, in sealed segments but for the last."""
    store = open_store(disk, **{"segment_bytes": 4_000, **changes})  # type: ignore[arg-type]
    for number, message in enumerate(mixed(count)):
        append(store, [message], 1_000 + 10 * number)
        settle(store)
    return store


def told(rows: list[Row]) -> list[tuple[int, bytes]]:
    return [(row[1], row[3]) for row in rows]


def everything(store: LogStore, *texts: str) -> list[Row]:
    start = tuple(log.start for log in store.shards)
    return drain(store.reader(filters(*texts) if texts else None), start)


def sealed_until(store: LogStore, before_us: int) -> int:
    """Where the last sealed segment ends that is wholly older than a time."""
    return max(
        (one.end_offset for one in store.shards[0].segments() if one.sealed and one.last_time < before_us), default=0
    )


def test_the_first_filter_that_matches_decides() -> None:
    classes = TopicClasses([("a/b", 5), ("a/#", None), ("+/b", 7)])
    assert classes.ages_us == (5, None, 7)
    assert list(classes.sort([b"a/b", b"a/c", b"a", b"x/b", b"x", b"$x/b"])) == [1, 2, 2, 3, 0, 0]
    assert classes.sort([]) == b""
    with pytest.raises(UsageError, match="256 classes are too many"):
        TopicClasses([(f"t/{n}", 1) for n in range(256)])


def test_old_topics_go_and_the_others_stay() -> None:
    disk = SimulatedDisk(Random(1))
    store = filled(disk)
    before, size = everything(store), store.statistics()[0].segment_bytes
    thinned = store.thin(1_700 + 1_000)
    end = sealed_until(store, 1_700)
    assert end > 0
    assert sum(one.records for _, one in thinned) == sum(row[1] < end and row[3].startswith(b"tele") for row in before)
    left = [row for row in before if row[1] >= end or row[3].startswith(b"audit")]
    assert everything(store) == left
    assert everything(store, "#") == left
    assert everything(store, "telemetry/#") == [row for row in left if row[3].startswith(b"tele")]
    assert everything(store, "audit/1") == [row for row in left if row[3] == b"audit/1"]
    assert drain(store.reader(None), (3,), 1, 1) == [row for row in left if row[1] >= 3]
    now = store.statistics()[0]
    assert now.segment_bytes == size - sum(one.bytes_before - one.bytes_after for _, one in thinned) < 0.7 * size
    assert (now.start, now.committed, now.damaged, now.distrusted) == (0, 120, 0, 0)
    assert store.thin(1_700 + 1_000) == [], "once is enough"
    store.close()


def test_emptied_records_keep_offset_and_time_and_nothing_else() -> None:
    disk = SimulatedDisk(Random(1))
    store = filled(disk)
    store.thin(LATER)
    log = store.shards[0]
    records = log.read(0, PLENTY)[0]
    for row in records.rows():
        if row[0] % 4:
            assert (row[1], records.table.name(row[2]), *row[3:]) == (1_000 + 10 * row[0], GONE, DROPPED, b"", b"")
    first = log.segments()[0]
    assert all(name == GONE or name.startswith(b"audit") for name in first.table.all_names())
    reader = first._opened()
    assert (reader.header.flags & THINNED, reader.header.generation) == (THINNED, 1)
    store.close()
    assert verify_directory(disk, "/data/shard-0").damage == ()


@pytest.mark.parametrize("loses", ["nothing", "the side file", "all side files"])
def test_a_start_finds_what_was_left(loses: str) -> None:
    disk = SimulatedDisk(Random(1))
    store = filled(disk)
    store.thin(1_700 + 1_000)
    left = everything(store)
    store.close()
    for path in [path for path in disk.files() if path.endswith(".idx")]:
        if loses == "all side files" or (loses == "the side file" and path == SIDE):
            disk.unlink(path)
    store = open_store(disk)
    assert everything(store) == left
    assert everything(store, "telemetry/#", "audit/#") == left
    settle(store)
    store.shards[0].repair()
    assert SIDE in disk.files()
    assert everything(store) == left
    assert everything(store, "telemetry/+") == [row for row in left if row[3].startswith(b"tele")]
    store.close()


def test_a_reader_in_the_middle_of_a_segment_goes_on() -> None:
    store = filled(SimulatedDisk(Random(1)), segment_bytes=8_000)
    before = everything(store)
    texts = (None, ("#",), ("telemetry/#",), ("telemetry/1", "audit/2"), ("audit/#",))
    readers = [store.reader(None if text is None else filters(*text)) for text in texts]
    read = [reader.read((0,), 5, PLENTY) for reader in readers]
    assert store.thin(LATER)
    for text, reader, first in zip(texts, readers, read, strict=True):
        rows = told(rows_of(first) + drain(reader, first.positions, 5))
        wanted = [row for row in before if text is None or any(matches(flt, row[3].decode()) for flt in filters(*text))]
        assert rows == sorted(rows)
        assert set(rows) <= set(told(wanted))
        assert set(rows) >= {one for one in told(wanted) if one[1].startswith(b"audit")}
        again = told(drain(reader, (0,), 5))
        assert again == [one for one in told(wanted) if one in told(everything(store))]
    store.close()


def test_what_is_in_memory_goes_too() -> None:
    store = filled(SimulatedDisk(Random(1)), tail_bytes=1 << 20)
    assert len(everything(store)) == 120
    store.thin(LATER)
    end = sealed_until(store, 1 << 40)
    assert [row[1] for row in everything(store) if row[3].startswith(b"tele") and row[1] < end] == []
    store.close()


def test_a_follower_that_opens_it_later_sees_what_is_left() -> None:
    disk = SimulatedDisk(Random(1))
    store = filled(disk)
    early = LogStore.open("/data", small(), disk=disk, writable=False)
    before = everything(early)
    store.thin(LATER)
    left = everything(store)
    early.refresh()
    assert told(everything(early)) == told(before), "what it has open it goes on reading"
    late = LogStore.open("/data", small(), disk=disk, writable=False)
    assert everything(late) == everything(late, "#") == left
    for one in (early, late, store):
        one.close()


def test_segments_go_when_every_class_in_them_is_too_old() -> None:
    store = filled(SimulatedDisk(Random(1)), retention_us=500)
    store.run_retention(2_000 + 500)
    assert store.shards[0].start == 0, "audit messages keep them"
    (plan,) = store.plan_retention(2_000)
    assert plan.next_us == store.shards[0].segments()[0].last_time + 50_000
    end = sealed_until(store, 1_700)
    store.run_retention(1_700 + 50_000)
    assert store.shards[0].start == end > 0
    store.close()


def test_a_class_that_is_kept_for_ever_keeps_its_segments() -> None:
    store = filled(SimulatedDisk(Random(1)), classes=(("audit/#", None), ("telemetry/#", 5)), retention_us=5)
    store.run_retention(1 << 40)
    assert store.shards[0].start == 0
    store.thin(1 << 40)
    end = sealed_until(store, 1 << 40)
    assert {row[3][:5] for row in everything(store) if row[1] < end} == {b"audit"}
    store.close()


def test_topics_of_no_class_have_the_age_of_all() -> None:
    store = filled(SimulatedDisk(Random(1)), classes=(("audit/#", 50_000),), retention_us=1_000)
    store.thin(1_700 + 1_000)
    end = sealed_until(store, 1_700)
    assert {row[3][:5] for row in everything(store) if row[1] < end} == {b"audit"}
    store.close()


def test_what_is_wholly_too_old_behind_one_that_stays_is_emptied_and_goes_with_it() -> None:
    classes = (("first", 90_000), ("telemetry/#", 100), ("audit/#", 200))
    store = open_store(SimulatedDisk(Random(1)), classes=classes, segment_bytes=4_000, thin_percent=0)
    for number, message in enumerate([(b"first", 0, b"", b"x"), *mixed(120)]):
        append(store, [message], 1_000 + 10 * number)
        settle(store)
    store.thin(50_000)
    end = sealed_until(store, 50_000)
    assert end > 60
    assert [row[3] for row in everything(store) if row[1] < end] == [b"first"]
    store.run_retention(50_000)
    assert store.shards[0].start == 0
    store.run_retention(100_000)
    assert store.shards[0].start >= end
    store.close()


def test_what_is_removed_anyway_is_not_emptied_before() -> None:
    store = filled(SimulatedDisk(Random(1)), classes=(("telemetry/#", 100), ("audit/#", 200)))
    assert store.thin(1 << 40) == []
    store.run_retention(1 << 40)
    assert store.shards[0].start > 60
    store.close()


def test_a_second_class_goes_later() -> None:
    store = filled(SimulatedDisk(Random(1)), classes=(("telemetry/#", 100), ("audit/1", 5_000)), thin_percent=0)
    store.thin(1_700 + 100)
    first = everything(store)
    store.thin(1_700 + 5_000)
    end = sealed_until(store, 1_700)
    left = [row for row in first if not (row[1] < end and row[3] == b"audit/1") and not row[3].startswith(b"tele")]
    assert [row for row in everything(store) if row[3].startswith(b"audit")] == left
    store.close()


def test_nothing_is_rewritten_that_frees_little() -> None:
    store = filled(SimulatedDisk(Random(1)), thin_percent=90)
    before = everything(store)
    assert store.thin(LATER) == []
    assert everything(store) == before
    store.close()


def test_what_no_table_has_stays_as_it_is() -> None:
    store = filled(SimulatedDisk(Random(1)))
    edge = store.shards[0].segments()[2].base_offset
    thinned = store.thin(LATER, (edge + 1,))
    assert [one.end_offset <= edge for _, one in thinned] == [True, True]
    assert all(row[3].startswith(b"audit") == (row[1] % 4 == 0) for row in everything(store))
    assert sum(row[3].startswith(b"tele") for row in everything(store)) == sum(n % 4 != 0 for n in range(edge, 120))
    store.close()


def test_a_damaged_segment_is_not_rewritten() -> None:
    disk = SimulatedDisk(Random(1))
    store = filled(disk)
    view = store.shards[0].segments()[1]
    position = int(view.batches().positions[2]) + 100
    store.close()
    path = f"/data/shard-0/{view.base_offset:020d}.log"
    file = disk.open(path, write=True)
    file.write_at(position, [bytes([file.read_at(position, 1)[0] ^ 0xFF])])
    store = open_store(disk)
    before = disk.files()[path]
    thinned = store.thin(LATER)
    assert thinned
    assert view.base_offset not in {one.base_offset for _, one in thinned}
    assert disk.files()[path] == before
    assert f"{path}.tmp" not in disk.files()
    lost = store.reader(None).read((0,), PLENTY, PLENTY).lost
    assert len(lost) == 1
    assert view.base_offset <= lost[0].from_offset < view.end_offset
    store.close()


def test_a_full_disk_leaves_everything_as_it_was() -> None:
    disk = SimulatedDisk(Random(1))
    store = filled(disk)
    before = everything(store)
    disk.fault = lambda kind, path: 28 if kind == "write" and path.endswith(".log.tmp") else None
    assert store.thin(LATER) == []
    disk.fault = lambda kind, path: None
    assert everything(store) == before
    assert store.shards[0].statistics().seal_failures
    assert not any(path.endswith(".tmp") for path in disk.files())
    store.close()


def stays_from(spans: list[SegmentView], rows: list[Row], is_old: Callable[[Row], bool], shard: int) -> int:
    """Where the first segment begins that not all is too old of: those before it are removed, not emptied."""
    for one in spans:
        if not all(is_old(row) for row in rows if row[0] == shard and one.base_offset <= row[1] < one.end_offset):
            return one.base_offset
    return 1 << 60


names = st.sampled_from([b"a", b"a/b", b"b/a", b"c/c/c", b"$x/a", b"b"])
texts = st.sampled_from(["a", "a/#", "+/a", "#", "c/+/c", "$x/#", "b", "+"])


@patch("everlog.store.sealed_segment.LOOK_AGAIN_RECORDS", 1)
@given(
    shards=st.sampled_from([1, 4]),
    sent=st.lists(st.tuples(names, st.binary(max_size=60), st.integers(0, 30)), min_size=10, max_size=80),
    classes=st.lists(st.tuples(texts, st.none() | st.integers(1, 900)), min_size=1, max_size=3),
    default=st.none() | st.integers(1, 900),
    asked=st.lists(st.lists(texts, min_size=1, max_size=2), min_size=1, max_size=3),
    later=st.integers(0, 1_200),
    merge_below=st.sampled_from([0, 30]),
    reopen=st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_what_is_read_after_thinning_is_what_was_before_without_what_is_too_old(
    shards: int,
    sent: list[tuple[bytes, bytes, int]],
    classes: list[tuple[str, int | None]],
    default: int | None,
    asked: list[list[str]],
    later: int,
    merge_below: int,
    reopen: bool,
) -> None:
    disk = SimulatedDisk(Random(1))
    sizes = {"segment_bytes": 700, "merge_below": merge_below, "thin_percent": 0, "retention_us": default}
    store = open_store(disk, shards, tuple(classes), **sizes)
    now = 1_000
    for topic, payload, pause in sent:
        append(store, [(topic, 0, b"", payload)], now)
        settle(store)
        now += pause
    before = everything(store)
    readers = [store.reader(filters(*text)) for text in asked]
    for reader in readers:
        reader.read((0,) * shards, 3, PLENTY)
    segments = [[one for one in log.segments() if one.sealed] for log in store.shards]
    now += later
    store.thin(now)

    def is_old(row: Row) -> bool:
        age = next((age for text, age in classes if matches(parse_filter(text), row[3].decode())), default)
        last = next((one.last_time for one in segments[row[0]] if one.base_offset <= row[1] < one.end_offset), None)
        return age is not None and last is not None and last < now - age

    goes = [stays_from(log_segments, before, is_old, shard) for shard, log_segments in enumerate(segments)]
    left = [row for row in before if row[1] < goes[row[0]] or not is_old(row)]
    if reopen:
        store.close()
        store = open_store(disk, None, tuple(classes), **sizes)
    assert sorted(everything(store)) == sorted(left)
    for text in asked:
        wanted = [row for row in left if any(matches(flt, row[3].decode()) for flt in filters(*text))]
        assert sorted(drain(store.reader(filters(*text)), (0,) * shards, 7)) == sorted(wanted)
    assert all(one.damaged == one.distrusted == 0 for one in store.statistics())
    store.close()
