"""The commands of `everlog spark`, as a user calls them."""

import io
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyspark.sql import SparkSession
from tests.listening import eventually
from tests.spark.history import T0_US, Sent, write_store

from everlog.cli import main
from everlog.cli.spark.progress_bar import SparkProgress
from everlog.spark.jobs import Drawing, Grid, read_structure, render
from everlog.spark.jobs.charts import bars, hour_map, timeline
from everlog.spark.jobs.history_summary import moment

HOUR_US = 3_600_000_000


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sent = [
        Sent(T0_US + n * 60_000_000, f"plant/{('rome', 'oslo')[n % 2]}/sensor/{n % 30}", b"x" * n) for n in range(240)
    ]
    return write_store(tmp_path_factory.mktemp("commands") / "data", sent)


class Page(HTMLParser):
    """Checks that every tag is closed, and gathers what a page would fetch."""

    EMPTY = ("meta", "line", "rect", "br")

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []
        self.text = ""
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.fetched += [value or "" for name, value in attributes if name in ("src", "href")]
        if tag not in ("meta", "line"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_structure_is_shown_written_and_used_by_stats(
    spark: SparkSession, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "structure.html"
    assert main(["spark", "structure", str(store), "--html", str(page)]) == 0
    assert "plant/{2 values}/sensor/{number}" in capsys.readouterr().out
    assert "plant/{2 values}/sensor/{number}" in Page(page.read_text()).text
    known = read_structure(store / "structure.json")
    assert known is not None
    assert [shape.topics for shape in known.shapes] == [30]

    result = tmp_path / "stats.json"
    page = tmp_path / "stats.html"
    assert main(["spark", "stats", str(store), "--by", "shape", "--json", str(result), "--html", str(page)]) == 0
    (key,) = json.loads(result.read_text())["keys"]
    assert (key["key"], key["messages"], key["bytes"]) == ("plant/{2 values}/sensor/{number}", 240, sum(range(240)))
    found = Page(page.read_text())
    assert "2026-01-05" in found.text
    assert found.fetched == []


def test_a_structure_of_a_part_is_not_left_for_compaction(
    spark: SparkSession, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (store / "structure.json").unlink(missing_ok=True)
    assert main(["spark", "structure", str(store), "-t", "plant/rome/#"]) == 0
    assert "plant/rome/sensor/{number}" in capsys.readouterr().out
    assert not (store / "structure.json").exists()
    assert main(["spark", "structure", str(store), "-t", "plant/rome/#", "--json", str(tmp_path / "part.json")]) == 0
    assert read_structure(tmp_path / "part.json") is not None


def test_stats_of_a_part(spark: SparkSession, store: Path, tmp_path: Path) -> None:
    result = tmp_path / "stats.json"
    words = ["--from", "2026-01-05T01:00:00Z", "--to", "2026-01-05T02:00:00Z", "-t", "plant/oslo/#", "--by", "2"]
    assert main(["spark", "stats", str(store), *words, "--json", str(result)]) == 0
    found = json.loads(result.read_text())
    assert [(key["key"], key["messages"]) for key in found["keys"]] == [("plant/oslo/#", 30)]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["stats", "DATA", "--by", "colour"], "nothing to count by"),
        (["stats", "DATA", "-t", "a/#/b"], "not alone in the last level"),
        (["stats", "DATA", "--from", "someday"], "someday"),
        (["stats", "/nowhere"], "holds no store"),
        (["stats", "DATA", "--conf", "x"], "not KEY=VALUE"),
        (["replay", "DATA", "--speed", "0"], "not a speed"),
    ],
)
def test_what_can_not_be_is_refused_in_one_line(
    spark: SparkSession, store: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert main(["spark", *(str(store) if word == "DATA" else word for word in words)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("everlog: ")
    assert error.count("\n") == 1


@pytest.mark.parametrize("name", ["pyspark", "pyarrow", "pandas"])
def test_a_missing_extra_is_named(
    store: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    for words in (["structure", str(store)], ["replay", str(store)], ["shell"], ["audit", str(store)]):
        assert main(["spark", *words]) == 2
        assert f"{name} is not installed (pip install 'everlog[spark]')" in capsys.readouterr().err


def test_the_shell_runs_a_script_in_a_session_of_its_own(store: Path) -> None:
    script = """
sql("SELECT count(*) AS many FROM messages")
print(topics.where("topic like '%oslo%'").agg(F.sum("messages")).first()[0], spark.version)
"""
    command = [sys.executable, "-m", "everlog", "spark", "shell", str(store), "--master", "local[1]"]
    done = subprocess.run(command, input=script, capture_output=True, text=True, check=False, timeout=280)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"\|240 +\|", done.stdout)
    assert "\n120 4." in done.stdout


def test_a_failing_script_is_an_error(spark: SparkSession, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("print(1)\nraise ValueError('mine')"))
    with pytest.raises(ValueError, match="mine"):
        main(["spark", "shell", str(store)])


class Terminal(io.StringIO):
    """A terminal that remembers what was written to it."""

    def isatty(self) -> bool:
        return True


class Tracker:
    """What Spark says of its stages: one that is done, one that is half done."""

    def __init__(self) -> None:
        self.active = [1]

    def getActiveStageIds(self) -> list[int]:
        return self.active

    def getStageInfo(self, stage: int) -> SimpleNamespace:
        return SimpleNamespace(numTasks=4, numCompletedTasks=4 if stage == 1 else 2)


def test_the_progress_bar_counts_the_tasks_of_all_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    screen, tracker = Terminal(), Tracker()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("everlog.cli.spark.progress_bar._terminal", lambda: screen)
    session = SimpleNamespace(sparkContext=SimpleNamespace(statusTracker=lambda: tracker))
    monkeypatch.setattr(screen, "close", lambda: None)
    with SparkProgress() as bar:
        bar.step("counting")
        bar.watch(session)  # type: ignore[arg-type]
        eventually(lambda: "4/4" in screen.getvalue(), "the first stage is shown")
        tracker.active = [2]
        eventually(lambda: "6/8" in screen.getvalue(), "both stages are shown")
    assert "counting" in screen.getvalue()


def test_a_page_obeys_nothing_that_a_publisher_wrote() -> None:
    evil = '<script src="//x">alert(1)</script>'
    html = render(
        evil, evil, [(evil, evil)], [Grid(evil, (evil,), ((evil,),), evil), Drawing(evil, bars([(evil, 1.0)]), evil)]
    )
    assert "<script" not in html
    assert Page(html).fetched == []


def test_hours_of_a_long_history_are_shown_by_the_day_of_the_week() -> None:
    short = {moment(T0_US + n * HOUR_US): n + 1 for n in range(30)}
    assert "2026-01-06 05:00 UTC: 30<" in hour_map(short)
    long = {moment(T0_US + n * 24 * HOUR_US): 1 for n in range(70)}
    assert "Monday 00:00 UTC: 10<" in hour_map(long)
    assert hour_map({}).startswith("<svg")


def test_a_line_of_time_has_a_mark_for_each_step_that_has_any() -> None:
    points = [(moment(T0_US), 5), (moment(T0_US + 3 * HOUR_US), 10)]
    assert timeline(points, 3600).count("<rect") == 2
    assert timeline([], 1) == ""
