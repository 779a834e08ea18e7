"""The tutorial of the to-do list: its programs and its commands do what it says."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from tests.system.serving import Served

from everlog.cli import main

PAGE = (Path(__file__).parents[2] / "docs" / "tutorial" / "to-do-list.md").read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_commands_print_what_the_page_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
    steps = [step.split("\n", 1) for block in blocks for step in re.split(r"^\$ ", block, flags=re.MULTILINE) if step]
    with Served(tmp_path / "data") as broker:
        checked = 0
        for line, said in steps:
            words = shlex.split(line.replace("to-do.db", str(tmp_path / "to-do.db")))
            if words[0] != "everlog" or words[1] == "serve" or words[2] == "watch":
                continue
            capsys.readouterr()
            main([*words[1:], "--bus", f"mqtt://127.0.0.1:{broker.port}", "--timeout", "60"])
            found = capsys.readouterr()
            assert plain(found.out + found.err, tmp_path) == plain(said, tmp_path), line
            checked += 1
        assert checked == 10


def plain(text: str, folder: Path) -> str:
    """A text without what is different each time."""
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME", text.replace(f"{folder}/", ""))
    return re.sub(r"[\d,]+ bytes", "SIZE", text).strip()


def test_the_programs_run(tmp_path: Path) -> None:
    with Served(tmp_path / "data") as broker:
        program = tmp_path / "todo.py"
        program.write_text(PROGRAMS[0].replace("1883", str(broker.port)))
        run = [sys.executable, str(program), "anne"]
        subprocess.run(run, input=b"first\nsecond\n\n", check=True, timeout=120)
        shown = subprocess.run(run, input=b"third\n\n", check=True, timeout=120, stdout=subprocess.PIPE).stdout
        assert set(shown.split(b"\n")) <= {b"", b"1: first (anne)", b"2: second (anne)", b"3: third (anne)"}
    program.write_text(PROGRAMS[1])
    found = subprocess.run(
        [sys.executable, str(program)], cwd=tmp_path, check=True, stdout=subprocess.PIPE, timeout=120
    )
    assert found.stdout == b"[b'fix the door']\n"
