"""The tables of `docs/reference/settings.md`, written from the schema: `python -m everlog.app.settings_reference FILE`.

What is between the two marks of the page is generated; a test fails when it is out of date.
"""

import sys
from pathlib import Path

from everlog.app.setting_keys import Key, all_keys, section_meaning

BEGIN, END = "<!-- generated: settings -->", "<!-- end -->"
_UNITS = {"bytes": "size", "duration": "time", "rate": "rate", "path": "path"}


def tables() -> str:
    """Return a table of keys for every section."""
    lines: list[str] = []
    section = ""
    for key in all_keys().values():
        if key.section != section:
            section = key.section
            lines += ["", f"## [{section}]", section_meaning(section), ""]
            lines += ["| key | default | unit | meaning |", "|---|---|---|---|"]
        lines.append(f"| `{key.name}` | `{key.show(key.default)}` | {_unit(key)} | {_cell(key.description)} |")
    return "\n".join(lines[1:])


def renew(page: str) -> str:
    """Return the page with its tables renewed."""
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n{tables()}\n{END}{tail}"


def _unit(key: Key) -> str:
    if key.choices:
        return " \\| ".join(f"`{choice}`" for choice in key.choices)
    if key.unit:
        return _UNITS[key.unit]
    if key.is_list or key.is_table:
        return "list" if key.is_list else "table"
    if isinstance(key.default, bool) or key.name == "allow_anonymous":
        return "true, false"
    return "text" if isinstance(key.default, str) else "number"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(renew(path.read_text(encoding="utf-8")), encoding="utf-8")
