"""How much is asked of each contender."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is asked."""

    clients: int = 100
    streams: int = 1000
    size: int = 200
    seconds: float = 5.0
    sustained_s: float = 60.0
    messages: int = 1_000_000  # that are read back
    started: int = 10_000  # streams with which a server begins again
    kept: int = 100_000  # streams on a disk, of which some are opened
    fleet: int = 10_000  # connections, each with a stream of its own
    fleet_s: float = 60.0
    warm: int = 256  # appends to each stream, to twice as many, before anything is measured


QUICK = Scale(
    seconds=2.0, sustained_s=10.0, messages=100_000, streams=200, started=1000, fleet=1000, fleet_s=20.0, kept=2000
)
