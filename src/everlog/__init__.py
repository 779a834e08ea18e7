"""Everlog: a durable MQTT broker whose history is a table."""

from everlog import _kernels
from everlog._version import VERSION

_kernels.choose_twin()

__version__ = VERSION
__all__ = ["__version__"]
