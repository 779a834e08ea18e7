"""Reads of topics that the broker's settings do not keep: they say so, and read what there is."""

from pathlib import Path

import pytest

from everlog.cli.spark.job_options import JobOptions
from everlog.cli.spark.job_session import report_lost
from everlog.spark.frame_plan import unkept_in
from everlog.spark.source_options import read_options
from everlog.store import KeepRules, LogStore, say_unkept, write_keep_rules


@pytest.fixture
def data(tmp_path: Path) -> str:
    path = str(tmp_path / "data")
    LogStore.open(path).close()
    return path


def test_a_frame_of_what_nothing_keeps_says_so(data: str) -> None:
    everything, some = read_options({"path": data}), read_options({"path": data, "topic": '["a/#", "b"]'})
    assert unkept_in(everything) == unkept_in(some) == []  # no broker has said what it keeps
    write_keep_rules(data, KeepRules(filters=("a/+",)))
    assert unkept_in(everything) == []
    assert unkept_in(some) == [say_unkept("b")]
    write_keep_rules(data, KeepRules())
    assert unkept_in(everything) == [say_unkept("#")]
    assert unkept_in(read_options({"path": "s3://bucket/table", "topic": "b"})) == []


def test_a_job_over_what_nothing_keeps_says_so(data: str, capsys: pytest.CaptureFixture[str]) -> None:
    write_keep_rules(data, KeepRules(filters=("#",), never=("response/#",)))
    report_lost(JobOptions(data=data))
    report_lost(JobOptions(data=data, topics=["a"]))
    assert capsys.readouterr().out == ""
    report_lost(JobOptions(data=data, topics=["response/c/#"]))
    assert capsys.readouterr().out == f"{say_unkept('response/c/#')}\n"
