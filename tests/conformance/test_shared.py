"""Shared subscriptions (section 4.8.2)."""

import pytest
from tests.conformance.clause import clauses

from everlog.broker.limits import Limits
from everlog.mqtt import Pingreq, Pingresp, Puback, Publish, Pubrec, Pubrel, Reason

DURABLE = {"clean_start": False, "expiry": 1000}


def members(stage, count, text="$share/g/t/#", qos=1, **connect):
    found = [stage.connected(f"m{number}", **connect) for number in range(count)]
    for one in found:
        assert one.subscribe(text, qos=qos) == (Reason(qos),)
    return found


@clauses("MQTT-4.8.2-1 MQTT-4.8.2-3")
@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_each_message_goes_to_one_member(stages, qos, kept):
    stage = stages(keep=[("#", 0)] if kept else None)
    group = members(stage, 3, qos=2)
    plain = stage.connected("plain")
    plain.subscribe("t/#", qos=2)
    publisher = stage.connected("p")
    for number in range(60):
        publisher.publish(f"t/{number % 4}", str(number), qos)
    assert [int(one) for one in plain.payloads(60)] == list(range(60))
    got = []
    for one in group:
        mine = drain(one)
        assert mine, "a member got nothing"
        assert mine == sorted(mine)
        got += mine
    assert sorted(got) == list(range(60))


def drain(client):
    """All that has come."""
    found = []
    client.send(Pingreq())
    while not isinstance(packet := client.receive(), Pingresp):
        assert isinstance(packet, Publish)
        found.append(packet)
    for one in found:
        client.acknowledge(one)
    return [int(one.payload) for one in found]


@clauses("MQTT-4.8.2-1")
def test_two_groups_on_one_filter_each_get_every_message(stage):
    one = stage.connected("one")
    one.subscribe("$share/g/t", qos=1)
    two = stage.connected("two")
    two.subscribe("$share/h/t", qos=1)
    publisher = stage.connected("p")
    for number in range(10):
        publisher.publish("t", str(number), 1)
    assert drain(one) == drain(two) == list(range(10))


@clauses("MQTT-4.8.2-3 MQTT-3.8.4-8")
def test_each_member_gets_its_own_granted_qos(stage):
    group = [stage.connected(f"m{qos}") for qos in (0, 1, 2)]
    for qos, one in enumerate(group):
        one.subscribe("$share/g/t", qos=qos)
    publisher = stage.connected("p")
    for _ in range(9):
        publisher.publish("t", "x", 2)
    for qos, one in enumerate(group):
        assert {one.message().qos for _ in range(3)} == {qos}


@clauses("MQTT-3.3.4-3")
def test_a_shared_subscription_has_its_identifier(stage):
    client = stage.connected("c")
    client.subscribe("$share/g/t", identifier=5)
    stage.connected("p").publish("t", "x")
    assert client.message().properties.subscription_identifiers == (5,)


@clauses("MQTT-3.10.4-1 MQTT-3.10.4-2")
def test_a_member_that_unsubscribes_gets_no_more(stage):
    first, second = members(stage, 2)
    assert first.unsubscribe("$share/g/t/#") == (Reason.SUCCESS,)
    publisher = stage.connected("p")
    for number in range(10):
        publisher.publish("t/a", str(number), 1)
    assert drain(second) == list(range(10))
    first.expect_nothing()


@clauses("MQTT-4.8.2-1")
def test_a_group_that_comes_back_gets_messages_again(stage):
    publisher = stage.connected("p")
    for number in range(3):
        member = stage.connected("m")
        member.subscribe("$share/g/t", qos=1)
        publisher.publish("t", str(number), 1)
        assert drain(member) == [number]
        member.disconnect()
        stage.until(lambda: "m" not in stage.broker.clients.sessions)


@clauses("MQTT-4.8.2-3")
@pytest.mark.parametrize("kept", [False, True])
def test_a_lost_members_unacknowledged_qos_1_messages_go_to_the_others(stages, kept):
    stage = stages(keep=[("#", 0)] if kept else None)
    first, second = members(stage, 2)
    publisher = stage.connected("p")
    for number in range(10):
        publisher.publish("t/a", str(number), 1)
    mine = [first.expect(Publish) for _ in range(5)]
    first.send(Puback(mine[0].packet_id), Puback(mine[3].packet_id))
    first.expect_nothing()
    theirs = drain(second)
    first.close()
    stage.until(lambda: "m0" not in stage.broker.clients.sessions)
    rest = drain(second)
    assert rest == [int(one.payload) for one in mine if one not in (mine[0], mine[3])]
    assert sorted([*theirs, *rest, int(mine[0].payload), int(mine[3].payload)]) == list(range(10))


