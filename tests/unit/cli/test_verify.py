"""`everlog verify` finds damage and says where; `everlog repair` makes side files again."""

from pathlib import Path

import pytest
from tests.twins import AMBIENT

from everlog.cli import main
from everlog.commitlog import LogSettings
from everlog.store import LogStore


def make_store(directory: Path, batches: int) -> None:
    """A store of several small segments, closed in order."""
    store = LogStore.open(str(directory), LogSettings(durability="flush", segment_bytes=2000))
    table = AMBIENT.TopicTable(1)
    decoder = AMBIENT.Decoder(AMBIENT.MessageColumns(8), table, version=4)
    for number in range(batches):
        (run,) = decoder.feed(b"\x30\x64\x00\x01t" + b"%097d" % number)
        ((_, end),) = store.append(run.columns, run.start, run.stop, number, table)
        store.commit()
        store.shards[0].wait_committed(end, 10)
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
