"""`everlog bench cluster`: three brokers of a cluster beside the single broker, a short run of it."""

import pytest
from tests.postgres_server import shared_server

from everlog.bench.cluster import measure_brokers, three_brokers


@pytest.mark.soak
def test_it_measures_rates_processes_and_the_way_to_another_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(three_brokers, "ROUNDS", 1)
    monkeypatch.setattr(three_brokers, "SECONDS", 0.3)
    monkeypatch.setattr(three_brokers, "LATENCY_SECONDS", 0.3)
    rows = measure_brokers(shared_server().url)
    assert all(value >= 0 for _, value, _, _ in rows)
    names = [name for name, _, _, _ in rows]
    for topics in ("1 topic", "1000 topics"):
        for what in ("everlog", "cluster, to the owner", "cluster, to another broker: all three"):
            assert f"{topics}, {what}" in names
    assert any("delivered at a third" in name for name in names)
