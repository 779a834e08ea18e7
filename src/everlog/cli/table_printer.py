"""Prints tables; only a terminal limits their width, a program or a file gets all of it."""

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from everlog.cli.visible import visible_line

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