@clauses("MQTT-4.8.2-5")
def test_a_lost_members_qos_2_messages_go_to_nobody_else(stage):
    first, second = members(stage, 2, qos=2)
    publisher = stage.connected("p")
    for number in range(4):
        publisher.publish("t/a", str(number), 2)
    first.expect(Publish)
    first.expect(Publish)
    assert len(drain(second)) == 2
    first.close()
    stage.until(lambda: "m0" not in stage.broker.clients.sessions)
    second.expect_nothing()


@clauses("MQTT-4.8.2-4")
@pytest.mark.parametrize("received", [False, True])
def test_a_durable_members_qos_2_messages_wait_for_it(stage, received):
    first, second = members(stage, 2, qos=2, **DURABLE)
    publisher = stage.connected("p")
    for number in range(6):
        publisher.publish("t/a", str(number), 1 + number // 2 % 2)
    mine = [first.expect(Publish) for _ in range(3)]
    exactly_once = [one for one in mine if one.qos == 2]
    if received:
        first.send(*(Pubrec(one.packet_id) for one in exactly_once))
        assert [first.expect(Pubrel).packet_id for _ in exactly_once] == [one.packet_id for one in exactly_once]
    first.close()
    stage.offline("m0")
    assert sorted([*drain(second), *drain(second)]) == sorted(
        number for number in range(6) if str(number).encode() not in {one.payload for one in exactly_once}
    )
    first = stage.client()
    assert first.connect("m0", **DURABLE).session_present
    again = [first.receive() for _ in exactly_once]
    assert [one.packet_id for one in again] == [one.packet_id for one in exactly_once]
    assert all(isinstance(one, Pubrel) if received else one.dup for one in again)
    first.expect_nothing()


@clauses("MQTT-4.8.2-6 MQTT-4.4.0-2")
def test_a_message_refused_by_a_member_goes_to_nobody_else(stage):
    first, second = members(stage, 2, qos=1)
    publisher = stage.connected("p")
    publisher.publish("t/a", "1", 1)
    publisher.publish("t/a", "2", 1)
    refused = first.expect(Publish)
    first.send(Puback(refused.packet_id, Reason.UNSPECIFIED_ERROR))
    first.expect_nothing()
    assert len(drain(second)) == 1
    first.close()
    stage.until(lambda: "m0" not in stage.broker.clients.sessions)
    second.expect_nothing()


@pytest.mark.parametrize("kept", [False, True])
def test_members_with_full_windows_get_all_messages_later(stages, kept):
    stage = stages(limits=Limits(inflight_messages=2), keep=[("#", 0)] if kept else None)
    first, second = members(stage, 2)
    publisher = stage.connected("p")
    for number in range(40):
        publisher.publish("t/a", str(number), 1)
    got = []
    while len(got) < 40:
        got += drain(first) + drain(second)
    assert sorted(got) == list(range(40))
    first.expect_nothing()
    second.expect_nothing()


@pytest.mark.parametrize("kept", [False, True])
def test_what_waits_for_a_lost_member_goes_to_the_others(stages, kept):
    stage = stages(limits=Limits(inflight_messages=2), keep=[("#", 0)] if kept else None)
    first, second = members(stage, 2)
    publisher = stage.connected("p")
    for number in range(40):
        publisher.publish("t/a", str(number), 1)
    first.close()
    stage.until(lambda: "m0" not in stage.broker.clients.sessions)
    got = []
    while len(got) < 40:
        got += drain(second)
    assert sorted(got) == list(range(40))


def test_a_member_that_also_subscribes_by_itself_gets_both(stage):
    client = stage.connected("c")
    client.subscribe("$share/g/t", qos=1, identifier=1)
    client.subscribe("t", qos=1, identifier=2)
    stage.connected("p").publish("t", "x", 1)
    assert sorted(client.message().properties.subscription_identifiers for _ in range(2)) == [(1,), (2,)]
    client.expect_nothing()
