"""The suites of benchmarks that are not a load on a running broker, each a module of this room with `run`."""

import importlib
import importlib.util
from collections.abc import Iterable

from everlog import __version__, _kernels
from everlog.bench.table import show

_TITLES = {
    "protocol": "MQTT protocol",
    "topics": "topics and subscriptions",
    "commitlog": "commit log",
    "store": "store",
    "sessions": "sessions",
    "spark": "Spark",
    "lake": "lake table",
    "sparkstream": "Spark streams",
}

SUITES = {
    name: title for name, title in _TITLES.items() if importlib.util.find_spec(f"{__package__}.{name}") is not None
}


def run_suites(names: Iterable[str]) -> None:
    """Run suites and print their tables."""
    for name in names:
        title = f"{SUITES[name]}: everlog {__version__}, kernels {_kernels.describe()}"
        show(title, importlib.import_module(f"{__package__}.{name}").run())
