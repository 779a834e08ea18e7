"""How work is timed, and how rows of results are shown."""

import multiprocessing
import os
import time
from collections.abc import Callable, Iterable
from typing import TypeAlias, TypeVar

Row: TypeAlias = tuple[str, float, str, str]  # name, value, unit, note
Found = TypeVar("Found")


def measure(work: Callable[[], int], seconds: float = 0.5) -> float:
    """Return units of work per second of CPU: the best of several stretches, as others can only slow it down."""
    best = 0.0
    done = time.perf_counter() + seconds
    while time.perf_counter() < done:
        units, stretch = 0, time.process_time()
        until = time.perf_counter() + seconds / 5
        while time.perf_counter() < until:
            units += work()
        best = max(best, units / max(time.process_time() - stretch, 1e-9))
    return best


def apart(work: Callable[[str], Found], argument: str, start: str = "spawn") -> Found:
    """Work in a new process; its memory is that of the work alone, or it has everything imported ("fork")."""
    with multiprocessing.get_context(start).Pool(1) as pool:
        return pool.apply(work, (argument,))


def resident_mb() -> float:
    """Return how much memory this process has."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def figure(value: float) -> str:
    """Return a number as people read it."""
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def show(title: str, rows: Iterable[Row]) -> None:
    """Print rows as a table."""
    from rich.console import Console  # here, as the broker imports the kernels of this room and should stay small
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("what")
    table.add_column("value", justify="right")
    table.add_column("unit")
    table.add_column("note", style="dim")
    for name, value, unit, note in rows:
        table.add_row(name, figure(value), unit, note)
    Console(width=140).print(table)
