"""`make test` names in its last lines what failed, in whichever part, and fails."""

import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools/run_tests.py"
PASSES = "def test_passes(): pass\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for folder in ("unit", "contracts", "fuzz", "properties"):
        (tmp_path / "tests" / folder).mkdir(parents=True)
        (tmp_path / "tests" / folder / f"test_{folder}.py").write_text(PASSES)
    return tmp_path


def run(project: Path) -> tuple[int, list[str]]:
    done = subprocess.run(
        [sys.executable, str(TOOL), "units", "interpreted"], cwd=project, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout.splitlines()


def test_parts_that_pass_are_counted(project: Path) -> None:
    status, lines = run(project)
    assert (status, lines[-1]) == (0, "7 tests, 0 of 2 parts failed")


def test_what_failed_stands_in_the_last_lines(project: Path) -> None:
    (project / "tests/properties/test_more.py").write_text(PASSES + "def test_fails(): assert 1 == 2\n")
    status, lines = run(project)
    assert status == 1
    assert lines[-2:] == [
        "FAILED in units: tests/properties/test_more.py::test_fails - assert 1 == 2",
        "9 tests, 1 of 2 parts failed",
    ]
    assert "units: FAILED tests/properties/test_more.py::test_fails" in lines
    assert (project / "build/tests/interpreted.log").exists()


def test_a_run_that_broke_down_is_named_too(project: Path) -> None:
    (project / "tests/fuzz/conftest.py").write_text("import os; os._exit(7)\n")
    status, lines = run(project)
    assert status == 1
    assert lines[-3:-1] == [
        "FAILED in units: pytest ended with status 7",
        "FAILED in interpreted: pytest ended with status 7",
    ]
