"""Wills (sections 3.1.2.5 and 3.1.3.2): when they are sent, when not, and as what."""

import pytest
from tests.conformance.clause import clauses

from everlog.mqtt import Connect, Properties, Publish, Reason, Will


def watching(stage, version=5, qos=2):
    watcher = stage.connected("watcher", version)
    watcher.subscribe("will/#", qos=qos)
    return watcher


def will(**options):
    properties = Properties(**options.pop("properties", {}))
    return Will("will/c", b"gone", **options, properties=properties)


@clauses("MQTT-3.1.2-7 MQTT-3.1.2-8 MQTT-3.1.2-14", v4="MQTT-3.1.2-8 MQTT-3.1.2-16")
@pytest.mark.parametrize("end", ["close", "reset"])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_lost_connection_sends_the_will(stage, version, end, qos):
    watcher = watching(stage, version)
    client = stage.connected("c", version, will=will(qos=qos))
    getattr(client, end)()
    found = watcher.message()
    assert (found.topic, found.payload, found.qos, found.retain) == ("will/c", b"gone", qos, False)
    watcher.expect_nothing()


@clauses("MQTT-3.14.4-3 MQTT-3.1.2-8 MQTT-3.1.2-10", v4="MQTT-3.14.4-3 MQTT-3.1.2-10")
def test_a_normal_disconnect_discards_the_will(stage, version):
    watcher = watching(stage, version)
    stage.connected("c", version, will=will()).disconnect()
    stage.until(lambda: "c" not in stage.inside.sessions)
    watcher.expect_nothing()


@clauses("MQTT-3.1.2-10", v4="MQTT-3.1.2-10")
def test_a_discarded_will_stays_discarded(stage, version):
    watcher = watching(stage, version)
    stage.connected("c", version, will=will(), clean_start=False, expiry=100).disconnect()
    stage.offline("c")
    stage.connected("c", version, clean_start=False, expiry=100).close()
    stage.offline("c")
    stage.later(10_000)
    watcher.expect_nothing()


@clauses(v4="MQTT-3.1.2-12")
def test_without_a_will_none_is_sent(stage, version):
    watcher = watching(stage, version)
    stage.connected("c", version).close()
    stage.until(lambda: "c" not in stage.inside.sessions)
    watcher.expect_nothing()


@clauses("MQTT-3.1.2-8 MQTT-3.14.4-3")
@pytest.mark.parametrize("reason", [Reason.DISCONNECT_WITH_WILL_MESSAGE, Reason.UNSPECIFIED_ERROR])
def test_a_disconnect_can_ask_for_the_will(stage, reason):
    watcher = watching(stage)
    stage.connected("c", will=will()).disconnect(reason)
    assert watcher.payloads(1) == ["gone"]


@clauses("MQTT-3.1.2-8", v4="MQTT-3.1.2-8")
def test_a_protocol_error_sends_the_will(stage, version):
    watcher = watching(stage, version)
    client = stage.connected("c", version, will=will())
    client.send(Connect(version, "c"))
    assert watcher.payloads(1) == ["gone"]


@clauses("MQTT-3.1.2-22 MQTT-3.1.2-8 MQTT-3.1.2-20", v4="MQTT-3.1.2-24 MQTT-3.1.2-8 MQTT-3.1.2-23")
def test_a_silent_client_is_disconnected_and_its_will_sent(stage, version):
    watcher = watching(stage, version)
    client = stage.connected("c", version, keep_alive=10, will=will())
    stage.later(14)
    client.expect_nothing()
    watcher.expect_nothing()
    stage.later(16)
    client.expect_closed(Reason.KEEP_ALIVE_TIMEOUT)
    assert watcher.payloads(1) == ["gone"]
    assert stage.broker.metrics.keep_alive_timeouts == 1


@clauses("MQTT-3.1.2-22 MQTT-3.2.2-22", v4="MQTT-3.1.2-24")
def test_without_keep_alive_a_client_may_be_silent(stage, version):
    client = stage.connected("c", version, keep_alive=0)
    stage.later(1_000_000)
    client.expect_nothing()


@clauses("MQTT-3.1.2-15 MQTT-3.3.1-5", v4="MQTT-3.1.2-17")
def test_a_will_can_be_retained(stage, version):
    stage.connected("c", version, will=will(retain=True, qos=1)).close()
    stage.until(lambda: "c" not in stage.inside.sessions)
    late = stage.connected("late", version)
    late.subscribe("will/c", qos=1)
    found = late.message()
    assert (found.payload, found.retain, found.qos) == (b"gone", True, 1)


@clauses("MQTT-3.1.2-14", v4="MQTT-3.1.2-16")
def test_a_will_that_is_not_retained_is_not(stage, version):
    stage.connected("c", version, will=will()).close()
    stage.until(lambda: "c" not in stage.inside.sessions)
    late = stage.connected("late", version)
    late.subscribe("will/c")
    late.expect_nothing()


@clauses("MQTT-3.1.2-8")
def test_a_will_waits_for_its_delay(stage):
    watcher = watching(stage)
    late = will(properties={"will_delay_interval": 60})
    stage.connected("c", clean_start=False, expiry=1000, will=late).close()
    stage.offline("c")
    stage.later(59)
    watcher.expect_nothing()
    stage.later(2)
    assert watcher.payloads(1) == ["gone"]
    stage.later(2000)
    watcher.expect_nothing()


