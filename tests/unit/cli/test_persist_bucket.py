"""`everlog persist verify` and `restore`, `everlog stream restore`, on a bucket in a directory."""

import json
import sqlite3
from pathlib import Path

import pytest
from tests.tiered_owner import QUICK

import everlog
from everlog.app import embedded
from everlog.cli import main
from everlog.persist import LocalShards
from everlog.tiering import DirectoryBucket


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A data directory with two streams, and its bucket, which has them too."""
    data, bucket = tmp_path / "data", tmp_path / "bucket"

    def opened(directory: str, clock: embedded.WallClock, shards: int | None) -> LocalShards:
        return LocalShards(directory, clock, shards, QUICK, DirectoryBucket(bucket))

    monkeypatch.setattr(embedded, "LocalShards", opened)
    with everlog.open(str(data)) as client:
        for n in range(5):
            client.stream("a").append(b"%d" % n, level=everlog.client.Level.ARCHIVED if n == 4 else None)
        client.stream("b").append(b"x", level=everlog.client.Level.ARCHIVED)
    return data, bucket


def test_what_is_whole_is_said_to_be(places: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    data, bucket = places
    assert main(["persist", "verify", "--bucket", str(bucket), "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert (json.loads(line)["records"], json.loads(line)["damage"]) == (6, [])
    assert main(["persist", "verify", "--data", str(data)]) == 0
    assert main(["persist", "verify"]) == 2
    assert "--bucket" in capsys.readouterr().err


def test_damage_is_printed_with_its_place(places: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    _, bucket = places
    journal = max((bucket / "shard-0/journal").iterdir(), key=lambda path: path.stat().st_size)
    content = bytearray(journal.read_bytes())
    content[-5] ^= 1
    journal.write_bytes(bytes(content))
    assert main(["persist", "verify", "--bucket", str(bucket)]) == 1
    assert f"shard-0/journal/{journal.name}, positions " in capsys.readouterr().out


def test_a_stream_and_a_directory_are_restored(
    places: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, bucket = places
    file = tmp_path / "a.db"
    assert main(["stream", "restore", "a", str(file), "--bucket", str(bucket), "--seq", "3"]) == 0
    assert "3 messages up to seq 3" in capsys.readouterr().out
    connection = sqlite3.connect(file)
    assert connection.execute("SELECT value FROM messages ORDER BY seq").fetchall() == [(b"0",), (b"1",), (b"2",)]
    connection.close()
    assert main(["stream", "restore", "a", str(file), "--bucket", str(bucket)]) == 2
    assert main(["stream", "restore", "a", f"{file}2", "--bucket", str(bucket), "--time", "soon"]) == 2
    assert main(["stream", "restore", "a", f"{file}2", "--bucket", str(bucket), "--time", "2001-01-01T00:00:00Z"]) == 2
    capsys.readouterr()
    assert main(["persist", "restore", "--bucket", str(bucket), "--data", str(tmp_path / "new"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["end"] == 6
    with everlog.open(str(tmp_path / "new")) as client:
        assert client.stream("a").get(5).value == b"4"
        assert client.stream("a").append(b"5").seq == 6
