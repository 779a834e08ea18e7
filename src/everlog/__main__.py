"""`everlog`, and `python -m everlog`: the same."""

import sys


def run() -> int:
    """Run the command line; an interrupt is no error, not even while the program is still being loaded."""
    try:
        from everlog.cli import main

        return main()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(run())
