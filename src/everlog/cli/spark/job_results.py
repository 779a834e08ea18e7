"""What a job found, on the terminal and in files."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from everlog.base import UsageError

if TYPE_CHECKING:
    from everlog.spark.jobs import Cell, Grid, Report

WIDE = 200  # columns of a table that goes to a file


def show_report(report: "Report", html: Path | None) -> None:
    """Show a report on the terminal, and write it as a page if a file is named."""
    console = Console() if sys.stdout.isatty() else Console(width=WIDE)
    facts = "  ".join(f"{_show(value)} {name}" for name, value in report.numbers if value is not None)
    console.print(Text(facts, style="bold"))
    for grid in report.grids:
        console.print(_as_table(grid))
    if html is not None:
        from everlog.spark.jobs import write_page

        write_page(html, report.html())
        print(f"written to {html}")


def write_json(result: Any, path: Path | None) -> None:
    """Write a result as JSON if a file is named."""
    if path is None:
        return
    try:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n")
    except OSError as error:
        raise UsageError(f"--json {path} can't be written: {error.strerror}") from error
    print(f"written to {path}")


def _as_table(grid: "Grid") -> Table:
    table = Table(title=grid.title, caption=grid.remark or None, title_justify="left", caption_justify="left")
    for number, name in enumerate(grid.columns):
        numeric = all(isinstance(row[number], int | float | None) for row in grid.rows)
        table.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in grid.rows:
        table.add_row(*(Text(_show(cell)) for cell in row))
    return table


def _show(cell: "Cell") -> str:
    """Return a cell's text with control characters made visible: topics are the publishers' to choose."""
    from everlog.spark.jobs import show

    return "".join(char if char.isprintable() else "�" for char in show(cell))
