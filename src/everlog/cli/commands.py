"""The subcommands, and `main`, which imports only the one that it runs.

A subcommand is a function with typer's annotations, or a `typer.Typer` with subcommands of its own. Its return value,
if it is a number, is the exit code: 0 done, 1 failed, 2 called wrongly, 130 interrupted.
"""

import errno
import importlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from everlog import __version__
from everlog.base import EverlogError, UsageError
from everlog.cli.client.words import join_words
from everlog.cli.visible import visible_line

FAILED, MISUSED, INTERRUPTED = 1, 2, 130
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


@dataclass(frozen=True, slots=True)
class Command:
    """A subcommand: where it is (`module:name`), and what the overview says about it."""

    target: str
    help: str

    def load(self) -> Any:
        """Import the command."""
        module, _, name = self.target.partition(":")
        return getattr(importlib.import_module(module), name)


COMMANDS: dict[str, Command] = {
    "serve": Command("everlog.cli.serve:serve", "Start the broker."),
    "pub": Command("everlog.cli.client.pub:pub", "Publish messages."),
    "sub": Command("everlog.cli.client.sub:sub", "Subscribe and print what arrives."),
    "replay": Command("everlog.cli.client.replay:replay", "Print or publish again what was published in the past."),
    "stream": Command("everlog.cli.persist.stream:app", "Streams: append, read, delete, follow, download."),
    "kv": Command("everlog.cli.persist.kv:app", "Key-value stores: put, get, delete, list, follow."),
    "persist": Command("everlog.cli.persist.persist:app", "Servers of streams and key-value stores."),
    "cluster": Command("everlog.cli.cluster:app", "Several brokers with one history: make, see, drain."),
    "top": Command("everlog.cli.top:top", "Watch a running broker."),
    "sessions": Command("everlog.cli.sessions:app", "List, show and drop durable sessions."),
    "log": Command("everlog.cli.log:app", "Look into the log: segments, topics, the end, any range."),
    "verify": Command("everlog.cli.verify:verify", "Check every byte of a data directory."),
    "repair": Command("everlog.cli.verify:repair", "Rebuild damaged or missing side files."),
    "clock": Command("everlog.cli.clock:clock", "See whether a broker believes the wall clock, and have it do so."),
    "passwd": Command("everlog.cli.passwd:passwd", "Add, change or delete a user of a password file."),
    "config": Command("everlog.cli.config:app", "Show and check the settings."),
    "spark": Command("everlog.cli.spark.subcommands:app", "Jobs over the whole history, with Spark."),
    "bench": Command("everlog.cli.bench:app", "Measure the parts, a running broker, or brokers side by side."),
}

_CommandLineError: type[Exception] = typer.BadParameter.__bases__[0]  # typer does not export it


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if words[0] in ("help", "version"):
        words = [*words[1:], f"--{words[0]}"]
    chosen = next((word for word in words if not word.startswith("-")), None)
    is_quiet = chosen in ("pub", "sub") and "--quiet" in words
    if chosen in ("pub", "sub"):
        words = join_words(words)
    everything = "_EVERLOG_COMPLETE" in os.environ  # the shell completes the options of some command
    try:
        if chosen is not None and words == [chosen] and _has_subcommands(chosen):
            words = [chosen, "--help"]  # as `everlog` alone does
        app = _build({name for name in COMMANDS if everything or name == chosen})
        outcome = app(words, prog_name="everlog", standalone_mode=False)
        sys.stdout.flush()  # here, where an error has an exit code
    except _CommandLineError as error:
        where = getattr(getattr(error, "ctx", None), "command_path", None) or "everlog"
        _complain(f"{error.format_message().rstrip('.')} (try: {where} --help)")  # type: ignore[attr-defined]
        return MISUSED
    except EverlogError as error:
        for problem in () if is_quiet else getattr(error, "problems", (error,)):
            _complain(str(problem))
        return MISUSED if isinstance(error, UsageError) else FAILED
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output has ended, as `head` does
        _drop_output()
        return FAILED
    except OSError as error:
        if error.filename is None and error.errno in _FULL:
            _drop_output()
            _complain(f"the output can't be written: {error.strerror}")
            return FAILED
        if error.filename is None:
            raise
        _complain(f"{error.filename}: {error.strerror} (is the path right, and may this user read it?)")
        return MISUSED
    return outcome if isinstance(outcome, int) else 0


def _has_subcommands(name: str) -> bool:
    return name in COMMANDS and isinstance(COMMANDS[name].load(), typer.Typer)


def _build(loaded: set[str]) -> typer.Typer:
    app = typer.Typer(
        name="everlog",
        help="A durable MQTT broker whose history is a table.",
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},  # where -h is not the host
    )
    app.callback()(_root)
    for name, command in COMMANDS.items():
        found = command.load() if name in loaded else _stub
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=name, help=command.help)
        else:
            app.command(name, help=command.help if found is _stub else None)(found)
    return app


def _say_version(wanted: bool) -> None:
    if wanted:
        from everlog import _kernels

        print(f"everlog {__version__} (kernels {_kernels.describe()})")
        raise typer.Exit


def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_say_version, is_eager=True, help="Print the version, and how kernels run."),
    ] = False,
) -> None:
    """Take the options of `everlog` itself."""


def _stub() -> None:
    """Stand for a command that is listed and not run."""


def _complain(message: str) -> None:
    print(f"everlog: {visible_line(message)}", file=sys.stderr)


def _drop_output() -> None:
    """Leave nothing for the interpreter's last flush, which would fail again."""
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - until the end
