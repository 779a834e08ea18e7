"""paho-mqtt, MQTT 3.1.1 and 5."""

import threading

import paho.mqtt.client as paho
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions
from tests.brokers import RunningBroker
from tests.interop.clients import PahoClient

VERSIONS = [pytest.param(paho.MQTTv311, id="v3.1.1"), pytest.param(paho.MQTTv5, id="v5")]
pytestmark = pytest.mark.parametrize("version", VERSIONS)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_messages_both_ways(broker: RunningBroker, version, qos):
    client = PahoClient(broker, version, "c")
    client.subscribe("t/#", qos)
    for number in range(200):
        client.paho.publish(f"t/{number % 7}", str(number), qos)
    found = client.got.wait(200)
    assert [int(payload) for _, payload, _, _ in found] == list(range(200))
    assert {level for _, _, level, _ in found} == {qos}
    client.stop()


def test_large_payloads(broker: RunningBroker, version):
    client = PahoClient(broker, version, "c")
    client.subscribe("big", 2)
    payloads = [bytes([qos]) * size for qos, size in ((0, 1_000_000), (1, 1_048_576), (2, 3_000_000))]
    for qos, payload in enumerate(payloads):
        client.publish("big", payload, qos)
    assert [payload for _, payload, _, _ in client.got.wait(3)] == payloads
    client.stop()


def test_many_messages(broker: RunningBroker, version):
    subscriber, publisher = PahoClient(broker, version, "s"), PahoClient(broker, version, "p")
    subscriber.subscribe("many", 1)
    for number in range(3000):
        publisher.paho.publish("many", str(number), 1)
    assert [int(payload) for _, payload, _, _ in subscriber.got.wait(3000)] == list(range(3000))
    publisher.stop()
    subscriber.stop()


def test_retained_messages(broker: RunningBroker, version):
    publisher = PahoClient(broker, version, "p")
    publisher.publish("r/a", "old", 1, True)
    publisher.publish("r/a", "new", 1, True)
    publisher.publish("r/b", "b", 2, True)
    publisher.publish("r/c", "c", 0, True)
    publisher.publish("r/c", "", 0, True)
    publisher.stop()
    subscriber = PahoClient(broker, version, "s")
    subscriber.subscribe("r/#", 2)
    assert sorted(subscriber.got.wait(2)) == [("r/a", b"new", 1, True), ("r/b", b"b", 2, True)]
    subscriber.stop()


def test_a_will(broker: RunningBroker, version):
    watcher = PahoClient(broker, version, "w")
    watcher.subscribe("will", 1)
    PahoClient(broker, version, "c", will=("will", "gone", 1, False)).stop()
    PahoClient(broker, version, "d", will=("will", "lost", 1, False)).drop()
    assert watcher.got.wait(1) == [("will", b"lost", 1, False)]
    watcher.stop()


@pytest.mark.parametrize("qos", [1, 2])
def test_a_session_is_resumed(broker: RunningBroker, version, qos):
    first = PahoClient(broker, version, "s", clean=False, expiry=100)
    assert not first.session_present
    first.subscribe("t", qos)
    first.stop()
    publisher = PahoClient(broker, version, "p")
    for number in range(50):
        publisher.publish("t", str(number), qos)
    second = PahoClient(broker, version, "s", clean=False, expiry=100)
    assert second.session_present
    found = second.got.wait(50)
    assert [int(payload) for _, payload, _, _ in found] == list(range(50))
    second.stop()
    third = PahoClient(broker, version, "s", clean=True)
    assert not third.session_present
    third.stop()
    publisher.stop()


def test_options_and_properties(broker: RunningBroker, version):
    if version != paho.MQTTv5:
        pytest.skip("MQTT 5 has them")
    client = PahoClient(broker, version, "c")
    seen = []
    done = threading.Event()

    def on_message(_client, _data, message):
        seen.append(message)
        if message.payload == b"end":
            done.set()

    client.paho.on_message = on_message
    identified = Properties(PacketTypes.SUBSCRIBE)
    identified.SubscriptionIdentifier = 42
    client.subscribe("p", options=SubscribeOptions(1, noLocal=False), properties=identified)
    client.subscribe("mine", options=SubscribeOptions(1, noLocal=True))
    properties = Properties(PacketTypes.PUBLISH)
    properties.UserProperty = [("a", "1"), ("b", "2")]
    properties.ResponseTopic = "answer"
    properties.CorrelationData = b"\x00\x01"
    properties.ContentType = "text/plain"
    properties.MessageExpiryInterval = 100
    client.paho.publish("mine", "not back to me", 1)
    client.paho.publish("p", "x", 1, properties=properties)
    client.paho.publish("p", "end", 1)
    assert done.wait(10)
    assert [one.payload for one in seen] == [b"x", b"end"]
    found = seen[0].properties
    assert found.UserProperty == [("a", "1"), ("b", "2")]
    assert (found.ResponseTopic, found.CorrelationData, found.ContentType) == ("answer", b"\x00\x01", "text/plain")
    assert found.SubscriptionIdentifier == [42]
    client.stop()
