"""Whatever is appended, in whatever portions, comes back the same, in order, from every way of reading."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st
from tests.shard_logs import columns_of, rows, rows_of
from tests.simulated_disk import SimulatedDisk

from everlog.base import TopicTable
from everlog.commitlog import LogSettings, ShardLog
from everlog.commitlog.mark import Mark, read_slot
from everlog.commitlog.segment_format import Frame, Origin, SegmentHeader, find_frame, read_frame, read_header

U64 = st.integers(0, (1 << 64) - 1)
MESSAGES = st.lists(
    st.tuples(st.sampled_from([b"a", b"b/c", b"\xc3\xa9", b"d" * 300]), st.binary(max_size=80)), min_size=1, max_size=6
)
ACTIONS = st.lists(MESSAGES | st.sampled_from(["commit", "seal", "reopen"]), max_size=25)


@given(ACTIONS, st.integers(200, 3000), st.integers(100, 900), st.sampled_from([0, 50]), st.sampled_from([0, 4000]))
def test_what_goes_in_comes_out(actions: list, segment: int, batch: int, merge: int, tail: int) -> None:
    settings = LogSettings(
        segment_bytes=segment, batch_bytes=batch, merge_below=merge, merge_records=7, tail_bytes=tail
    )
    disk, table, expected = SimulatedDisk(Random(1)), TopicTable(), []
    log = ShardLog.open(disk, "d/s", settings, background=False)
    for time, action in enumerate(actions):
        if action == "commit":
            log.commit_step()
        elif action == "seal":
            log.seal_step()
        elif action == "reopen":
            log.close()
            log = ShardLog.open(disk, "d/s", settings, background=False)
        else:
            assert log.append(columns_of(action, table), 0, len(action), time, table) == len(action)
            expected += [(len(expected) + k, topic, payload) for k, (topic, payload) in enumerate(action)]
        found = rows(log)
        assert found == expected[: log.committed]
        assert log.end == len(expected)
    log.commit_step()
    assert rows(log) == expected
    assert [row for view in log.segments() for row in rows_of(view.read(0, len(view.batches())))] == expected
    log.close()
    assert rows(ShardLog.open(disk, "d/s", settings, writable=False)) == expected


U16, U32 = st.integers(0, 0xFFFF), st.integers(0, 0xFFFFFFFF)


@given(U64, U64, U64, U32, U16, U64, st.builds(Origin, U64, U16, U32))
def test_headers_come_back(
    base: int, created: int, salt: int, generation: int, flags: int, previous: int, origin: Origin
) -> None:
    header = SegmentHeader(base, created, salt, generation, flags, previous, origin)
    assert read_header(header.to_bytes(), "x") == header


@given(st.integers(0, 1 << 50), U64, st.integers(0, 0xFFFFFFFF), st.integers(0, 0x7FFFFFFF), st.booleans(), U64)
def test_frames_come_back(position: int, base: int, size: int, count: int, synced: bool, salt: int) -> None:
    frame = Frame(8 * position, base, size, count, synced)
    raw = frame.to_bytes(salt)
    assert read_frame(raw, 0, 8 * position, salt) == frame
    assert find_frame(bytes(8) + raw, 0, 8 * position - 8, salt) == frame
    assert read_frame(raw, 0, 8 * position + 8, salt) is None


@given(st.tuples(U64, U64, U64, U64, U64, U64, U64))
def test_marks_come_back(fields: tuple[int, ...]) -> None:
    assert read_slot(Mark(*fields).to_bytes(), 0, "mark") == Mark(*fields)
