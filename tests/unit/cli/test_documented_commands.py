"""Every `everlog` command of README, how-tos, tutorials and reference is one that the command line takes.

What the commands do is shown where pages are followed: `tests/system/test_newcomer.py`, `test_howto_pages.py`,
`test_reference_commands.py`, `test_to_do_tutorial.py` and `tests/spark`. Here all of them, also of pages that need a
bucket, a cluster or minutes, are parsed with their options.
"""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer.main
from tests.system.terminal import blocks, commands

from everlog.cli.client.words import join_words
from everlog.cli.commands import COMMANDS, _build

TOP = Path(__file__).parents[3]
PAGES = [TOP / "README.md", TOP / "CONTRIBUTING.md", *sorted((TOP / "docs").rglob("*.md"))]
BREAKS = {"|", "||", "&", "&&", ";", "(", ")"}
LEFT_OUT = ("...", "…", "$(")  # a text that is no command as it stands
NOT_RUN = {"COMMAND", "help", "version", "--version", "--help", "--install-completion", "--show-completion"}
NAMED_ALONE = ("MissingParameter", "requires an argument", "unexpected extra argument")  # an option, a redirection
THERE_IS_NONE = "serve --processes N"  # and a decision says why
OF_FILES = ("BadParameter", "FileError")  # a file that the page has made before


def calls(line: str) -> list[list[str]]:
    """The words behind each `everlog` of a command line."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>()")
    lexer.whitespace_split, lexer.commenters = True, ""
    found: list[list[str]] = []
    words: list[str] = []
    for word in [*lexer, ";"]:
        if word in BREAKS:
            starts = [at for at, one in enumerate(words) if one.rpartition("/")[2] == "everlog"]
            if starts and all("=" in one or one in ("sudo", "exec") for one in words[: starts[0]]):
                found.append(words[starts[0] + 1 :])
            words = []
        else:
            words.append(word)
    return [_without_files(words) for words in found]


def _without_files(words: list[str]) -> list[str]:
    """Leave out what the shell does with files."""
    places = [at for at, word in enumerate(words) if word[0:1] in ("<", ">")]
    gone = {at for place in places for at in (place, place + 1)}
    gone |= {place - 1 for place in places if words[place - 1] == "2"}
    return [word for at, word in enumerate(words) if at not in gone]


def documented() -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        for kind, block in blocks(page.read_text()):
            if kind in ("sh", "console"):
                lines = [line for line, _ in commands(kind, block) if "everlog" in line and "<<" not in line]
                found += [(str(page.relative_to(TOP)), shlex.join(call)) for line in lines for call in calls(line)]
    return found


def mentioned() -> list[tuple[str, str]]:
    """The commands that a page names amidst its text, such as `everlog verify DATA_DIR`."""
    found = []
    for page in PAGES:
        text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        for span in re.findall(r"`everlog ([^`]+)`", text):
            words = span.split()
            if not (NOT_RUN & set(words)) and not any(part in span for part in LEFT_OUT):
                found.append((str(page.relative_to(TOP)), " ".join(words)))
    return found


def parse(words: list[str]) -> None:
    """Parse a command line to its end, and run nothing."""
    chosen = next((word for word in words if not word.startswith("-")), "")
    if chosen in ("pub", "sub"):
        words = join_words(words)
    command: Any = typer.main.get_command(_build({chosen} & set(COMMANDS)))
    parent, name = None, "everlog"
    while True:
        context = command.make_context(name, list(words), parent=parent, resilient_parsing=False)
        if not hasattr(command, "resolve_command"):
            return
        rest = [*context._protected_args, *context.args]
        if not rest:
            return
        name, command, words = command.resolve_command(context, rest)
        parent = context


def complaint(call: str) -> str:
    try:
        parse(shlex.split(call))
    except typer.Exit:
        return ""  # --version, --help
    except Exception as error:  # noqa: BLE001 - each is told
        return "" if type(error).__name__ in OF_FILES else f"{type(error).__name__}: {error}"
    return ""


def test_the_pages_have_commands() -> None:
    pages = {page for page, _ in documented()}
    assert len(documented()) > 60
    assert {"README.md", "docs/tutorial/spark.md", "docs/howto/several-persist-servers.md"} <= pages


@pytest.mark.parametrize(("page", "call"), sorted(set(documented())))
def test_a_documented_command_is_taken(page: str, call: str) -> None:
    if any(part in call for part in LEFT_OUT):
        pytest.skip("no command as it stands")
    assert complaint(call) == "", f"{page}: everlog {call}"


@pytest.mark.parametrize(("page", "call"), sorted(set(mentioned())))
def test_a_command_that_is_named_exists_and_so_do_its_options(page: str, call: str) -> None:
    told = complaint(call)
    is_named = any(part in told for part in NAMED_ALONE)
    assert told == "" or is_named or call == THERE_IS_NONE, f"{page}: everlog {call}: {told}"


@pytest.mark.parametrize(
    "call", ["serve --no-such-option", "nonsense", "sub --qos", "spark nonsense", "log show a b c d"]
)
def test_what_is_no_command_is_found(call: str) -> None:
    assert complaint(call)
