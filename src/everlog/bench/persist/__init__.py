"""persist: what streams and key-value stores cost, ours beside JetStream's, in turns."""

from collections.abc import Callable, Sequence

from everlog.bench.persist.cases import CASES, Case
from everlog.bench.persist.contenders import CONTENDERS, Contender, chosen, install_peer
from everlog.bench.persist.demands import DEMANDS, Demand, Measured, Verdict, judge
from everlog.bench.persist.on_disk import measure as measure_on_disk
from everlog.bench.persist.outcome import Outcome
from everlog.bench.persist.scale import QUICK, Scale


def compare(
    contenders: Sequence[Contender],
    cases: Sequence[Case],
    scale: Scale,
    rounds: int,
    told: Callable[[Measured], None],
) -> list[Measured]:
    """Measure contenders in turns, each case on a fresh directory."""
    found = []
    for _ in range(rounds):
        for case in cases:
            for contender in contenders if case.own is None else [case.own]:
                if not case.is_for_peers and not contender.name.startswith("everlog"):
                    continue
                with contender.running() as running:
                    one = Measured(case.name, contender.name, case.play(contender, running, scale))
                told(one)
                found.append(one)
    return found