@clauses("MQTT-3.1.2-8 MQTT-3.1.2-10")
def test_a_will_is_sent_at_the_latest_when_the_session_ends(stage):
    watcher = watching(stage)
    late = will(properties={"will_delay_interval": 1000})
    stage.connected("c", clean_start=False, expiry=20, will=late).close()
    stage.offline("c")
    stage.later(19)
    watcher.expect_nothing()
    stage.later(2)
    assert watcher.payloads(1) == ["gone"]
    watcher.expect_nothing()


@clauses("MQTT-3.1.2-8")
def test_a_delayed_will_of_a_session_without_expiry_is_sent_at_once(stage):
    watcher = watching(stage)
    stage.connected("c", will=will(properties={"will_delay_interval": 60})).close()
    assert watcher.payloads(1) == ["gone"]


@clauses("MQTT-3.1.3-9 MQTT-3.1.2-8")
def test_a_client_that_is_back_in_time_has_no_will_sent(stage):
    watcher = watching(stage)
    late = will(properties={"will_delay_interval": 60})
    stage.connected("c", clean_start=False, expiry=1000, will=late).close()
    stage.offline("c")
    client = stage.connected("c", clean_start=False, expiry=1000)
    stage.later(120)
    client.expect_nothing()
    watcher.expect_nothing()


@clauses("MQTT-3.1.3-9")
def test_the_delay_counts_from_the_last_loss(stage):
    watcher = watching(stage)
    late = will(properties={"will_delay_interval": 60})
    for _ in range(2):
        stage.connected("c", clean_start=False, expiry=1000, will=late).close()
        stage.offline("c")
        stage.later(40)
        watcher.expect_nothing()
    stage.later(30)
    assert watcher.payloads(1) == ["gone"]
    watcher.expect_nothing()


@clauses("MQTT-3.1.4-3 MQTT-3.1.2-8", v4="MQTT-3.1.4-2 MQTT-3.1.2-8")
def test_a_take_over_sends_the_will_of_the_old_connection(stage, version):
    watcher = watching(stage, version)
    stage.connected("c", version, clean_start=False, expiry=100, will=will())
    stage.connected("c", version, clean_start=False, expiry=100)
    assert watcher.payloads(1) == ["gone"]
    watcher.expect_nothing()


@clauses("MQTT-3.1.3-9")
def test_a_take_over_within_the_delay_sends_no_will(stage):
    watcher = watching(stage)
    late = will(properties={"will_delay_interval": 60})
    stage.connected("c", clean_start=False, expiry=100, will=late)
    stage.connected("c", clean_start=False, expiry=100)
    stage.later(200)
    watcher.expect_nothing()


@clauses("MQTT-3.1.2-8 MQTT-3.1.2-4")
def test_a_clean_take_over_ends_the_session_and_sends_the_will(stage):
    watcher = watching(stage)
    late = will(properties={"will_delay_interval": 60})
    stage.connected("c", clean_start=False, expiry=100, will=late)
    stage.connected("c", clean_start=True)
    assert watcher.payloads(1) == ["gone"]


@clauses("MQTT-3.1.3-10 MQTT-3.3.2-4 MQTT-3.3.2-15 MQTT-3.3.2-16 MQTT-3.3.2-20")
def test_a_wills_properties_are_sent(stage):
    watcher = watching(stage)
    pairs = (("b", "2"), ("a", "1"), ("b", "1"))
    properties = {
        "payload_format_indicator": 1,
        "message_expiry_interval": 77,
        "content_type": "text/plain",
        "response_topic": "answer",
        "correlation_data": b"\x00\xff",
        "user_properties": pairs,
    }
    stage.connected("c", will=will(properties={**properties, "will_delay_interval": 0})).close()
    assert watcher.message().properties == Properties(**properties)


@clauses("MQTT-3.1.2-23 MQTT-4.5.0-1", v4="MQTT-3.1.2-5")
def test_a_will_is_kept_for_who_is_away(stage, version):
    away = stage.connected("away", version, clean_start=False, expiry=100)
    away.subscribe("will/+", qos=1)
    away.disconnect()
    stage.offline("away")
    stage.connected("c", version, will=will(qos=1)).close()
    stage.until(lambda: "c" not in stage.inside.sessions)
    away = stage.connected("away", version, clean_start=False, expiry=100)
    assert away.payloads(1) == ["gone"]


def test_a_will_to_a_topic_of_the_broker_is_refused(stage):
    client = stage.client()
    assert client.connect("c", will=Will("$SYS/broker/version", b"x")).reason is Reason.TOPIC_NAME_INVALID
    client.expect_closed()


def test_wills_go_on_after_one_that_could_not_be_sent(stage):
    watcher = watching(stage)
    stage.call(stage.inside.spoil_own_messages)
    stage.call(lambda: stage.inside.publish(Publish("will/x", b"lost")))
    stage.connected("c", will=will()).close()
    assert watcher.message().topic == "will/c"
