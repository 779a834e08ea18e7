"""A store's table that other programs of Delta rewrote: rows deleted, files put in another order, shards mixed."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from deltalake import DeltaTable
from tests.spark.frames import compact, planned, rows
from tests.spark.lake_data import cold_rows, fill, messages

from everlog.spark import LakeStore, locate
from everlog.topics import matches, parse_filter

SENT = messages(1200)
FILTER = "site/0/#"
GONE = SENT[0].topic
Row = tuple[int, int, int, str]


def frame_rows(data: Path, **options: str | tuple[str, ...]) -> list[Row]:
    found = rows(planned(data, **options), ("shard", "offset", "timestamp", "topic"), options.get("filters"))
    times = found["timestamp"].cast("int64").to_pylist()
    columns = (found["shard"].to_pylist(), found["offset"].to_pylist(), times, found["topic"].to_pylist())
    return sorted(zip(*columns, strict=True))


@pytest.fixture(params=["deleted", "z-ordered", "both"])
def rewritten(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, list[Row]]:
    """A store in two shards, whose table was rewritten, and the rows that are left."""
    fill(tmp_path, SENT, shards=2, step_us=333)
    compact(tmp_path, everything=True)
    known = frame_rows(tmp_path)
    assert len(known) == len(SENT)
    table = DeltaTable(str(tmp_path / "lake"))
    if request.param != "z-ordered":
        table.delete(f"topic = '{GONE}'")
        known = [row for row in known if row[3] != GONE]
    if request.param != "deleted":
        DeltaTable(str(tmp_path / "lake")).optimize.z_order(["topic"])
    return tmp_path, known


def test_a_rewritten_table_is_read_right(rewritten: tuple[Path, list[Row]]) -> None:
    data, known = rewritten
    assert frame_rows(data) == known
    wanted = [row for row in known if matches(parse_filter(FILTER), row[3])]
    assert frame_rows(data, filters=(FILTER,)) == wanted
    times = sorted({row[2] for row in known})
    for time_us in (times[1], times[8] - 1, times[8], times[8] + 1, times[-1]):
        text = datetime.fromtimestamp(time_us / 1e6, UTC).isoformat()
        assert frame_rows(data, begin=text) == [row for row in known if row[2] >= time_us]
        assert frame_rows(data, end=text) == [row for row in known if row[2] < time_us]


def test_a_broker_replays_a_rewritten_table(rewritten: tuple[Path, list[Row]]) -> None:
    data, known = rewritten
    cold = LakeStore(locate(str(data / "lake")))
    for shard in (0, 1):
        own = [(row[1], row[2], row[3].encode()) for row in known if row[0] == shard]
        assert [row[:3] for row in cold_rows(cold, shard)] == own
        wanted = [row for row in own if matches(parse_filter(FILTER), row[2].decode())]
        assert [row[:3] for row in cold_rows(cold, shard, [parse_filter(FILTER)])] == wanted
        for offset, time_us, _ in (own[0], own[100], own[-1]):
            assert cold.position_at(shard, time_us) <= offset
            first = next(row[0] for row in own if row[1] >= time_us)
            assert cold.position_at(shard, time_us) == first
    cold.close()


def test_compaction_goes_on_with_a_rewritten_table(rewritten: tuple[Path, list[Row]]) -> None:
    data, known = rewritten
    fill(data, SENT[:100], shards=2, first_us=known[-1][2] + 10_000_000)
    made = compact(data, everything=True, merge=True)
    found = frame_rows(data)
    assert len(found) == len(known) + 100
    assert [row for row in found if row in set(known)] == known
    assert not made.lost()
