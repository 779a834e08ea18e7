"""What the project demands of its streams, beside JetStream in the same run."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from everlog.bench.persist.outcome import Outcome


@dataclass(frozen=True, slots=True)
class Measured:
    """One run of one contender."""

    case: str
    contender: str
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Demand:
    """A bound for one figure of a case: as a number, or as a multiple of a peer's."""

    case: str
    figure: str  # of an `Outcome`
    bound: float
    peer: str = ""

    def words(self) -> str:
        """Return it as text."""
        sign = ">=" if self.figure == "rate" else "<="
        return f"{self.figure} {sign} {self.bound:g}" + (f"x {self.peer}" if self.peer else "")


DEMANDS = (
    Demand("append-fsync-x1", "rate", 30_000),
    Demand("append-fsync-x1", "cpu_us", 0.8, "jetstream"),
    Demand("append-fsync-x1", "cpu_us", 0.25, "jetstream-2.15-always"),
    Demand("append-fsync-x16", "rate", 150_000),
    Demand("append-fsync-x16", "cpu_us", 0.3, "jetstream"),
    Demand("append-memory-x1", "rate", 35_000),
    Demand("append-memory-x16", "rate", 150_000),
    Demand("lone-fsync", "p50_ms", 1.3, "jetstream-2.15-always"),
    Demand("sustained-fsync", "rate", 99_000),
    Demand("sustained-fsync", "unfiled_rows", 1_000_000),
    Demand("sustained-fsync", "unfiled_mb", 256),
    Demand("sustained-fsync", "growth", 1.1),
    Demand("start", "seconds", 0.05, "jetstream"),
    Demand("many-streams", "ready_s", 0.5),
    Demand("many-streams", "open_p99_ms", 10),
    Demand("fleet", "rate", 20_000),
    Demand("fleet", "resident_mb", 500),
    Demand("fleet", "descriptors", 5_000),
    Demand("fleet", "unfiled_rows", 1_000_000),
    Demand("fleet", "pause_s", 15),
    Demand("fleet", "lost", 0),
    Demand("kv-get", "cpu_us", 0.7, "jetstream"),
    Demand("read-back", "cpu_us", 1.0, "jetstream"),
    Demand("fan-out", "cpu_us", 0.7, "jetstream"),
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a demand holds for a contender of ours: its figure, and what it has to reach."""

    demand: Demand
    contender: str
    figure: float
    bound: float

    @property
    def holds(self) -> bool:
        """Whether it does."""
        return self.figure >= self.bound if self.demand.figure == "rate" else self.figure <= self.bound


def judge(found: Sequence[Measured]) -> list[Verdict]:
    """Return what became of the demands of all cases that were measured; medians count."""
    figures: dict[tuple[str, str], list[Outcome]] = {}
    for one in found:
        figures.setdefault((one.case, one.contender), []).append(one.outcome)
    verdicts = []
    for demand in DEMANDS:
        peers = figures.get((demand.case, demand.peer), [])
        if demand.peer and not peers:
            continue
        factor = median(one.figure(demand.figure) for one in peers) if demand.peer else 1.0
        for (case, contender), outcomes in figures.items():
            if case == demand.case and contender.startswith("everlog"):
                figure = median(one.figure(demand.figure) for one in outcomes)
                verdicts.append(Verdict(demand, contender, figure, demand.bound * factor))
    return verdicts
