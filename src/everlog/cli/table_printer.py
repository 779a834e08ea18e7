"""Prints tables; only a terminal limits their width, a program or a file gets all of it."""

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

_WIDEST = 10_000


def print_table(table: Table) -> None:
    """Print a table on standard output."""
    console = Console()
    if not console.is_terminal:
        wanted = Measurement.get(console, console.options.update(max_width=_WIDEST), table).maximum
        console.width = max(console.width, wanted)
    console.print(table)
