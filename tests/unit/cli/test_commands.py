import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from tests.brokers import RunningBroker
from tests.raw_client import RawClient

import everlog
from everlog.base import EverlogError, StorageError, UsageError
from everlog.cli import COMMANDS, Command, main
from everlog.cli import commands as module
from everlog.store import LogStore

PAGE = (Path(__file__).parents[3] / "docs/reference/cli.md").read_text()


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in list(module.os.environ):
        if name.startswith("EVERLOG_") and name != "EVERLOG_PURE":
            monkeypatch.delenv(name)


def complaint(capsys) -> str:
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("everlog: ")
    assert err.count("\n") == 1
    return err


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"], ["help"]])
def test_help_lists_every_command(capsys, words):
    assert main(words) == 0
    out = capsys.readouterr().out
    for name, command in COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(command.help)}$", out, re.MULTILINE)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(capsys, name):
    assert main([name, "--help"]) == 0
    assert f"everlog {name}" in capsys.readouterr().out


GROUPS = [name for name, command in COMMANDS.items() if command.target.endswith(":app")]


@pytest.mark.parametrize("name", GROUPS)
def test_a_group_of_commands_alone_lists_them(capsys, name):
    assert main([name]) == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"Usage: everlog {name} ")
    assert re.search(r"^Commands:\n  \w", out, re.MULTILINE)
    assert err == ""


@pytest.mark.parametrize("words", [["serve", "-h"], ["help", "serve"], ["log", "topics", "-h"]])
def test_help_is_where_fingers_look_for_it(capsys, words):
    assert main(words) == 0
    assert "Usage: everlog " in capsys.readouterr().out


@pytest.mark.parametrize("option", ["--version", "version"])
def test_the_version_says_whether_kernels_are_compiled(capsys, option):
    assert main([option]) == 0
    assert re.fullmatch(
        rf"everlog {everlog.__version__} \(kernels .*(compiled|interpreted).*\)\n", capsys.readouterr().out
    )


def test_help_loads_no_command():
    heavy = ("everlog.app", "everlog.broker", "asyncio", "argon2")
    code = (
        f"import sys; from everlog.cli import main; main(['--help']); print([m for m in {heavy} if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.endswith("[]\n")


def test_python_dash_m_is_the_same():
    out = subprocess.run([sys.executable, "-m", "everlog", "--version"], capture_output=True, text=True, check=True)
    assert out.stdout.startswith("everlog ")


def test_an_unknown_option_is_one_line_and_code_2(capsys):
    assert main(["serve", "--prot", "1"]) == 2
    assert "try: everlog serve --help" in complaint(capsys)


def test_an_unknown_command_is_one_line_and_code_2(capsys):
    assert main(["srve"]) == 2
    assert "srve" in complaint(capsys)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("bad", hint="do better"), 2),
        (StorageError("bad", hint="do better"), 1),
        (KeyboardInterrupt(), 130),
        (typer.Abort(), 130),
    ],
)
def test_errors_become_exit_codes(monkeypatch, capsys, error, code):
    def fail() -> None:
        raise error

    monkeypatch.setitem(module.COMMANDS, "fail", Command("tests:fail", "Fails."))
    monkeypatch.setattr(Command, "load", lambda self: fail)
    assert main(["fail"]) == code
    if isinstance(error, EverlogError):
        assert complaint(capsys) == "everlog: bad (do better)\n"


def test_a_command_chooses_its_exit_code(monkeypatch):
    monkeypatch.setitem(module.COMMANDS, "seven", Command("tests:seven", "Is 7."))
    monkeypatch.setattr(Command, "load", lambda self: lambda: 7)
    assert main(["seven"]) == 7


INTERRUPTED = """
import runpy, sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupt())
sys.argv = ["everlog", "serve", "--port", "0", "--http-port", "none", "--data", "data"]
runpy.run_module("everlog", run_name="__main__")
"""


@pytest.mark.parametrize("name", ["typer", "everlog.cli.serve", "everlog.app.serve", "uvloop"])
def test_an_interrupt_while_it_starts_is_no_traceback(name):
    ended = subprocess.run([sys.executable, "-c", INTERRUPTED.format(name=name)], capture_output=True, text=True)
    assert ended.returncode == 130
    assert "Traceback" not in ended.stderr


def test_output_that_can_not_be_written_is_one_line_and_an_exit_code(tmp_path):
    LogStore.open(str(tmp_path / "data")).close()
    for words in (["log", "segments", "data"], ["config", "show"], ["--help"]):
        with open("/dev/full", "wb") as full:
            command = [sys.executable, "-m", "everlog", *words]
            ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
        assert ended.stderr == "everlog: the output can't be written: No space left on device\n"
        assert ended.returncode == 1


def test_a_message_that_can_not_be_printed_is_not_counted(tmp_path):
    with RunningBroker() as broker, RawClient(broker.port) as client, open("/dev/full", "wb") as full:
        client.connect("c")
        client.publish("a", b"x", 1, retain=True)
        command = [sys.executable, "-m", "everlog", "sub", "-p", str(broker.port), "-t", "a", "-C", "1"]
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert ended.stderr == "everlog: the output can't be written: No space left on device\n"
    assert ended.returncode == 1


def options_of(name: str) -> set[str]:
    found = COMMANDS[name].load()
    app = found if isinstance(found, typer.Typer) else typer.Typer()
    if app is not found:
        app.command()(found)
    command = typer.main.get_command(app)
    parts = list(getattr(command, "commands", {"": command}).values())
    return {option for part in parts for param in part.params for option in (*param.opts, *param.secondary_opts)}


def section_of(name: str) -> str:
    found = re.search(rf"^## everlog {name}$(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found, f"docs/reference/cli.md has no section '## everlog {name}'"
    return found[1]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_option_is_documented(name):
    text = section_of(name)
    if name in ("pub", "sub"):
        text += re.search(r"### Options of both(.*?)(?=^## )", PAGE, re.MULTILINE | re.DOTALL)[1]
    for option in options_of(name):
        if option.startswith("-") and option not in ("--help", "--install-completion", "--show-completion"):
            assert re.search(rf"`{re.escape(option)}[` ]", text), option


def test_nothing_is_documented_that_does_not_exist():
    assert set(re.findall(r"^## everlog (\w+)$", PAGE, re.MULTILINE)) == set(COMMANDS)
    for name in ("serve", "passwd", "config"):
        for option in re.findall(r"`(--?[a-zA-Z][\w-]*)", section_of(name)):
            assert option in options_of(name), (name, option)
