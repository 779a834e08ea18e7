"""Small charts as SVG text: bars, a line of time, a map of hours. Colours and fonts are the page's."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from html import escape

from everlog.spark.jobs.html_page import show

WIDTH = 900
ROW = 22
LABEL = 330  # pixels for the labels of bars
_TEXT_CHARS = 52  # that fit there
MAX_DAYS = 31  # rows of a map of hours; a longer history is shown by the day of the week
_WEEK = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def bars(values: Sequence[tuple[str, float]]) -> str:
    """Draw a bar for each label."""
    highest = max((value for _, value in values), default=0) or 1
    parts = []
    for number, (label, value) in enumerate(values):
        y = number * ROW
        length = (WIDTH - LABEL - 90) * value / highest
        parts.append(
            f'<text x="{LABEL - 8}" y="{y + 15}" text-anchor="end">{escape(_short(label))}</text>'
            f'<rect class="mark" x="{LABEL}" y="{y + 4}" width="{max(length, 1):.1f}" height="{ROW - 8}" rx="2">'
            f"<title>{escape(label)}: {escape(show(value))}</title></rect>"
            f'<text x="{LABEL + length + 6:.1f}" y="{y + 15}">{escape(show(value))}</text>'
        )
    return _svg(WIDTH, ROW * len(values) or ROW, parts)


def timeline(points: Sequence[tuple[datetime, int]], step_s: float, unit: str = "messages") -> str:
    """Draw how much there was in each step of time, from the first to the last."""
    if not points:
        return ""
    height, base = 160, 135
    first, last = points[0][0], points[-1][0]
    span_s = (last - first).total_seconds() + step_s
    highest = max(value for _, value in points) or 1
    wide = max(WIDTH * step_s / span_s, 0.7)
    parts = [f'<line class="axis" x1="0" y1="{base}" x2="{WIDTH}" y2="{base}"/>']
    for when, value in points:
        x, tall = WIDTH * (when - first).total_seconds() / span_s, (base - 20) * value / highest
        parts.append(
            f'<rect class="mark" x="{x:.1f}" y="{base - tall:.1f}" width="{max(wide - 0.3, 0.5):.2f}" '
            f'height="{tall:.1f}"><title>{show(when)}: {value:,} {unit}</title></rect>'
        )
    parts.append(f'<text x="0" y="12">{highest:,} {unit} in {show(step_s)} s</text>')
    parts.append(f'<text x="0" y="{height - 8}">{show(first)}</text>')
    parts.append(
        f'<text x="{WIDTH}" y="{height - 8}" text-anchor="end">{show(last + timedelta(seconds=step_s))}</text>'
    )
    return _svg(WIDTH, height, parts)


def hour_map(counts: Mapping[datetime, int]) -> str:
    """Draw how much each hour had, in UTC: a row for each day, or for each weekday of a long history."""
    cells: dict[tuple[str, int], int] = {}
    rows = _days(counts)
    long = len(rows) > MAX_DAYS
    for when, count in counts.items():
        row = _WEEK[when.weekday()] if long else f"{when.astimezone(UTC):%Y-%m-%d}"
        cells[row, when.hour] = cells.get((row, when.hour), 0) + count
    return _map(list(_WEEK) if long else rows, cells)


def _days(counts: Mapping[datetime, int]) -> list[str]:
    if not counts:
        return []
    first, last = min(counts).date(), max(counts).date()
    return [f"{first + timedelta(days=number)}" for number in range((last - first).days + 1)]


def _map(rows: Sequence[str], cells: Mapping[tuple[str, int], int]) -> str:
    highest = max(cells.values(), default=0) or 1
    left, size, top = 100, 32, 20
    parts = [f'<text x="{left + size * hour + 4}" y="13">{hour:02}</text>' for hour in range(24)]
    for number, row in enumerate(rows):
        y = top + number * ROW
        parts.append(f'<text x="{left - 8}" y="{y + 15}" text-anchor="end">{row}</text>')
        for hour in range(24):
            count = cells.get((row, hour), 0)
            look = f'class="cell" fill-opacity="{0.12 + 0.88 * count / highest:.2f}"' if count else 'class="none"'
            parts.append(
                f'<rect {look} x="{left + size * hour}" y="{y + 1}" width="{size - 2}" height="{ROW - 2}" rx="2">'
                f"<title>{row} {hour:02}:00 UTC: {count:,}</title></rect>"
            )
    return _svg(left + 24 * size, top + ROW * len(rows), parts)


def _short(label: str) -> str:
    return label if len(label) <= _TEXT_CHARS else f"{label[: _TEXT_CHARS // 2]}…{label[-_TEXT_CHARS // 2 + 1 :]}"


def _svg(width: float, height: float, parts: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">{"".join(parts)}</svg>'
