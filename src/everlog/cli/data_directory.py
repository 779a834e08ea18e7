"""The data directory that a command works on."""

from contextlib import closing
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from everlog.base import UsageError
from everlog.store import LogStore


def _of_the_settings() -> Path:
    from everlog.app import load

    return Path(load().settings.log.data)


Data: TypeAlias = Annotated[
    Path,
    typer.Argument(
        metavar="[DATA_DIR]",
        default_factory=_of_the_settings,
        show_default=False,
        help="The data directory, by default that of the settings; a broker may be running on it.",
    ),
]
NamedData: TypeAlias = Annotated[
    Path, typer.Argument(metavar="DATA_DIR", help="The data directory; a broker may be running on it.")
]


def check_store(data: Path | str, pattern: str = "store") -> None:
    """Refuse a directory that holds no store."""
    if not any(Path(data).glob(pattern)):
        raise UsageError(f"{data} holds no store", hint="give the directory that `everlog serve --data` was given")


def open_store(data: Path, *, writable: bool = False) -> "closing[LogStore]":
    """Open a store for a `with` statement, for reading beside its broker or without one; to write, without one."""
    check_store(data)
    return closing(LogStore.open(str(data), writable=writable))
