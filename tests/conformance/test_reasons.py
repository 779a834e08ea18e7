"""Reason strings: who is told why in words, and that they never make a packet too large (MQTT 5)."""

import pytest
from tests.conformance.clause import clauses

from everlog.base import StorageError
from everlog.broker import Limits, Security
from everlog.mqtt import (
    NO_PROPERTIES,
    Connack,
    Connect,
    Disconnect,
    Properties,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Reason,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    Will,
    encode,
)


@pytest.fixture
def ruled(stages, tmp_path):
    rules = tmp_path / "acl"
    rules.write_text("everyone readwrite open/#\n")
    return stages(security=Security(acl_file=str(rules)), limits=Limits(client_id_bytes=20))


def refused_publish(client, qos):
    client.send(Publish("shut", b"x", qos, packet_id=7))
    return client.expect(Puback if qos == 1 else Pubrec)


def refused_subscribe(client):
    client.send(Subscribe(7, (Subscription("shut"), Subscription("open/a"), Subscription("also/shut"))))
    return client.expect(Suback)


def refused_release(client):
    client.send(Pubrel(7))
    return client.expect(Pubcomp)


def refused_packet(client):
    client.send_bytes(b"\x00\x00")
    return client.expect(Disconnect)


REFUSALS = {
    "PUBACK": (lambda client: refused_publish(client, 1), "not allowed to publish to this topic"),
    "PUBREC": (lambda client: refused_publish(client, 2), "not allowed to publish to this topic"),
    "PUBCOMP": (refused_release, "no message with this packet identifier waits to be released"),
    "SUBACK": (refused_subscribe, "the filter is not allowed"),
    "DISCONNECT": (refused_packet, "packet type 0 [MQTT-2.1.2]"),
}
each_refusal = pytest.mark.parametrize(("refuse", "words"), REFUSALS.values(), ids=REFUSALS)


@each_refusal
def test_a_refusal_says_why(ruled, refuse, words):
    packet = refuse(ruled.connected("c"))
    assert packet.properties == Properties(reason_string=words)


@clauses("MQTT-3.1.2-29")
@each_refusal
def test_who_wants_no_problem_information_is_told_the_code_alone(ruled, refuse, words):
    packet = refuse(ruled.connected("c", request_problem_information=0))
    assert packet.properties == NO_PROPERTIES


@clauses(
    "MQTT-3.1.2-24 MQTT-3.4.2-2 MQTT-3.4.2-3 MQTT-3.5.2-2 MQTT-3.5.2-3 MQTT-3.7.2-2 MQTT-3.7.2-3 "
    "MQTT-3.9.2-1 MQTT-3.9.2-2 MQTT-3.14.2-3 MQTT-3.14.2-4"
)
@each_refusal
def test_words_that_do_not_fit_are_left_out(ruled, refuse, words):
    packet = refuse(ruled.connected("c"))
    size = len(encode(packet, 5))
    exact = refuse(ruled.connected("d", maximum_packet_size=size))
    assert exact == packet
    one_less = refuse(ruled.connected("e", maximum_packet_size=size - 1))
    assert one_less.properties == NO_PROPERTIES
    assert getattr(one_less, "reason", None) == getattr(packet, "reason", None)
    assert getattr(one_less, "reasons", None) == getattr(packet, "reasons", None)


@clauses("MQTT-3.2.2-19 MQTT-3.2.2-20")
def test_a_refused_connect_is_told_why_where_it_fits(ruled):
    def refused(**properties):
        client = ruled.client()
        client.send(Connect(5, "c", will=Will("shut", b"x"), properties=Properties(**properties)))
        connack = client.expect(Connack)
        client.expect_closed()
        assert connack.reason is Reason.NOT_AUTHORIZED
        return connack

    told = refused()
    assert told.properties == Properties(reason_string="the will's topic is not allowed")
    assert refused(maximum_packet_size=len(encode(told, 5))) == told
    assert refused(maximum_packet_size=len(encode(told, 5)) - 1).properties == NO_PROPERTIES
    assert refused(request_problem_information=0).properties == NO_PROPERTIES


@clauses("MQTT-3.6.2-2 MQTT-3.6.2-3 MQTT-3.11.2-1 MQTT-3.11.2-2")
def test_what_is_no_refusal_has_no_words(ruled):
    client = ruled.connected("c")
    client.subscribe("open/a", qos=2)
    client.send(Publish("open/a", b"x", 2, packet_id=9))
    assert client.answer(Pubrec) == Pubrec(9)
    client.send(Pubrel(9))
    assert client.answer(Pubcomp) == Pubcomp(9)
    message = client.expect(Publish)
    client.send(Pubrec(message.packet_id))
    assert client.expect(Pubrel) == Pubrel(message.packet_id)
    client.send(Pubcomp(message.packet_id))
    client.send(Unsubscribe(5, ("open/a", "never")))
    assert client.expect(Unsuback) == Unsuback(5, (Reason.SUCCESS, Reason.NO_SUBSCRIPTION_EXISTED))


def test_many_reasons_of_one_subscribe_are_said_once_each_and_not_at_length(stages):
    stage = stages(limits=Limits(topic_levels=4))
    client = stage.connected("c")
    filters = ("a/#/b", "b/#/c", "/".join("abcde"), *(f"x{k}+/y" for k in range(500)))
    client.send(Subscribe(7, tuple(Subscription(one) for one in filters)))
    words = client.expect(Suback).properties.reason_string
    assert len(words) <= 500
    parts = words.split("; ")
    assert len(parts) == len(set(parts)) > 1


def test_a_client_of_3_1_1_gets_no_words(ruled):
    client = ruled.connected("c", 4)
    client.send(Publish("shut", b"x", 1, packet_id=7))
    assert client.expect(Puback) == Puback(7)
    client.send(Subscribe(8, (Subscription("shut"),)))
    assert client.expect(Suback) == Suback(8, (Reason.UNSPECIFIED_ERROR,))
    client.expect_nothing()


def test_what_is_wrong_with_the_disk_is_not_told(stages, monkeypatch):
    stage = stages(keep=[("#", 0)])
    client = stage.connected("c")
    path = "/secret/place"

    def fail(*_):
        raise StorageError(f"{path} can't be written")

    for shard in stage.broker.log.shards:
        monkeypatch.setattr(shard, "append", fail)
    client.send(Publish("a", b"x", 1, packet_id=7))
    end = client.expect(Disconnect)
    assert end.reason is Reason.IMPLEMENTATION_SPECIFIC_ERROR
    assert path not in end.properties.reason_string
    client.expect_closed()
