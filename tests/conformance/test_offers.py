"""What a broker can be told not to offer: QoS 2 or 1, retained messages, QoS 0 messages of when a client was away."""

import pytest
from tests.conformance.clause import clauses

from everlog.broker import Limits
from everlog.mqtt import Connack, Connect, Publish, Reason, Will


@clauses("MQTT-3.2.2-9 MQTT-3.2.2-11")
@pytest.mark.parametrize("most", [0, 1])
def test_a_qos_above_the_highest_closes(stages, version, most):
    stage = stages(limits=Limits(qos=most))
    with stage.client(version) as client:
        answer = client.connect("c")
        assert version != 5 or answer.properties.maximum_qos == most
        client.publish("a", "x", most)
        client.send(Publish("a", b"x", most + 1, packet_id=9))
        client.expect_closed(Reason.QOS_NOT_SUPPORTED)


@clauses("MQTT-3.2.2-10")
def test_subscriptions_are_granted_the_highest_qos(stages, version):
    stage = stages(limits=Limits(qos=1))
    client = stage.connected("c", version)
    assert [int(reason) for reason in client.subscribe("a", "b", qos=2)] == [1, 1]
    client.publish("a", "x", 1)
    assert client.message().qos == 1


@clauses("MQTT-3.2.2-12 MQTT-3.2.2-13")
@pytest.mark.parametrize(
    ("limits", "will", "reason"),
    [
        (Limits(qos=1), Will("w", b"", 2), Reason.QOS_NOT_SUPPORTED),
        (Limits(retain=False), Will("w", b"", 0, True), Reason.RETAIN_NOT_SUPPORTED),
    ],
)
def test_a_will_beyond_what_is_offered_is_refused(stages, limits, will, reason):
    with stages(limits=limits).client() as client:
        client.send(Connect(5, "c", will=will))
        assert client.expect(Connack).reason is reason
        client.expect_closed()


@clauses("MQTT-3.2.2-14")
def test_a_retained_message_closes_where_nothing_is_retained(stages, version):
    stage = stages(limits=Limits(retain=False))
    with stage.client(version) as client:
        answer = client.connect("c")
        assert version != 5 or answer.properties.retain_available == 0
        client.publish("a", "x", 1)
        client.send(Publish("a", b"x", 1, retain=True, packet_id=9))
        client.expect_closed(Reason.RETAIN_NOT_SUPPORTED)


@pytest.mark.parametrize("granted", [0, 2])
@pytest.mark.parametrize("wanted", [True, False])
def test_qos_0_messages_of_when_a_client_was_away_can_be_left_out(stages, wanted, granted):
    stage = stages(limits=Limits(absent_qos_0=wanted), keep=[("#", 0)])
    client = stage.connected("c", clean_start=False, expiry=100)
    client.subscribe("a", qos=granted)
    client.close()
    stage.offline("c")
    other = stage.connected("other")
    for number in range(6):
        other.publish("a", str(number), number % 2)
    client = stage.connected("c", clean_start=False, expiry=100)
    other.publish("a", "back", 0)
    missed = [str(n) for n in range(6) if wanted or (n % 2 and granted)]
    assert client.payloads(len(missed) + 1) == [*missed, "back"]
    client.expect_nothing()
