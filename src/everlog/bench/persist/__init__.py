"""persist: what appends to streams cost, ours beside JetStream's, in turns."""

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from everlog.bench.persist.append_load import Load, Outcome, append, prepare
from everlog.bench.persist.contenders import CONTENDERS, Contender
from everlog.bench.persist.on_disk import measure as measure_on_disk
from everlog.streams import Level


class Measured(NamedTuple):
    """One run of one contender."""

    contender: str
    load: Load
    outcome: Outcome


def compare(
    names: Sequence[str], loads: Sequence[Load], rounds: int, level: Level, told: Callable[[Measured], None]
) -> list[Measured]:
    """Measure contenders in turns, each load on a fresh directory."""
    found = []
    for _ in range(rounds):
        for load in loads:
            for name in names:
                one = Measured(CONTENDERS[name].name, load, _measure(CONTENDERS[name], load, level))
                told(one)
                found.append(one)
    return found


def _measure(contender: Contender, load: Load, level: Level) -> Outcome:
    import uvloop

    requests = contender.requests(load.streams, load.size, level)
    with contender.running() as running:

        async def both() -> Outcome:
            await prepare(running.url, requests)
            return await append(running.url, requests, load, running.cpu_s)

        return uvloop.run(both())
