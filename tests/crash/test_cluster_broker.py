"""A broker in this process on the log of a cluster whose shards it owns: what clients see is what they always see."""

from collections.abc import Iterator

import pytest
from tests.stages import Stage


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    monkeypatch.setenv("EVERLOG_TEST_CLUSTER", "1")
    made = Stage(keep=[("#", 0)])
    yield made
    made.close()


def test_a_session_that_was_away_gets_what_it_missed_from_the_cluster(stage: Stage) -> None:
    away = stage.connected("away", clean_start=False, expiry=1000)
    away.subscribe("t/#", qos=2)
    away.close()
    stage.offline("away")
    publisher = stage.connected("publisher")
    for number in range(30):
        assert not publisher.publish(f"t/{number % 3}", str(number), qos=1 + number % 2).is_error
    assert stage.running.log.shards[0].committed == 30
    again = stage.connected("away", clean_start=False, expiry=1000)
    assert again.payloads(30) == [str(number) for number in range(30)]


def test_live_and_replayed_messages_and_retained_ones(stage: Stage) -> None:
    publisher = stage.connected("publisher")
    publisher.publish("r", "kept", qos=1, retain=True)
    live = stage.connected("live")
    live.subscribe("#", qos=1)
    assert live.payloads(1) == ["kept"]
    publisher.publish("t", "now", qos=1)
    assert live.payloads(1) == ["now"]
    late = stage.connected("late")
    late.subscribe("$replay/earliest/t", qos=1)
    assert late.payloads(1) == ["now"]
