"""`python -m everlog.bench [name ...]`: runs the benchmarks and prints them."""

import importlib
import sys

from everlog import __version__, _kernels
from everlog.bench.table import show

SUITES = {"protocol": "MQTT protocol"}


def main(names: list[str]) -> None:
    """Run the suites named, or all."""
    for name in names or SUITES:
        title = f"{SUITES[name]}: everlog {__version__}, kernels {_kernels.describe()}"
        show(title, importlib.import_module(f"everlog.bench.{name}").run())


if __name__ == "__main__":
    main(sys.argv[1:])
