"""`everlog spark compact` and `everlog spark vacuum`, as a user calls them."""

import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.spark.lake_data import DAY_US, NOON_US, cold_rows, fill, log_rows, messages

from everlog.cli import main
from everlog.spark import LakeStore, locate
from everlog.store import read_lake_record


def ends(data: Path) -> dict[int, int]:
    record = read_lake_record(str(data))
    return {} if record is None else record.ends


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def check_rows(data: Path, table: Path) -> None:
    cold = LakeStore(locate(str(table)))
    for shard, end in ends(data).items():
        assert cold.end(shard) == end
        assert cold_rows(cold, shard) == log_rows(data, shard, end)


def test_compact_fills_the_usual_table_and_says_how_far(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(tmp_path, messages(2_000), shards=2)
    assert main(["spark", "compact", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert f"{sum(ends(tmp_path).values()):,} rows in 2 files" in said
    check_rows(tmp_path, tmp_path / "lake")
    assert {name: mode_of(tmp_path / name) for name in ("lake", "lake.json")} == {"lake": 0o700, "lake.json": 0o600}
    assert main(["spark", "compact", str(tmp_path)]) == 0
    assert "0 rows in 0 files" in capsys.readouterr().out


def test_a_table_that_was_named_once_is_found_again(spark: SparkSession, tmp_path: Path) -> None:
    data, table = tmp_path / "data", tmp_path / "elsewhere"
    fill(data, messages(1_000))
    assert main(["spark", "compact", str(data), "--table", str(table), "--codec", "snappy"]) == 0
    assert main(["spark", "compact", str(data), "--all"]) == 0
    assert ends(data) == {0: 1_000}
    assert not (data / "lake").exists()
    check_rows(data, table)


def test_merge_and_retain_are_done_in_one_go(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    yesterday = (time.time_ns() // 1000 // DAY_US - 1) * DAY_US
    published = messages(600)
    for number, first in enumerate((yesterday - 9 * DAY_US, yesterday, yesterday + 1_000_000)):
        fill(tmp_path, published[200 * number : 200 * (number + 1)], first_us=first)
        assert main(["spark", "compact", str(tmp_path), "--all"]) == 0
    capsys.readouterr()
    assert main(["spark", "compact", str(tmp_path), "--all", "--merge", "--retain", "7d"]) == 0
    assert "2 files merged, 1 dropped" in capsys.readouterr().out
    assert LakeStore(locate(str(tmp_path / "lake"))).start(0) == 200


def test_vacuum_says_what_it_removes(tmp_path: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    fill(tmp_path, messages(1_000))
    assert main(["spark", "compact", str(tmp_path)]) == 0
    left = next((tmp_path / "lake").glob("day=*")) / "shard-0-left.parquet"
    left.write_bytes(b"half")
    os.utime(left, (NOON_US / 1e6,) * 2)
    capsys.readouterr()
    assert main(["spark", "vacuum", str(tmp_path), "--dry-run"]) == 0
    assert "1 file would be removed" in capsys.readouterr().out
    assert main(["spark", "vacuum", "--table", str(tmp_path / "lake")]) == 0
    assert "1 file removed" in capsys.readouterr().out
    assert not left.exists()
    check_rows(tmp_path, tmp_path / "lake")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["compact", "DATA", "--codec", "lzma"], "not known"),
        (["compact", "DATA", "--retain", "1h"], "whole days"),
        (["compact", "DATA", "--table", "ftp://x"], "not a place"),
        (["compact", "DATA", "--option", "x"], "NAME=VALUE"),
        (["vacuum"], "no table"),
        (["vacuum", "DATA"], "holds no table"),
    ],
)
def test_what_can_not_be_is_refused_in_one_line(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    fill(tmp_path, messages(10))
    assert main(["spark", *(str(tmp_path) if word == "DATA" else word for word in words)]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_damage_is_named_and_the_exit_code_tells(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(tmp_path, messages(2_000))
    path = sorted((tmp_path / "shard-0").glob("*.log"))[1]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    assert main(["spark", "compact", str(tmp_path)]) == 1
    assert path.name in capsys.readouterr().err
    assert ends(tmp_path) == {}
    assert main(["spark", "compact", str(tmp_path), "--skip-damaged"]) == 1
    assert f"left out: {path}" in capsys.readouterr().out
    assert ends(tmp_path)


@pytest.mark.slow
def test_follow_goes_on_with_what_is_sealed_later_until_interrupted(tmp_path: Path) -> None:
    published = messages(2_000)
    fill(tmp_path, published[:1_000])
    words = [sys.executable, "-m", "everlog", "spark", "compact", str(tmp_path)]
    process = subprocess.Popen(
        [*words, "--follow", "--every", "100ms", "--master", "local[1]"], stdout=subprocess.PIPE, text=True
    )
    try:
        wait_for(lambda: 0 in ends(tmp_path), process)
        first = ends(tmp_path)[0]
        fill(tmp_path, published[1_000:], first_us=NOON_US + DAY_US)
        wait_for(lambda: ends(tmp_path)[0] > first, process)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 0
    assert f"{ends(tmp_path)[0]:,} rows in" in out
    check_rows(tmp_path, tmp_path / "lake")


def wait_for(happened: Callable[[], bool], process: "subprocess.Popen[str]") -> None:
    until = time.monotonic() + 200
    while not happened():
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.05)
