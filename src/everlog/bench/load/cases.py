"""The list that brokers are compared by, with what the project demands of itself."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from everlog.bench.load.brokers import Broker
from everlog.bench.load.slow_sync import slow_syncs
from everlog.bench.load.turn_clock import turn_clock

PEER = "mosquitto"
DISK = "bare disk"  # measured beside the brokers, see `bare_disk`


@dataclass(frozen=True, slots=True)
class Demand:
    """A demand that a figure of ours is at least or at most `value` times the peer's, another case's, or 1.

    A figure of the bare disk is what it is compared with, or is added `plus` times.
    """

    figure: str
    value: float
    at_least: bool
    against: str = PEER  # a broker's name, DISK, the name of a case, or "" for an absolute value
    plus: float = 0.0
    disk: str = ""  # the figure of the disk
    cap: float = 0.0  # no more than this is asked for, if it is not 0

    @property
    def words(self) -> str:
        """The demand in words, such as `rate at least 3x mosquitto`."""
        unit = "" if not self.against else f"x {self.against}"
        more = f" + {self.plus:g}x {LABELS.get(self.disk, self.disk)}" if self.plus else ""
        cap = f", or {self.cap:g}" if self.cap else ""
        most = "least" if self.at_least else "most"
        return f"{LABELS.get(self.figure, self.figure)} at {most} {self.value:g}{unit}{more}{cap}"


RATE, CPU, P50, P99 = "msgs_per_s", "broker.cpu_us_per_msg", "latency_us.p50", "latency_us.p99"
PUBLISH_CPU, PUBLISH_PEAK = "publish.broker.cpu_us_per_msg", "publish.broker.peak_rss_mb"
LABELS = {
    RATE: "rate",
    CPU: "CPU",
    P50: "p50",
    P99: "p99",
    PUBLISH_CPU: "CPU",
    PUBLISH_PEAK: "memory",
    "kb_per_connection_peak": "KiB/connection",
    "kb_per_connection": "KiB/connection",
    "lost": "lost",
    "seconds": "seconds",
    "mb_per_s": "MB/s",
    "publish.msgs_per_s": "rate of new topics",
    "again.msgs_per_s": "rate of known topics",
    "again.broker.cpu_us_per_msg": "CPU of known topics",
    "bytes_per_message": "bytes/message",
    "find.seconds": "seconds to find one",
    "leave.broker.cpu_us_per_msg": "CPU when it goes",
    "connects.turn.cpu_ms": "longest turn, ms, connects",
    "ends.turn.cpu_ms": "longest turn, ms, ends",
    "ping_us.max": "slowest ping, µs",
    "connect_us.max": "slowest connect, µs",
    "latency_us.max": "slowest delivery, µs",
    "ack_latency_us.max": "slowest ack, µs",
    "back_s": "seconds with the start",
    "log_cpu_ms": "CPU of the log",
    "grown_mb": "MB grown since the start",
    "sync.cpu_us": "CPU of a bare sync",
    "sync.p50_us": "p50 of a bare sync",
    "sync.p99_us": "p99 of a bare sync",
}


@dataclass(frozen=True, slots=True)
class Case:
    """One line of the list: a scenario with its options, other options for some brokers, and the demands."""

    name: str
    scenario: str
    options: Mapping[str, Any]
    demands: tuple[Demand, ...] = ()
    others: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    timed: bool = True  # the list's seconds apply
    shards: int = 0  # of Everlog's log, where it matters; only Everlog plays such a case, and keeps everything
    slow_shard_ms: int = 0  # what a sync of the first of them takes longer
    slow_disk_ms: int = 0  # what every sync of Everlog takes longer; only Everlog plays such a case
    after: str = ""  # the scenario that is played before, with the same options; the broker is started anew in between
    is_clocked: bool = False  # the turns of the brokers' loops are timed
    ours_alone: bool = False  # no other broker plays it
    reads_metrics: bool = False  # of Everlog, which tells them over HTTP
    keeps: bool = True  # Everlog keeps every message, or none
    arguments: tuple[str, ...] = ()  # more of Everlog's command line

    @property
    def has_latency(self) -> bool:
        """Whether messages are sent on a schedule, so that latencies are the broker's."""
        return self.scenario == "bystander" or "rate" in self.options

    @property
    def needs_disk(self) -> bool:
        """Whether a demand is about the bare disk."""
        return any(demand.disk for demand in self.demands)

    def is_for(self, broker: Broker) -> bool:
        """Return whether a broker plays this case."""
        if self.shards:
            return broker.is_everlog and broker.keeps
        return broker.is_everlog or not (self.slow_disk_ms or self.ours_alone)

    def environment(self, folder: Path) -> dict[str, str]:
        """Return the variables that a broker gets whose data is in a folder."""
        if self.slow_shard_ms:
            return slow_syncs(folder, folder / "shard-0", self.slow_shard_ms)
        if self.slow_disk_ms:
            return slow_syncs(folder, folder, self.slow_disk_ms)
        return turn_clock(folder) if self.is_clocked else {}


