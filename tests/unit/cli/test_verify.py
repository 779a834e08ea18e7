"""`everlog verify` finds damage and says where; `everlog repair` makes side files again."""

from contextlib import closing
from pathlib import Path

import pytest
from tests.twins import AMBIENT

from everlog.cli import main
from everlog.commitlog import LogSettings
from everlog.store import LogStore


def make_store(directory: Path, batches: int, shards: int | None = None) -> None:
    """A store of several small segments, closed in order."""
    store = LogStore.open(str(directory), LogSettings(durability="flush", segment_bytes=2000), shards=shards)
    table = AMBIENT.TopicTable(1)
    decoder = AMBIENT.Decoder(AMBIENT.MessageColumns(8), table, version=4)
    for number in range(batches):
        (run,) = decoder.feed(b"\x30\x64\x00\x01" + b"%c%097d" % (ord("a") + number % 26, number))
        ((shard, end),) = store.append(run.columns, run.start, run.stop, number, table)
        store.commit()
        store.shards[shard].wait_committed(end, 10)
    store.close()


def damage(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 0xFF
    path.write_bytes(bytes(content))


def test_a_whole_store_has_no_damage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_store(tmp_path / "data", 50)
    assert main(["verify", str(tmp_path / "data")]) == 0
    assert "50" in capsys.readouterr().out


def test_damage_is_named_with_file_and_position(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_store(tmp_path / "data", 50)
    segment = sorted((tmp_path / "data/shard-0").glob("*.log"))[0]
    damage(segment, segment.stat().st_size // 2)
    assert main(["verify", str(tmp_path / "data")]) == 1
    assert f"{segment} at byte" in capsys.readouterr().out


def test_repair_makes_a_damaged_side_file_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_store(tmp_path / "data", 50)
    side = sorted((tmp_path / "data/shard-0").glob("*.idx"))[0]
    before = side.read_bytes()
    damage(side, len(before) // 2)
    assert main(["verify", str(tmp_path / "data")]) == 1
    assert main(["repair", str(tmp_path / "data")]) == 0
    assert "rebuilt" in capsys.readouterr().out
    assert main(["verify", str(tmp_path / "data")]) == 0


def test_a_directory_without_a_store_is_refused_with_a_hint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(tmp_path)]) == 2
    assert "holds no store" in capsys.readouterr().err


def test_a_missing_segment_is_told_by_verify_and_by_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    make_store(tmp_path / "data", 60)
    _, second, third, *_ = sorted((tmp_path / "data/shard-0").glob("*.log"))
    second.unlink()
    lost = f"offsets {int(second.stem)} to {int(third.stem) - 1} are not readable"
    assert main(["verify", str(tmp_path / "data")]) == 1
    assert f"missing or cut short; restore it from a backup; {lost}" in capsys.readouterr().out
    with closing(LogStore.open(str(tmp_path / "data"))) as store:
        assert store.statistics()[0].damaged == 1
        (result,) = [(one.from_offset, one.to_offset) for one in store.reader(None).read((0,), 1 << 20, 1 << 20).lost]
    assert result == (int(second.stem), int(third.stem))
    (line,) = caplog.messages
    assert line.startswith(f"shard 0: {third} at byte ")
    assert lost in line


def test_a_missing_last_segment_is_told_by_verify(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_store(tmp_path / "data", 50)
    last = sorted((tmp_path / "data/shard-0").glob("*.log"))[-1]
    last.unlink()
    assert main(["verify", str(tmp_path / "data")]) == 1
    assert f"{last} at byte 0: this segment is missing; restore it" in capsys.readouterr().out


@pytest.mark.parametrize("suffixes", [(".log",), (".log", ".idx")])
def test_files_swapped_between_shards_are_told_and_not_served(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, suffixes: tuple[str, ...]
) -> None:
    make_store(tmp_path / "data", 400, shards=4)
    one, other = (sorted((tmp_path / f"data/shard-{shard}").glob("*.log"))[0] for shard in (1, 3))
    assert one.name == other.name
    with closing(LogStore.open(str(tmp_path / "data"), writable=False)) as store:
        before = contents(store)
    for suffix in suffixes:
        one.with_suffix(suffix).rename(tmp_path / "kept")
        other.with_suffix(suffix).rename(one.with_suffix(suffix))
        (tmp_path / "kept").rename(other.with_suffix(suffix))
    assert main(["verify", str(tmp_path / "data")]) == 1
    printed = capsys.readouterr().out
    for path in (one, other):
        assert f"{path} at byte 0: this file is another segment's or another shard's" in printed
    for writable in (False, True):
        with closing(LogStore.open(str(tmp_path / "data"), writable=writable)) as store:
            found = contents(store)
            assert [numbers.damaged for numbers in store.statistics()] == [0, 1, 0, 1]
        assert found < before
        assert {key for key, _ in before - found} == {
            (shard, offset)
            for shard in (1, 3)
            for offset in range(int(sorted((tmp_path / f"data/shard-{shard}").glob("*.log"))[1].stem))
        }
    assert len(caplog.messages) == 2


def contents(store: LogStore) -> set[tuple[tuple[int, int], bytes]]:
    """Return the payload of every record by shard and offset."""
    found = set()
    for batch in store.reader(None).read((0,) * len(store.shards), 1 << 20, 1 << 24).batches:
        for row in batch.row_numbers():
            record = batch.records.row(row)
            found.add(((batch.shard, record[0]), bytes(record[5])))
    return found
