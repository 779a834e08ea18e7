"""The metrics: what they count, and that each is described and documented."""

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.brokers import RunningBroker
from tests.listening import eventually, on_loop
from tests.raw_client import RawClient

from everlog.broker import Metrics
from everlog.mqtt import Publish
from everlog.sessions import Session
from everlog.web import Exposition
from everlog.web.prometheus import _SUMMED, COUNTERS

REFERENCE = Path(__file__).parents[3] / "docs" / "reference" / "metrics.md"


@pytest.fixture
def running() -> Iterator[RunningBroker]:
    with RunningBroker(keep=[("kept/#", 0)]) as broker:
        yield broker


def read(running: RunningBroker, names_clients: bool = False) -> dict[str, float]:
    """Every sample by its name and labels."""

    async def text() -> bytes:
        return await Exposition(running.broker.reports, names_clients=names_clients).text()

    found = {}
    for family in text_string_to_metric_families(on_loop(running, text()).decode()):
        for sample in family.samples:
            labels = ",".join(f"{key}={value}" for key, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def names_of(exposition: Exposition) -> set[str]:
    """Return every metric's name."""
    return {one.name + ("_total" if one.type == "counter" else "") for one in exposition._registry.collect()}


def test_they_follow_what_clients_do(running: RunningBroker) -> None:
    got: list[bytes] = []
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, "c")
    client.on_message = lambda _c, _u, message: got.append(message.payload)
    client.connect("127.0.0.1", running.port)
    client.loop_start()
    client.subscribe("#", 1)
    client.publish("kept/a", b"one", 1).wait_for_publish(20)
    client.publish("other", b"two", 1, retain=True).wait_for_publish(20)
    eventually(lambda: len(got) == 2, "both came back")
    found = read(running)
    expected = {
        "everlog_connections": 1,
        "everlog_sessions": 1,
        "everlog_subscriptions": 1,
        "everlog_subscriptions_live": 1,
        "everlog_retained_messages": 1,
        "everlog_messages_received_total": 2,
        "everlog_messages_kept_total": 1,
        "everlog_messages_sent_total": 2,
        "everlog_connects_total": 1,
        "everlog_subscribes_total": 1,
        "everlog_log_committed{shard=0}": 1,
        "everlog_log_end{shard=0}": 1,
        "everlog_log_failed{shard=0}": 0,
    }
    assert {name: found[name] for name in expected} == expected
    assert found["everlog_received_bytes_total"] > 0
    assert found["everlog_sent_bytes_total"] > 0
    client.disconnect()
    client.loop_stop()


def test_the_sessions_most_behind_are_named(running: RunningBroker) -> None:
    def put() -> None:
        session = Session('a "strange"\nname', expiry_s=60, lag={0: 0})
        running.inside.add_session(session)
        running.log.shards[0].committed = 7
        running.inside.routed[0] = 7

    running.call(put)
    assert not [name for name in read(running) if "client_id" in name]  # to nobody but whom the settings allow
    found = read(running, names_clients=True)
    assert found["everlog_sessions_behind"] == 1
    assert found["everlog_session_lag_max_messages"] == 7
    assert found['everlog_session_lag_messages{client_id=a "strange"\nname}'] == 7
    running.call(running.inside.forget_sessions)


def test_shared_groups_are_told_with_their_lag(running: RunningBroker) -> None:
    with RawClient(running.port) as client:
        client.connect("worker", clean_start=False, expiry=1000)
        client.subscribe("$share/g/a/+", qos=1)
        client.publish("a/b", "1", 1)
        client.expect(Publish)
        found = read(running)
        for name, value in (("lag_messages", 1), ("inflight_messages", 1), ("members", 1)):
            assert found[f"everlog_group_{name}{{filter=a/+,group=g}}"] == value
        assert (found["everlog_groups"], found["everlog_groups_durable"]) == (1, 1)
        client.unsubscribe("$share/g/a/+")
        assert read(running)["everlog_groups"] == 0


def test_every_counter_of_the_broker_has_a_meaning() -> None:
    assert {field.name for field in fields(Metrics)} == {*COUNTERS, *_SUMMED}


def test_every_metric_is_documented(running: RunningBroker) -> None:
    names = running.call(lambda: names_of(Exposition(running.broker.reports, names_clients=True)))
    text = REFERENCE.read_text()
    assert not sorted(name for name in names if f"`{name}`" not in text and f"`{name}{{" not in text)
