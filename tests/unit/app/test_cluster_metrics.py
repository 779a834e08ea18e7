"""Metrics and readiness of a broker of a cluster: what is told, that each is documented."""

from dataclasses import fields
from pathlib import Path

from prometheus_client import CollectorRegistry

from everlog.app.cluster_health import ClusterHealth
from everlog.app.cluster_metrics import ClusterCollector
from everlog.cluster import ClusterNumbers, ShardNumbers
from everlog.ownership import Board

REFERENCE = Path(__file__).parents[3] / "docs" / "reference" / "metrics.md"
OWNED = ShardNumbers(0, True, True, 7, 3, 300, 12, True, 1.5, True, 2, 0, 4, 400)
FOLLOWED = ShardNumbers(1, False, False, 9, 0, 0, 0, False, 0.0, False, 1, 6, 0, 0)
NUMBERS = ClusterNumbers("a", 5, False, 1, 0.25, 3, 1, 1, 2, 1, 1000, 8, True, (OWNED, FOLLOWED))


def registry() -> CollectorRegistry:
    made = CollectorRegistry()
    made.register(ClusterCollector(lambda: NUMBERS))
    return made


def test_numbers_are_told_as_they_are() -> None:
    made = registry()
    for name, value in {
        "incarnation": 5,
        "links_down": 1,
        "shards_owned": 1,
        "shards_unowned": 1,
        "standbys": 2,
    }.items():
        assert made.get_sample_value(f"everlog_cluster_{name}") == value
    assert made.get_sample_value("everlog_cluster_tail_fill_ratio") == 0.3
    assert made.get_sample_value("everlog_cluster_commit_doubts_total", {"shard": "1"}) == 1
    assert made.get_sample_value("everlog_cluster_followed_lag_messages", {"shard": "1"}) == 6


def test_each_is_documented_and_nothing_else_is() -> None:
    told = {one.name + ("_total" if one.type == "counter" else "") for one in registry().collect()}
    text = REFERENCE.read_text()
    documented = {
        line.split("`")[1].split("{")[0] for line in text.splitlines() if line.startswith("| `everlog_cluster_")
    }
    assert told == documented


def test_all_of_a_shard_is_told() -> None:
    samples = [sample for one in registry().collect() for sample in one.samples]
    told = {sample.value for sample in samples if sample.labels.get("shard") == "0"}
    assert told == {float(getattr(OWNED, field.name)) for field in fields(ShardNumbers) if field.name != "shard"}


class Keeper:
    """A keeper as the checks see it."""

    beaten_at = 100.0
    trouble = ""
    is_draining = False

    def __init__(self) -> None:
        self.owners = [1, 2]

    def owner_of(self, shard: int) -> int:
        return self.owners[shard]


def test_a_broker_is_ready_while_it_beats_and_shards_have_owners() -> None:
    keeper, now = Keeper(), [101.0]
    health = ClusterHealth(keeper, 2, 5.0, lambda: now[0])  # type: ignore[arg-type]

    def reasons() -> list[str]:
        health.look(Board())
        return [reason for check in health.checks if (reason := check()) is not None]

    assert reasons() == []
    keeper.owners[1] = 0
    assert reasons() == []  # a moment without an owner is no reason
    now[0] = keeper.beaten_at = 112.0
    assert reasons() == ["no broker owns shard 1"]
    keeper.owners[1] = 3
    assert reasons() == []
    now[0], keeper.trouble = 118.0, "PostgreSQL: connection refused"
    assert [reason.split(":")[0] for reason in reasons()] == ["no beat was stored for 6 s", "the cluster's database"]
    keeper.beaten_at, keeper.trouble, keeper.is_draining = 118.0, "", True
    assert reasons() == ["this broker is drained"]
