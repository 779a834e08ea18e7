"""Everlog: a durable MQTT broker whose history is a table."""

import importlib
from typing import Any

from everlog import _kernels
from everlog._version import VERSION

_kernels.choose_twin()

__version__ = VERSION
__all__ = ["__version__", "open"]


def open(directory: str, **options: Any) -> Any:
    """Return streams and key-value stores in a directory, without any server: see `everlog.app.embedded.Embedded`.

    `async with` gives a client, `with` one whose methods wait.
    """
    return importlib.import_module("everlog.app.embedded").Embedded(directory, **options)  # heavy, so only here
