"""Prints tables; only a terminal limits their width, a program or a file gets all of it, and JSON if it likes."""

import json
from collections.abc import Iterable, Mapping
from typing import Annotated, TypeAlias

import typer
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from everlog.cli.visible import visible_json, visible_line

AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="One JSON object a line.")]
_WIDEST = 10_000


def print_table(table: Table) -> None:
    """Print a table on standard output."""
    console = Console()
    if not console.is_terminal:
        wanted = Measurement.get(console, console.options.update(max_width=_WIDEST), table).maximum
        console.width = max(console.width, wanted)
    console.print(table)


def cell(text: str) -> Text:
    """Return what a peer has chosen, such as its client id, as a cell in which nothing is markup or a control."""
    return Text(visible_line(text))


def print_json(rows: Iterable[Mapping[str, object]]) -> None:
    """Print one JSON object a line."""
    for row in rows:
        print(visible_json(json.dumps(row, ensure_ascii=False)))
