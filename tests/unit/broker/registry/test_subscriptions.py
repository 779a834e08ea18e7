"""Subscriptions, as far as the wire does not show it; `tests/conformance/` has the rest."""

import pytest
from tests.stages import Stage

from everlog.mqtt import Subscription


@pytest.fixture
def stage():
    made = Stage()
    yield made
    made.close()


KEEP = {"clean_start": False, "expiry": 100}


def test_what_a_durable_session_subscribes_to_is_kept_once_each(stage):
    client = stage.connected("c", **KEEP)
    client.subscribe("a", "b/+", "a", "$share/g/s/#", qos=1)
    assert stage.call(stage.inside.kept_filters) == [("a", 0), ("b/+", 0), ("s/#", 0)]
    client.subscribe("a")
    client.unsubscribe("a", "a", "never")
    assert stage.call(stage.inside.kept_filters) == [("b/+", 0), ("s/#", 0)]


def test_what_a_clean_session_subscribes_to_is_not_kept(stage):
    stage.connected("c").subscribe("a", qos=2)
    assert stage.call(stage.inside.kept_filters) == []
    stage.connected("p").publish("a", "x", 1)
    assert stage.inside.messages_kept == 0


def test_a_session_that_is_away_is_in_no_audience(stage):
    client = stage.connected("c", **KEEP)
    client.subscribe("a", "$share/g/b", qos=1)
    assert stage.inside.live_subscriptions == 2
    client.disconnect()
    stage.offline("c")
    assert stage.inside.live_subscriptions == 0
    stage.connected("c", **KEEP)
    assert stage.inside.live_subscriptions == 2


def test_no_local_subscriptions_are_counted(stage):
    client = stage.connected("c", **KEEP)
    session = stage.inside.sessions["c"]
    client.subscribe(Subscription("a", no_local=True), Subscription("b", no_local=True), Subscription("c"))
    assert session.no_local == 2
    client.subscribe(Subscription("a"), Subscription("c", no_local=True))
    client.unsubscribe("b")
    assert session.no_local == 1
    client.unsubscribe("c")
    assert session.no_local == 0


def test_an_acknowledged_publish_without_no_local_remembers_nothing(stage):
    client = stage.connected("c")
    client.subscribe("a")
    client.publish("a", "x", 1)
    assert stage.inside.sessions["c"].own(255) == []
