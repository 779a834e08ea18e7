"""Refuses modules above 600 lines; names those above 400, which should say why at the top."""

import sys
from pathlib import Path

REFUSED, LARGE = 600, 400


def main() -> int:
    sizes = {path: len(path.read_text().splitlines()) for path in sorted(Path("src").rglob("*.py"))}
    for path, lines in sizes.items():
        if lines > LARGE:
            print(f"{path}: {lines} lines{' (refused: split it)' if lines > REFUSED else ''}")
    return int(any(lines > REFUSED for lines in sizes.values()))


if __name__ == "__main__":
    sys.exit(main())