def _fast(rate: float, cpu: float | None) -> tuple[Demand, ...]:
    demands = (Demand(RATE, rate, True),)
    return demands if cpu is None else (*demands, Demand(CPU, cpu, False))


_NOTHING_LOST = Demand("lost", 0, False, "")
_LITTLE = Demand("kb_per_connection", 12, False, "")
_LITTLE_EVER = Demand("kb_per_connection_peak", 12, False, "")

CASES = (
    Case("idle-1k", "idle", {"connections": 1000, "hold": 1.0}, (_LITTLE,), timed=False),
    Case("in-q0", "ingest", {"qos": 0}, _fast(3, 0.3)),
    Case("in-q1", "ingest", {"qos": 1, "window": 500}, _fast(3, 0.3)),
    Case("in-q1-10p", "ingest", {"qos": 1, "window": 500, "publishers": 10}, _fast(4, None)),
    Case("in-q2", "ingest", {"qos": 2, "window": 100}, _fast(2, None)),
    Case("fan-1:1-q0", "fanout", {"qos": 0, "outstanding": 2000}, _fast(3, 0.4)),
    Case("fan-1:1-q1", "fanout", {"qos": 1, "window": 500}, _fast(3, 0.4)),
    Case("fan-1:10-q0", "fanout", {"qos": 0, "subscribers": 10, "outstanding": 2000}, _fast(3, 0.4)),
    Case("fan-1:10-q1", "fanout", {"qos": 1, "subscribers": 10, "window": 100}, _fast(3, 0.4)),
    Case("many-500", "many", {"connections": 500}, _fast(1, 1)),
    Case("p50-1k/s", "fanout", {"qos": 1, "rate": 1000.0}, (Demand(P50, 3, False),)),
    Case("held-10k", "many", {"connections": 10_000, "rate": 12_000.0}, (_NOTHING_LOST, _LITTLE_EVER)),
    Case("echo-10k", "echo", {"connections": 10_000, "rate": 12_000.0}, (_NOTHING_LOST, _LITTLE_EVER)),
    Case("churn-1k", "churn", {"connections": 1000}, (_NOTHING_LOST,)),
    Case(
        "resume-10",
        "resume",
        {"subscribers": 10, "messages": 200_000, "window": 500},
        (*_fast(2, 0.5), Demand(RATE, 500_000, True, "")),
        timed=False,
    ),
    # the sessions' own end, which is stored within 2 s, is not what is measured
    Case(
        "offline-1",
        "resume",
        {"subscribers": 1, "messages": 400_000, "window": 500, "hold": 0.0, "settle": 3.0},
        timed=False,
    ),
    Case(
        "offline-1k",
        "resume",
        {"subscribers": 1000, "messages": 400_000, "window": 500, "hold": 0.0, "settle": 3.0},
        (Demand(PUBLISH_CPU, 1.1, False, "offline-1"), Demand(PUBLISH_PEAK, 1.1, False, "offline-1")),
        others={PEER: {"messages": 2000}, "nats": {"messages": 2000}},  # they keep a queue for each session
        timed=False,
    ),
    Case(
        "recall-1k",
        "recall",
        {"connections": 1000, "stored": 1_000_000, "window": 500},
        (_NOTHING_LOST, Demand("seconds", 5, False, "")),
        others={"nats": {"stored": 100_000}},
        timed=False,
    ),
    Case("fan-1:100-q1", "fanout", {"qos": 1, "subscribers": 100, "window": 100}),
    Case(
        "slow-acker",
        "fanout",
        {"qos": 1, "subscribers": 100, "window": 100, "slow": 1},
        (Demand(RATE, 0.95, True, "fan-1:100-q1"),),
    ),
    Case("shards-4", "bystander", {}, shards=4),
    Case(
        "slow-shard",
        "bystander",
        {},
        (Demand(P50, 2, False, "shards-4"), Demand(P99, 3, False, "shards-4")),
        shards=4,
        slow_shard_ms=100,
    ),
    Case("retained-10k", "retained", {"messages": 10_000, "window": 500}, timed=False),
)


def figure_of(report: Mapping[str, Any], path: str) -> float | None:
    """Return a number of a report by its dotted name, or None when it is not there."""
    found: Any = report
    for name in path.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return float(found) if isinstance(found, int | float) else None
