"""The suites: benchmarks of one part each, in a module `<name>_suite` of this room with a function `run`."""

import importlib
from collections.abc import Iterable

from everlog import __version__, _kernels
from everlog.bench.measurement import show

SUITES = {
    "protocol": "MQTT protocol",
    "topics": "topics and subscriptions",
    "commitlog": "commit log",
    "store": "store",
    "sessions": "sessions",
    "streams": "streams and key-value stores",
    "cluster": "log of a cluster, and three brokers",
    "spark": "Spark",
    "lake": "lake table",
    "spark-stream": "Spark streams",
}


def run_suites(names: Iterable[str]) -> None:
    """Run suites and print their tables."""
    for name in names:
        module = importlib.import_module(f"{__package__}.{name.replace('-', '_')}_suite")
        show(f"{SUITES[name]}: everlog {__version__}, kernels {_kernels.describe()}", module.run())
