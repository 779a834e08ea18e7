"""Which normative statements a test shows: `@clauses("MQTT-3.1.0-1", v4="MQTT-3.1.0-1")`.

The first are those of MQTT 5.0, `v4` those of 3.1.1, each with as many ids as needed, parted by spaces. Nothing reads
them at run time: `document.py` reads them from the source, and writes and checks `docs/reference/conformance.md`.
"""

from collections.abc import Callable
from typing import TypeVar

F = TypeVar("F", bound=Callable[..., object])


def clauses(v5: str = "", *, v4: str = "") -> Callable[[F], F]:
    """The statements of MQTT 5.0 and of 3.1.1 that the test below shows."""
    del v5, v4
    return lambda function: function
