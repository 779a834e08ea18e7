"""Who is let in and what it may do, seen from the wire (sections 3.1.4, 3.3.5, 4.12 and 5.4)."""

import pytest
from tests.conformance.clause import clauses

from everlog.broker import Limits, Security, set_password
from everlog.mqtt import (
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Reason,
    Suback,
    Subscribe,
    Subscription,
    Will,
)


@pytest.fixture(scope="module")
def passwords(tmp_path_factory):
    path = tmp_path_factory.mktemp("users") / "passwords"
    set_password(path, "ann", b"right")
    return str(path)


@pytest.fixture
def guarded(stages, passwords):
    return stages(security=Security(allow_anonymous=False, password_file=passwords))


@clauses("MQTT-3.1.4-2 MQTT-3.2.2-7", v4="MQTT-3.2.2-5")
@pytest.mark.parametrize(
    ("user", "password", "reason"),
    [
        ("ann", b"right", Reason.SUCCESS),
        ("ann", b"wrong", Reason.BAD_USER_NAME_OR_PASSWORD),
        ("ann", None, Reason.BAD_USER_NAME_OR_PASSWORD),
        ("bob", b"right", Reason.BAD_USER_NAME_OR_PASSWORD),
        (None, None, Reason.NOT_AUTHORIZED),
    ],
)
def test_a_client_has_to_prove_who_it_is(guarded, version, user, password, reason):
    client = guarded.client(version)
    assert client.connect("c", user_name=user, password=password).reason is reason
    if reason is Reason.SUCCESS:
        client.expect_nothing()
    else:
        client.expect_closed()


@clauses("MQTT-3.1.4-5", v4="MQTT-3.1.4-4")
def test_what_comes_while_a_password_is_checked_is_taken_in_order(guarded, version):
    client = guarded.client(version)
    client.send(
        Connect(version, "c", user_name="ann", password=b"right"),
        Subscribe(1, (Subscription("a/#", 1),)),
        *(Publish(f"a/{k % 3}", str(k).encode(), 1, packet_id=k + 2) for k in range(20)),
        Publish("a", b"twice", 2, packet_id=99),
        Pubrel(99),
        Pingreq(),
    )
    assert client.expect(Connack).reason is Reason.SUCCESS
    assert client.expect(Suback).reasons == (Reason.GRANTED_QOS_1,)
    assert [client.answer(Puback).packet_id for _ in range(20)] == list(range(2, 22))
    assert client.answer(Pubrec).packet_id == 99
    assert client.answer(Pubcomp).packet_id == 99
    client.answer(Pingresp)
    assert [client.message().payload for _ in range(21)] == [*(b"%d" % k for k in range(20)), b"twice"]


@clauses("MQTT-3.1.4-6", v4="MQTT-3.1.4-5")
def test_what_comes_behind_a_wrong_password_is_not_taken(guarded, version):
    watcher = guarded.connected("w", user_name="ann", password=b"right")
    watcher.subscribe("#")
    client = guarded.client(version)
    client.send(Connect(version, "c", user_name="ann", password=b"wrong"), Publish("a", b"x"))
    assert client.expect(Connack).reason is Reason.BAD_USER_NAME_OR_PASSWORD
    client.expect_closed()
    watcher.expect_nothing()


def test_a_client_that_goes_while_its_password_is_checked_leaves_nothing(guarded):
    for _ in range(5):
        client = guarded.client()
        client.send(Connect(5, "c", user_name="ann", password=b"right", will=Will("w", b"x")))
        client.reset()
    guarded.until(lambda: not guarded.inside.is_verifying and not guarded.inside.pending)
    guarded.until(lambda: not guarded.inside.connections and not guarded.inside.sessions)


def test_a_disconnect_behind_connect_ends_it_in_order(guarded):
    client = guarded.client()
    client.send(Connect(5, "c", user_name="ann", password=b"right", will=Will("w", b"x")), Disconnect())
    assert client.expect(Connack).reason is Reason.SUCCESS
    client.expect_closed()
    assert guarded.broker.metrics.wills == 0


def test_topics_are_not_forgotten_while_messages_wait_for_a_password(stages, passwords):
    stage = stages(security=Security(allow_anonymous=True, password_file=passwords), limits=Limits(topics=20))
    watcher = stage.connected("w")
    watcher.subscribe("mine/#")
    client = stage.client()
    client.send(
        Connect(5, "c", user_name="ann", password=b"right"), *(Publish(f"mine/{k}", b"%d" % k) for k in range(10))
    )
    other = stage.connected("o")
    for k in range(60):
        other.publish(f"other/{k}", "x")
    client.expect(Connack)
    assert [(one.topic, one.payload) for one in [watcher.message() for _ in range(10)]] == [
        (f"mine/{k}", b"%d" % k) for k in range(10)
    ]


@pytest.fixture
def ruled(stages, tmp_path):
    rules = tmp_path / "acl"
    rules.write_text("everyone readwrite open/#\neveryone write in/%c\n")
    return stages(security=Security(acl_file=str(rules)))


@clauses("MQTT-3.4.2-1 MQTT-3.5.2-1 MQTT-3.9.3-2", v4="MQTT-3.3.5-2")
def test_what_is_not_allowed_is_refused(ruled, version):
    client = ruled.connected("c", version)
    five = version == 5
    bad = Reason.NOT_AUTHORIZED if five else Reason.SUCCESS
    failed = Reason.NOT_AUTHORIZED if five else Reason.UNSPECIFIED_ERROR
    assert client.subscribe("open/+", "in/c", "#", qos=1) == (Reason.GRANTED_QOS_1, failed, failed)
    assert client.publish("in/c", "x", 1) is Reason.SUCCESS
    assert client.publish("in/other", "x", 1) is bad
    assert client.publish("in/other", "x", 2) is bad
    client.send(
        Publish("open/a", b"1", 1, packet_id=91),
        Publish("shut", b"2", 1, packet_id=92),
        Publish("open/a", b"3", 2, packet_id=93),
        Publish("shut", b"4", 2, packet_id=94),
    )
    one, two = client.answer(Puback), client.answer(Puback)
    three, four = client.answer(Pubrec), client.answer(Pubrec)
    assert [each.packet_id for each in (one, two, three, four)] == [91, 92, 93, 94]
    assert [each.reason for each in (one, two, three, four)] == [Reason.SUCCESS, bad, Reason.SUCCESS, bad]
    assert client.payloads(2) == ["1", "3"]
    client.expect_nothing()


@clauses("MQTT-4.3.3-9")
def test_the_id_of_a_message_that_was_not_allowed_is_free(ruled):
    client = ruled.connected("c")
    client.subscribe("open/a")
    client.send(Publish("shut", b"x", 2, packet_id=7))
    assert client.expect(Pubrec).reason is Reason.NOT_AUTHORIZED
    client.send(Publish("open/a", b"y", 2, packet_id=7))
    assert client.answer(Pubrec).reason is Reason.SUCCESS
    assert client.payloads(1) == ["y"]


@clauses("MQTT-3.1.4-2")
def test_a_will_that_is_not_allowed_is_refused(ruled, version):
    client = ruled.client(version)
    assert client.connect("c", will=Will("shut", b"x")).reason is Reason.NOT_AUTHORIZED
    client.expect_closed()
