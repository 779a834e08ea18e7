"""The cases of `everlog bench check` about clients and sessions that come and go, in bursts and beside a slow disk."""

from everlog.bench.load.cases import CPU, RATE, Case, Demand
from everlog.bench.load.stall_scenario import FREE

_TURN_MS = 5.0
_SLOW_MS = 200  # what a sync takes on the disk that stalls
_NOT_DELAYED_US = 100_000  # half of that: who waits for a sync waits longer sooner or later
_FREE = f"keep.never=+/p{FREE:05d}/#"  # the topics of the scenario that nothing is to keep

_NO_DELAY = tuple(
    Demand(f"{figure}.max", _NOT_DELAYED_US, False, "") for figure in ("ping_us", "connect_us", "latency_us")
)
_NO_DELAY_QOS_1 = (*_NO_DELAY, Demand("ack_latency_us.max", _NOT_DELAYED_US, False, ""))


def _stall(name: str, qos: int, keeps: bool) -> Case:
    return Case(
        name,
        "stall",
        {"qos": qos},
        _NO_DELAY_QOS_1 if qos else _NO_DELAY,
        keeps=keeps,
        slow_disk_ms=_SLOW_MS,
        arguments=("--set", _FREE),
    )


FLEET_CASES = (
    Case(
        "connect-1k",
        "idle",
        {"connections": 1000, "hold": 1.0},
        (Demand(RATE, 0.8, True), Demand("kb_per_connection", 3, False, "")),
        timed=False,
    ),
    Case(
        "burst-10k",
        "burst",
        {"connections": 10_000, "settle": 2.0, "timeout": 120.0},
        (
            Demand("connects.turn.cpu_ms", _TURN_MS, False, ""),
            Demand("ends.turn.cpu_ms", _TURN_MS, False, ""),
        ),
        timed=False,
        is_clocked=True,
    ),
    Case(
        "filters",
        "filters",
        {"connections": 100, "topics": 1000, "settle": 2.0},  # the filters of those who leave go in turns
        (Demand(CPU, 3, False), Demand("leave.broker.cpu_us_per_msg", 3, False)),
        timed=False,
    ),
    Case(
        "durable",
        "durable",
        {"connections": 200, "burst": 1, "settle": 2.5, "timeout": 120.0},
        (Demand(CPU, 300, False, ""),),
        timed=False,
    ),
    Case(
        "durable-1k",
        "durable",
        {"connections": 1000, "burst": 1000, "settle": 2.5},
        (Demand(CPU, 150, False, ""),),
        timed=False,
    ),
    Case(
        "back-50k",
        "comeback",
        {"connections": 50_000, "burst": 1000, "timeout": 120.0},
        (Demand("back_s", 15, False, ""), Demand("lost", 0, False, "")),
        after="durable",
        ours_alone=True,
        timed=False,
    ),
    Case(
        "same-1",
        "resume",
        {"subscribers": 1, "messages": 10_000, "window": 500},
        reads_metrics=True,
        ours_alone=True,
        timed=False,
    ),
    Case(
        "same-1k",
        "resume",
        {"subscribers": 1000, "messages": 10_000, "window": 500},
        (Demand("log_cpu_ms", 3, False, "same-1"),),
        reads_metrics=True,
        ours_alone=True,
        timed=False,
    ),
    _stall("stall-q0-off", 0, keeps=False),
    _stall("stall-q1-off", 1, keeps=False),
    _stall("stall-q0", 0, keeps=True),
    _stall("stall-q1", 1, keeps=True),
)
