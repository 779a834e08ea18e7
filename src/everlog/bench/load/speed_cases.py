"""The cases of `everlog bench check` beside those of `bench peers`: sizes, crowds, lone and retained messages.

Those of sessions and connections, which come and go, are in `fleet_cases`."""

from typing import Any

from everlog.bench.load.cases import CPU, DISK, P50, P99, PUBLISH_CPU, RATE, Case, Demand

_WRITE_1M, _WRITE_400K = "write.1M", "write.400K"
_SYNC_CPU, _SYNC_P50, _SYNC_P99 = "sync.cpu_us", "sync.p50_us", "sync.p99_us"
_MB = "mb_per_s"
_KIB = (1, 4, 16, 64, 256)
_PUBLISH_RATE, _AGAIN_RATE, _AGAIN_CPU = "publish.msgs_per_s", "again.msgs_per_s", "again.broker.cpu_us_per_msg"
_FEW_TOPICS = 10_000
GROWN = Demand("grown_mb", 100, False, "")  # resident memory


def _sized(kib: int, publishers: int) -> dict[str, Any]:
    return {"qos": 1, "window": 50, "publishers": publishers, "size": kib << 10}


def _kept(kib: int) -> Case:
    demands = (Demand(_MB, 0.6, True, DISK, disk=_WRITE_1M, cap=900), Demand(CPU, 1, False), GROWN)
    return Case(f"in-{kib}K", "ingest", _sized(kib, 4), demands)


_AS_FAST = (Demand(RATE, 1, True),)
_THRICE = (Demand(RATE, 3, True),)
_IN_MEMORY = ("--durability", "memory")

_MANY_TOPICS = tuple(
    word
    for limit in ("topics=2000000", "topics_bytes=256MiB", "retained_messages=2000000", "retained_bytes=2GiB")
    for word in ("--set", f"limits.{limit}")
)


def _retained(name: str, messages: int) -> Case:
    """Return a case of retained messages on so many topics: new, sent to a new subscriber, found, replaced."""
    demands: tuple[Demand, ...] = (
        Demand(_PUBLISH_RATE, 2, True),
        Demand(PUBLISH_CPU, 1, False),
        Demand(_AGAIN_RATE, 2, True),
        Demand(_AGAIN_CPU, 1, False),
        Demand(RATE, 1.5, True),
        Demand("bytes_per_message", 600, False, ""),
        Demand("find.seconds", 0.01, False, ""),
    )
    if messages > _FEW_TOPICS:
        demands = (
            *demands,
            Demand(PUBLISH_CPU, 1.3, False, "retain-10k"),
            Demand(_AGAIN_CPU, 1.3, False, "retain-10k"),
        )
    options = {"messages": messages, "publishers": 8, "window": 500, "timeout": 300.0}
    return Case(name, "retained", options, demands, timed=False, arguments=_MANY_TOPICS)


SPEED_CASES = (
    *map(_kept, _KIB),
    Case(
        "in-16K-1p",
        "ingest",
        _sized(16, 1),
        (Demand(_MB, 0.6, True, DISK, disk=_WRITE_400K), Demand(CPU, 1.3, False), GROWN),
    ),
    *(Case(f"in-{kib}K-mem", "ingest", _sized(kib, 4), _AS_FAST, arguments=_IN_MEMORY) for kib in _KIB),
    *(
        Case(f"in-{kib}K-off", "ingest", _sized(kib, 4), _THRICE if kib == 16 else _AS_FAST, keeps=False)
        for kib in _KIB
    ),
    Case(
        "fan-16K-off",
        "fanout",
        {"qos": 1, "window": 50, "size": 16 << 10},
        _THRICE,
        keeps=False,
    ),
    Case("crowd-500", "many", {"connections": 500}, (Demand(RATE, 1.8, True), Demand(CPU, 0.6, False), GROWN)),
    Case(
        "lone-1k/s",
        "fanout",
        {"qos": 1, "rate": 1000.0},
        (
            Demand(CPU, 1, False, plus=1.3, disk=_SYNC_CPU),
            Demand(P50, 1, False, plus=1.2, disk=_SYNC_P50),
            GROWN,
        ),
    ),
    Case(
        "crowd-10k",
        "many",
        {"connections": 10_000, "rate": 12_000.0},
        (
            Demand(CPU, 1.2, False, plus=1, disk=_SYNC_CPU),
            Demand(P99, 5000, False, "", plus=1, disk=_SYNC_P99),
            GROWN,
        ),
    ),
    Case(
        "fan-1:1000-q1",
        "fanout",
        {"qos": 1, "subscribers": 1000, "window": 50, "outstanding": 100_000},
        (Demand(RATE, 15, True), GROWN),
    ),
    _retained("retain-10k", _FEW_TOPICS),
    _retained("retain-100k", 100_000),
    _retained("retain-1M", 1_000_000),
)
