"""The data directory that a command works on."""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from everlog.base import UsageError
from everlog.store import LogStore


def data_of_settings() -> Path:
    """Return the data directory that the settings name."""
    from everlog.app import load

    return Path(load().settings.log.data)


Data: TypeAlias = Annotated[
    Path,
    typer.Argument(
        metavar="DATA_DIR",
        default_factory=data_of_settings,
        show_default=False,
        help="The data directory, by default that of the settings; a broker may be running on it.",
    ),
]
DataAndFilters: TypeAlias = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[DATA_DIR] FILTER",
        help="The data directory, by default that of the settings; topic filters, by default all.",
    ),
]


def data_and_filters(words: Sequence[str] | None) -> tuple[Path, list[str]]:
    """Tell a data directory from the topic filters behind it: a word with a wildcard is none."""
    if words and not {"+", "#"} & set(words[0]):
        return Path(words[0]), list(words[1:])
    return data_of_settings(), list(words or ())


def check_store(data: Path | str, pattern: str = "store") -> None:
    """Refuse a directory that holds no store."""
    if not any(Path(data).glob(pattern)):
        raise UsageError(f"{data} holds no store", hint="give the directory that `everlog serve --data` was given")


def open_store(data: Path, *, writable: bool = False) -> "closing[LogStore]":
    """Open a store for a `with` statement, for reading beside its broker or without one; to write, without one."""
    check_store(data)
    return closing(LogStore.open(str(data), writable=writable))
