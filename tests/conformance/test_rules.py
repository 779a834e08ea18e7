"""Rules that change while clients are connected hold for them, too."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.stages import Stage

from everlog.broker import Security
from everlog.mqtt import Properties, Puback, Publish, Reason, Will


def test_rules_read_anew_hold_for_who_is_connected(stages: Callable[..., Stage], tmp_path: Path) -> None:
    rules = tmp_path / "acl"
    rules.write_text("everyone readwrite a/#\neveryone readwrite b/#\n")
    stage = stages(security=Security(acl_file=str(rules)))
    client = stage.connected()
    client.subscribe("a/#", "b/#")
    client.send(Publish("a/1", b"before", qos=1, packet_id=1))
    assert client.answer(Puback).reason is Reason.SUCCESS
    rules.write_text("everyone readwrite b/#\n")
    stage.call(stage.inside.reload)
    client.send(Publish("a/1", b"after", qos=1, packet_id=2))
    assert client.answer(Puback).reason is Reason.NOT_AUTHORIZED
    client.send(Publish("b/1", b"still", qos=1, packet_id=3))
    assert client.answer(Puback).reason is Reason.SUCCESS
    assert stage.call(lambda: [*stage.inside.connected_sessions[0].subscriptions]) == ["b/#"]


def test_a_will_that_the_rules_allow_no_more_is_not_sent(
    stages: Callable[..., Stage], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rules = tmp_path / "acl"
    rules.write_text("everyone readwrite a/#\neveryone readwrite b/#\n")
    stage = stages(security=Security(acl_file=str(rules)))
    watcher = stage.connected("watcher")
    watcher.subscribe("a/#", "b/#")
    late = Properties(will_delay_interval=60)
    live = stage.connected("live", will=Will("a/live", b"gone"))
    allowed = stage.connected("allowed", will=Will("b/live", b"gone"))
    for topic in ("a/late", "b/late"):
        stage.connected(topic, clean_start=False, expiry=1000, will=Will(topic, b"gone", properties=late)).close()
        stage.offline(topic)
    rules.write_text("everyone read a/#\neveryone readwrite b/#\n")
    stage.call(stage.inside.reload)
    live.close()
    stage.until(lambda: "live" not in stage.inside.sessions)
    allowed.close()
    assert watcher.message().topic == "b/live"
    stage.later(61)
    assert watcher.message().topic == "b/late"
    stage.later(2000)
    watcher.expect_nothing()
    assert (stage.broker.metrics.refused, stage.broker.metrics.wills) == (2, 2)
    lines = [one.getMessage() for one in caplog.records if "will_refused" in one.getMessage()]
    assert [topic for line in lines for topic in ("a/live", "a/late") if topic in line] == ["a/live", "a/late"]
