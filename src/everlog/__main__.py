"""`python -m everlog`: the same as `everlog`."""

import sys

from everlog.cli import main

if __name__ == "__main__":
    sys.exit(main())
