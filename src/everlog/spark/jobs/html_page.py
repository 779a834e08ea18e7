"""A report as one HTML file that needs no other: tables and inline SVG, light or dark as the reader likes it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from pathlib import Path

from everlog.base import UsageError

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2329; --quiet: #66717c; --line: #d8dee4; --back: #fff; --tint: #f4f6f8;
  --chart: #1769aa; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e3e8ed; --quiet: #94a0ab; --line: #343d46; --back: #14191e;
  --tint: #1c2329; --chart: #5aa9e6; --bad: #ff8a80; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--back); margin: 2rem auto;
  max-width: 72rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
p { color: var(--quiet); margin: .3rem 0; }
.numbers { display: flex; flex-wrap: wrap; gap: 1rem 2.5rem; margin: 1.2rem 0; }
.numbers b { display: block; font-size: 1.4rem; font-weight: 600; } .numbers span { color: var(--quiet); }
.wide { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th { text-align: left; color: var(--quiet); font-weight: 500; border-bottom: 1px solid var(--line); }
th, td { padding: .3rem .8rem .3rem 0; vertical-align: top; } td { border-bottom: 1px solid var(--tint); }
.n { text-align: right; white-space: nowrap; } td code { font-size: .92em; overflow-wrap: anywhere; }
svg { display: block; max-width: 100%; height: auto; }
svg text { font: 11px system-ui, sans-serif; fill: var(--quiet); }
.mark { fill: var(--chart); } .cell { fill: var(--chart); } .none { fill: var(--tint); } .axis { stroke: var(--line); }
.good { color: var(--quiet); } .bad { color: var(--bad); font-weight: 600; }
"""

Cell = str | int | float | datetime | None


@dataclass(frozen=True, slots=True)
class Grid:
    """A table: its title, its columns, its rows, and a remark; shown on a terminal and in a page alike."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    remark: str = ""


@dataclass(frozen=True, slots=True)
class Drawing:
    """A chart: its title, its SVG, and a remark."""

    title: str
    svg: str
    remark: str = ""


def show(cell: Cell) -> str:
    """Format a cell for people."""
    if cell is None:
        return ""
    if isinstance(cell, datetime):
        return cell.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")
    if isinstance(cell, int):
        return f"{cell:,}"
    if isinstance(cell, float):
        return f"{cell:,.0f}" if abs(cell) >= 1000 else f"{cell:.3g}"
    return cell


def render(title: str, about: str, numbers: Iterable[tuple[str, Cell]], parts: Iterable[Grid | Drawing]) -> str:
    """Return the whole page."""
    facts = "".join(f"<div><b>{escape(show(value))}</b><span>{escape(name)}</span></div>" for name, value in numbers)
    body = "".join(_grid(part) if isinstance(part, Grid) else _drawing(part) for part in parts)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style></head><body><h1>{escape(title)}</h1><p>{escape(about)}</p>"
        f'<div class="numbers">{facts}</div>{body}</body></html>\n'
    )


def write_page(path: Path, html: str) -> None:
    """Write a page; raises UsageError if it can't be written."""
    try:
        path.write_text(html, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--html {path} can't be written: {error.strerror}") from error


def _grid(grid: Grid) -> str:
    if not grid.rows:
        return ""
    numeric = [_is_numeric(column) for column in zip(*grid.rows, strict=True)]
    head = "".join(f"<th{_n(n)}>{escape(name)}</th>" for name, n in zip(grid.columns, numeric, strict=True))
    rows = "".join(
        "<tr>" + "".join(f"<td{_n(n)}>{_cell(cell)}</td>" for cell, n in zip(row, numeric, strict=True)) + "</tr>"
        for row in grid.rows
    )
    return (
        f"{_title(grid.title, grid.remark)}"
        f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
    )


def _drawing(drawing: Drawing) -> str:
    return f'{_title(drawing.title, drawing.remark)}<div class="wide">{drawing.svg}</div>'


def _title(title: str, remark: str) -> str:
    return f"<h2>{escape(title)}</h2>" + (f"<p>{escape(remark)}</p>" if remark else "")


def _is_numeric(column: Sequence[Cell]) -> bool:
    return all(isinstance(cell, int | float) or cell is None for cell in column)


def _n(numeric: bool) -> str:
    return ' class="n"' if numeric else ""


def _cell(cell: Cell) -> str:
    text = escape(show(cell))
    return f"<code>{text}</code>" if isinstance(cell, str) and "/" in cell else text
