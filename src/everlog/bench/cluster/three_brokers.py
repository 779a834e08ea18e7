"""Three brokers of a cluster with a load on one of them: rate, CPU a message of each process, time to another broker.

The same load is put on Mosquitto and on the single broker in the same rounds, so that what else runs on the machine
hits all of them; of each figure the best of the rounds counts. What brokers do when they are idle, such as beats, is
taken off.
"""

import copy
import os
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from everlog.base import Unavailable
from everlog.bench.cluster.broker_processes import BenchCluster, BrokerProcess, bench_cluster
from everlog.bench.load.brokers import EVERLOG, Broker, installed, started
from everlog.bench.load.options import Naming, Options
from everlog.bench.load.run import Run, latency
from everlog.bench.load.scenarios import play
from everlog.bench.load.usage import cpu_of
from everlog.bench.measurement import Row

ROUNDS = 3
SHARDS = 6
WINDOW = 500
SECONDS, IDLE_S = 3.0, 2.0
LATENCY_RATE, LATENCY_SECONDS = 1000.0, 5.0
MOST_AT_OWNER, MOST_AT_FOLLOWER, MOST_IN_ALL = 2.0, 0.3, 3.0  # CPU a message, in times of the single broker's
MOSQUITTO = "mosquitto"
OWNER, OTHER = "cluster, to the owner", "cluster, to another broker"


@dataclass
class _Best:
    """The best of all rounds: messages a second, and µs CPU a message by process."""

    rate: float = 0.0
    cpu_us: dict[str, float] = field(default_factory=dict)

    def add(self, rate: float, cpu_us: dict[str, float]) -> None:
        self.rate = max(self.rate, rate)
        for name, value in cpu_us.items():
            self.cpu_us[name] = min(value, self.cpu_us.get(name, float("inf")))


def measure_brokers(url: str) -> list[Row]:
    """Return the figures, with what is asked of them and whether that holds."""
    rows: list[Row] = []
    with bench_cluster(url, f"bench_{os.getpid()}_b", SHARDS, "abc") as cluster:
        for topics in (1, 1000):
            rows += _rates(cluster, topics)
        rows += _latency(cluster)
    return rows


def _rates(cluster: BenchCluster, topics: int) -> list[Row]:
    best: dict[str, _Best] = {}

    def note(name: str, rate: float, cpu_us: dict[str, float]) -> None:
        best.setdefault(name, _Best()).add(rate, cpu_us)

    for _ in range(ROUNDS):
        for broker in installed():
            if broker.name != "nats":
                note(broker.name, *_alone(broker, topics))
        for name in (OWNER, OTHER):
            note(name, *_together(cluster, topics, at_owner=name == OWNER))
    single = best[EVERLOG.name]
    base = single.cpu_us["broker"]
    rows: list[Row] = []
    for name, one in best.items():
        what = f"{topics} topic{'s' * (topics > 1)}, {name}"
        asked = name in (OWNER, OTHER) and MOSQUITTO in best
        rate = verdict(one.rate / best[MOSQUITTO].rate, least=1.0) if asked else ""
        rows.append((what, one.rate, "messages/s", f"one publisher, QoS 1, window 500{rate and ', Mosquitto ' + rate}"))
        for process, cpu_us in one.cpu_us.items():
            ratio = cpu_us / base
            most = demand(topics, name, process)
            said = verdict(ratio, most=most) if most else f"{ratio:.2f} x the single broker's"
            rows.append((f"{what}: {process}", cpu_us, "µs CPU a message", said))
    return rows


def demand(topics: int, name: str, process: str) -> float | None:
    """Return how much CPU is asked for at most, in times of the single broker's; None if nothing is."""
    if process == "all three" and (name == OTHER or topics > 1):
        return MOST_IN_ALL
    if name == OWNER and topics == 1:
        return {"owner": MOST_AT_OWNER, "follower": MOST_AT_FOLLOWER, "second follower": MOST_AT_FOLLOWER}.get(process)
    return None


def verdict(ratio: float, *, most: float | None = None, least: float = 0.0) -> str:
    """Return a ratio with what is asked for, and whether that holds."""
    asked = f"at least {least:g}" if most is None else f"at most {most:g}"
    holds = ratio >= least and (most is None or ratio <= most)
    return f"{ratio:.2f} x, asked for {asked}: {'holds' if holds else 'SHORT'}"


