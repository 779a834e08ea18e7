"""A newcomer's path: README and how-tos are followed to the letter, and `--help` of every command is there."""

import re
from pathlib import Path

import pytest
from tests.system.terminal import Terminal, blocks, can_have_networks, commands

from everlog.cli import main
from everlog.cli.commands import COMMANDS

TOP = Path(__file__).parents[2]
PAGES = {
    "README.md": 5,
    "docs/howto/configure.md": 12,
    "docs/howto/replay.md": 13,
    "docs/howto/tls.md": 11,
    "docs/howto/websocket.md": 2,
    "docs/howto/authentication.md": 1,
}
ELSEWHERE = ("everlog spark", "npm ", "node ", "kill ")  # Spark has tests of its own; no packages are fetched here
CHANGING = re.compile(r"^everlog \d|^  (data|retention|kernels|http) ")  # lines that differ by machine
SECURE = "everlog serve --data wss-data"  # with the certificate of another page


@pytest.mark.skipif(not can_have_networks(), reason="no network of its own for the test")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name == "README.md" else pytest.mark.soak) for name in PAGES]
)
def test_a_page_can_be_followed(tmp_path: Path, name: str) -> None:
    page = (TOP / name).read_text()
    followed = 0
    with Terminal(tmp_path) as terminal:
        for kind, block in blocks(page):
            if kind == "toml" and "segment_bytes" in block:
                (tmp_path / "everlog.toml").write_text(block)
            elif kind == "" and block.startswith("user *"):
                (tmp_path / "acl").write_text(block)
            elif kind in ("sh", "console") and "npm install" not in block:
                for line, said in commands(kind, block):
                    if any(part in line for part in ELSEWHERE) or line.startswith(SECURE):
                        continue
                    if "--config other.toml" in line:
                        (tmp_path / "other.toml").write_text("")
                    terminal.follow(line, [one for one in said if not CHANGING.search(one)])
                    followed += 1
    assert followed == PAGES[name]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_says_what_it_is_for(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    assert "Usage: everlog" in capsys.readouterr().out