def _load(port: int, pids: tuple[int, ...], topics: int, number: int) -> tuple[float, int]:
    """Put the load on a broker; return messages a second and how many there were."""
    report = play(
        Options("ingest", port, window=WINDOW, qos=1, topics=topics, seconds=SECONDS, pids=pids, number=number)
    )
    if report["status"] != "ok":
        raise Unavailable(f"the load broke: {report.get('error')}")
    return report["msgs_per_s"], report["acked"]


def _counted(
    port: int, topics: int, number: int, clocks: dict[str, Callable[[], float]]
) -> tuple[float, dict[str, float]]:
    """Put the load on a broker; return its rate, and the CPU a message of processes beyond what they take idle."""
    _load(port, (), topics, number)  # topics are learnt, and everything is warm
    idle, idle_s = _spent(clocks, lambda: time.sleep(IDLE_S))
    counted: list[tuple[float, int]] = []
    busy, busy_s = _spent(clocks, lambda: counted.append(_load(port, (), topics, number)))
    rate, count = counted[0]
    return rate, {name: 1e6 * max(0.0, busy[name] - idle[name] * busy_s / idle_s) / count for name in clocks}


def _spent(clocks: dict[str, Callable[[], float]], act: Callable[[], None]) -> tuple[dict[str, float], float]:
    """Return the CPU that processes take while something is done, and how long that takes."""
    began = time.perf_counter()
    before = {name: clock() for name, clock in clocks.items()}
    act()
    return {name: clock() - before[name] for name, clock in clocks.items()}, time.perf_counter() - began


def _alone(broker: Broker, topics: int) -> tuple[float, dict[str, float]]:
    with started(broker, arguments=("--shards", str(SHARDS)) if broker.is_everlog else ()) as running:
        return _counted(running.port, topics, secrets.randbits(32), {"broker": lambda: cpu_of(running.pid)})


def _together(cluster: BenchCluster, topics: int, *, at_owner: bool) -> tuple[float, dict[str, float]]:
    number = secrets.randbits(32)
    owner = cluster.owner_of(Naming(number).topic(0, 0))
    others = [one for one in cluster.brokers if one is not owner]
    names: dict[str, BrokerProcess] = {"owner": owner, "follower": others[0], "second follower": others[1]}
    entry = owner
    if not at_owner:
        entry = others[0]
        names = {"owner": owner, "where it is connected": entry, "follower": others[1]}
    if topics > 1:
        names = {"where it is connected": entry}
        names |= {f"broker {n}": one for n, one in enumerate((b for b in cluster.brokers if b is not entry), 2)}
    clocks: dict[str, Callable[[], float]] = {name: one.cpu_s for name, one in names.items()}
    clocks["all three"] = lambda: sum(one.cpu_s() for one in cluster.brokers)
    clocks["database"] = cluster.database_cpu_s
    return _counted(entry.port, topics, number, clocks)


def _latency(cluster: BenchCluster) -> list[Row]:
    """Publish at the owner and at another broker, subscribe at the third: how long a message takes."""
    rows: list[Row] = []
    for at_owner in (True, False):
        number = secrets.randbits(32)
        owner = cluster.owner_of(Naming(number).topic(0, 0))
        first, second = (one for one in cluster.brokers if one is not owner)
        entry = owner if at_owner else second
        options = Options(
            "fanout", entry.port, qos=1, rate=LATENCY_RATE, seconds=LATENCY_SECONDS, window=WINDOW, number=number
        )
        run = Run(options)
        try:
            publishers = run.publishers(1)
            checker = run.checker(1)
            subscriber = run.subscriber(0, (run.naming.everything,), checker)
            subscriber.shared = copy.copy(run.shared)
            subscriber.shared.address = (run.shared.address[0], first.port)
            run.engine.connect([subscriber, *publishers], 1)
            run.settle()
            run.publish(publishers, 1.0)
            sender = publishers[0].sender
            assert sender is not None
            run.drain([(checker, sender.next)])
            found, acks = latency(run.tally.deliveries), latency(run.tally.answers)
        finally:
            run.engine.close()
        if found is None or acks is None:
            raise Unavailable("nothing was delivered")
        what = f"published at {'the owner' if at_owner else 'another broker'}, 1,000/s: "
        rows.append((what + "delivered at a third", found["p50"], "µs, p50", f"p99 {found['p99']:,.0f} µs"))
        rows.append((what + "acknowledged", acks["p50"], "µs, p50", f"p99 {acks['p99']:,.0f} µs"))
    rows.append(("a commit of the database alone, of that size", cluster.commit_us(), "µs, p50", "its share of these"))
    return rows
