"""Shared subscriptions (section 4.8.2)."""

import pytest
from tests.conformance.clause import clauses

from everlog.broker import GroupOptions, Limits
from everlog.mqtt import (
    NO_PROPERTIES,
    Pingreq,
    Pingresp,
    Properties,
    Puback,
    Publish,
    Pubrec,
    Pubrel,
    Reason,
    Suback,
    Subscribe,
    Subscription,
)

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
        stage.until(lambda: "m" not in stage.inside.sessions)


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
    stage.until(lambda: "m0" not in stage.inside.sessions)
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
    stage.until(lambda: "m0" not in stage.inside.sessions)
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
    stage.until(lambda: "m0" not in stage.inside.sessions)
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
    stage.until(lambda: "m0" not in stage.inside.sessions)
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


# Durable groups


def group_state(stage):
    (state,) = stage.call(stage.inside.group_states)
    return state


def publish(stage, *numbers, topic="t/a", qos=1):
    publisher = stage.connected("p")
    for number in numbers:
        publisher.publish(topic, str(number), qos)
    publisher.disconnect()


def away(stage, client, name):
    client.close()
    stage.offline(name)


@clauses("MQTT-4.8.2-1")
def test_a_durable_group_without_connected_members_keeps_its_messages_and_gives_each_once(stage):
    first, second = members(stage, 2, **DURABLE)
    away(stage, first, "m0")
    away(stage, second, "m1")
    publish(stage, *range(20))
    assert (group_state(stage).lag, group_state(stage).members) == (20, 0)
    first, second = stage.connected("m0", **DURABLE), stage.connected("m1", **DURABLE)
    other = stage.connected("clean")
    other.subscribe("$share/g/t/#", qos=1)
    got = [*drain(first), *drain(second), *drain(other)]
    while len(got) < 20:
        got += [*drain(first), *drain(second), *drain(other)]
    assert sorted(got) == list(range(20))
    stage.until(lambda: stage.inside.group_states()[0].lag == 0)
    for one in (first, second, other):
        one.expect_nothing()


def test_all_of_more_members_than_shards_get_work(stage):
    group = members(stage, 16, **DURABLE)
    publish(stage, *range(64))
    got = [drain(one) for one in group]
    assert [len(one) for one in got] == [4] * 16
    assert sorted(number for one in got for number in one) == list(range(64))


@clauses("MQTT-4.8.2-3")
def test_a_lost_members_messages_of_a_durable_group_come_before_new_ones_in_order(stages):
    stage = stages(limits=Limits(inflight_messages=4))
    first, second = members(stage, 2, **DURABLE)
    publish(stage, *range(12))
    mine = [first.expect(Publish) for _ in range(4)]
    done = mine.pop(2)
    first.acknowledge(done)
    mine.append(first.expect(Publish))
    theirs = [second.expect(Publish) for _ in range(4)]
    away(stage, first, "m0")
    for one in theirs:
        second.acknowledge(one)
    rest = drain(second)
    while len(rest) < 12 - 5:
        rest += drain(second)
    assert rest[:4] == [int(one.payload) for one in mine]
    assert sorted([*rest, int(done.payload), *(int(one.payload) for one in theirs)]) == list(range(12))
    second.expect_nothing()


@clauses("MQTT-4.4.0-1 MQTT-3.3.1-1")
def test_what_nobody_took_goes_to_the_same_member_again_with_dup_and_its_packet_id(stage):
    (client,) = members(stage, 1, **DURABLE)
    publish(stage, 0, 1, 2)
    sent = [client.expect(Publish) for _ in range(3)]
    client.send(Puback(sent[1].packet_id))
    client.expect_nothing()
    away(stage, client, "m0")
    client = stage.connected("m0", **DURABLE)
    again = [client.expect(Publish) for _ in range(2)]
    assert [(one.payload, one.packet_id, one.dup) for one in again] == [
        (one.payload, one.packet_id, True) for one in (sent[0], sent[2])
    ]
    publish(stage, 3)
    new = client.expect(Publish)
    assert (new.payload, new.dup) == (b"3", False)
    assert new.packet_id not in {one.packet_id for one in again}
    for one in (*again, new):
        client.acknowledge(one)
    client.expect_nothing()
    assert group_state(stage).lag == 0


def test_a_slow_member_does_not_hold_up_the_others(stages):
    stage = stages(groups=GroupOptions(member_messages=3))
    slow, quick = members(stage, 2, **DURABLE)
    publish(stage, *range(50))
    stuck = [slow.expect(Publish) for _ in range(3)]
    slow.expect_nothing()
    got = []
    while len(got) < 47:
        got += drain(quick)
    assert sorted([*got, *(int(one.payload) for one in stuck)]) == list(range(50))
    state = group_state(stage)
    assert (state.lag, state.inflight, state.positions[0]) == (3, 3, min(int(one.payload) for one in stuck))


def test_one_message_that_stays_out_holds_back_only_itself(stages):
    stage = stages(groups=GroupOptions(member_messages=4, inflight_messages=4))
    (client,) = members(stage, 1, **DURABLE)
    publish(stage, *range(30))
    stuck = client.expect(Publish)
    got = []
    while len(got) < 29:
        got += drain(client)
    assert got == list(range(1, 30))
    assert group_state(stage).lag == 1
    client.acknowledge(stuck)
    client.expect_nothing()
    assert group_state(stage).lag == 0


def test_a_message_that_is_not_acknowledged_in_time_goes_to_another_member(stages):
    stage = stages(groups=GroupOptions(member_messages=2, ack_timeout_s=60))
    slow, quick = members(stage, 2, **DURABLE)
    publish(stage, 0, 1, 2, 3)
    late = [slow.expect(Publish) for _ in range(2)]
    assert len(drain(quick)) == 2
    sweep(stage, 59)
    quick.expect_nothing()
    sweep(stage, 61)
    assert drain(quick) == [int(one.payload) for one in late]
    assert (group_state(stage).lag, stage.inside.group_timeouts, stage.inside.group_redelivered) == (0, 2, 2)
    publish(stage, *range(4, 8))  # the slow one still has two, so it gets none
    got = drain(quick)
    while len(got) < 4:
        got += drain(quick)
    slow.expect_nothing()
    for one in late:
        slow.acknowledge(one)
    slow.expect_nothing()
    publish(stage, 8)
    assert sorted([*drain(slow), *drain(quick)]) == [8]


def sweep(stage, seconds):
    """What is due so much later happens now."""
    stage.call(lambda: stage.inside.sweep_groups(seconds))


def test_an_ack_that_comes_too_late_counts_all_the_same(stages):
    stage = stages(groups=GroupOptions(ack_timeout_s=60))
    slow, other = members(stage, 2, **DURABLE)
    publish(stage, 0, 1)
    first, second = slow.expect(Publish), other.expect(Publish)
    sweep(stage, 61)
    swapped = [other.expect(Publish), slow.expect(Publish)]
    assert [one.payload for one in swapped] == [first.payload, second.payload]
    slow.acknowledge(first)
    slow.expect_nothing()
    assert group_state(stage).lag == 1
    away(stage, other, "m1")  # what it had is acknowledged by the first, or with it
    slow.expect_nothing()
    slow.acknowledge(swapped[1])
    slow.expect_nothing()
    assert group_state(stage).lag == 0


def test_a_member_that_is_alone_keeps_what_it_has_however_long_it_takes(stages):
    stage = stages(groups=GroupOptions(ack_timeout_s=60))
    (client,) = members(stage, 1, **DURABLE)
    publish(stage, 0)
    sent = client.expect(Publish)
    sweep(stage, 1000)
    client.expect_nothing()
    client.acknowledge(sent)
    client.expect_nothing()
    assert (group_state(stage).lag, stage.inside.group_timeouts) == (0, 0)


def test_with_no_ack_timeout_messages_stay_with_their_member(stages):
    stage = stages(groups=GroupOptions(ack_timeout_s=0))
    first, second = members(stage, 2, **DURABLE)
    publish(stage, 0)
    sweep(stage, 10**9)
    assert [*drain(first), *drain(second)] == [0]


@pytest.mark.parametrize("asked", [False, True])
def test_a_topic_is_with_one_member_at_a_time_where_order_is_asked_for(stages, asked):
    stage = stages(groups=GroupOptions(member_messages=2, ordered=() if asked else ("g",)))
    first, second = stage.connected("m0", **DURABLE), stage.connected("m1", **DURABLE)
    order = Properties(user_properties=(("everlog-order", "topic"),)) if asked else NO_PROPERTIES
    for one in (first, second):
        one.send(Subscribe(1, (Subscription("$share/g/t/#", 1),), order))
        one.expect(Suback)
    publisher = stage.connected("p")
    for number in range(8):
        publisher.publish("t/a", f"a{number}", 1)
    publisher.publish("t/b", "b0", 1)
    mine, theirs = [first.expect(Publish) for _ in range(2)], [second.expect(Publish)]
    assert [one.payload for one in mine] == [b"a0", b"a1"], "the first member has topic a, and no more credit"
    assert [one.payload for one in theirs] == [b"b0"], "which does not hold back topic b"
    second.expect_nothing()
    first.acknowledge(mine[1])  # out of order: the topic stays where it is
    assert first.expect(Publish).payload == b"a2"
    second.expect_nothing()
    away(stage, first, "m0")
    again = [second.expect(Publish)]
    second.acknowledge(theirs[0])
    again.append(second.expect(Publish))
    assert [one.payload for one in again] == [b"a0", b"a2"]
    for one in again:
        second.acknowledge(one)
    assert second.payloads(5) == ["a3", "a4", "a5", "a6", "a7"]
    second.expect_nothing()
    assert (group_state(stage).lag, group_state(stage).ordered) == (0, True)


@pytest.mark.parametrize("durable", [False, True])
def test_a_group_and_a_plain_subscription_of_one_session_both_get_theirs(stage, durable):
    client = stage.connected("m0", **(DURABLE if durable else {}))
    client.subscribe("$share/g/t/#", qos=1)
    client.subscribe("t/#", "x/#", qos=1)
    publisher = stage.connected("p")
    packets = [
        Publish(topic, str(number).encode(), 1, packet_id=number + 1) for number, topic in enumerate(["t/a", "x/a"] * 5)
    ]
    publisher.send(*packets)
    got = sorted(int(client.message().payload) for _ in range(15))
    assert got == sorted([*range(10), *range(0, 10, 2)])
    client.expect_nothing()
    if durable:
        away(stage, client, "m0")
        publisher.publish("t/b", "10", 1)
        client = stage.connected("m0", **DURABLE)
        assert client.payloads(2) == ["10", "10"]
        client.expect_nothing()


def test_a_durable_group_ends_with_the_last_that_is_subscribed(stage):
    durable, clean = members(stage, 1, **DURABLE)[0], stage.connected("clean")
    clean.subscribe("$share/g/t/#", qos=1)
    durable.unsubscribe("$share/g/t/#")
    publish(stage, 0)
    assert drain(clean) == [0]
    assert group_state(stage).durable, "it stays durable while anybody is subscribed"
    assert stage.call(stage.inside.kept_filters) == [("t/#", 0)]
    clean.disconnect()
    stage.until(lambda: not stage.inside.group_states())
    assert stage.call(stage.inside.kept_filters) == []
    clean = stage.connected("clean")
    clean.subscribe("$share/g/t/#", qos=1)
    publish(stage, 1)
    assert drain(clean) == [1]
    assert not group_state(stage).durable


def test_a_durable_group_ends_when_its_last_session_expires(stage):
    (client,) = members(stage, 1, **DURABLE)
    away(stage, client, "m0")
    publish(stage, 0)
    stage.later(2000)
    assert stage.call(stage.inside.group_states) == []
    assert stage.call(stage.inside.kept_filters) == []


@clauses("MQTT-3.10.4-3")
def test_a_member_that_unsubscribes_may_still_acknowledge_what_it_has(stage):
    first, second = members(stage, 2, **DURABLE)
    publish(stage, 0, 1)
    mine = first.expect(Publish)
    first.unsubscribe("$share/g/t/#")
    assert len(drain(second)) == 1
    second.expect_nothing()
    first.acknowledge(mine)
    first.expect_nothing()
    assert group_state(stage).lag == 0
    publish(stage, 2)
    assert drain(second) == [2]


def test_what_a_member_had_when_it_unsubscribed_goes_to_others_when_it_is_lost(stage):
    first, second = members(stage, 2, **DURABLE)
    publish(stage, 0, 1)
    mine = first.expect(Publish)
    first.unsubscribe("$share/g/t/#")
    drain(second)
    away(stage, first, "m0")
    assert drain(second) == [int(mine.payload)]


@clauses("MQTT-3.10.4-3")
def test_what_the_last_member_of_a_group_has_is_completed_with_it(stage):
    (client,) = members(stage, 1, **DURABLE)
    publish(stage, 0)
    sent = client.expect(Publish)
    client.unsubscribe("$share/g/t/#")
    assert stage.call(stage.inside.group_states) == []
    away(stage, client, "m0")
    client = stage.connected("m0", **DURABLE)
    again = client.expect(Publish)
    assert (again.packet_id, again.dup, again.payload) == (sent.packet_id, True, b"0")
    client.acknowledge(again)
    client.expect_nothing()


def test_a_group_becomes_durable_without_a_message_missed_or_twice(stage):
    clean = stage.connected("clean")
    clean.subscribe("$share/g/t/#", qos=1)
    publish(stage, 0, 1)
    assert not group_state(stage).durable
    (durable,) = members(stage, 1, **DURABLE)
    publish(stage, 2, 3)
    assert group_state(stage).durable
    assert sorted([*drain(clean), *drain(durable)]) == [0, 1, 2, 3]
    clean.expect_nothing()
    durable.expect_nothing()


def test_a_qos_0_member_of_a_durable_group_is_done_with_what_it_was_sent(stage):
    (durable,) = members(stage, 1, **DURABLE)
    away(stage, durable, "m0")
    publish(stage, 0, 1, 2, qos=1)
    client = stage.connected("zero")
    client.subscribe("$share/g/t/#", qos=0)
    assert [(one.qos, one.payload) for one in (client.expect(Publish) for _ in range(3))] == [
        (0, b"0"),
        (0, b"1"),
        (0, b"2"),
    ]
    stage.until(lambda: stage.inside.group_states()[0].lag == 0)


@clauses("MQTT-4.8.2-6")
def test_a_message_refused_by_a_member_of_a_durable_group_is_done(stage):
    first, second = members(stage, 2, **DURABLE)
    publish(stage, 0, 1)
    refused = first.expect(Publish)
    first.send(Puback(refused.packet_id, Reason.UNSPECIFIED_ERROR))
    first.expect_nothing()
    drain(second)
    away(stage, first, "m0")
    second.expect_nothing()
    assert group_state(stage).lag == 0


def test_a_group_that_is_made_with_everlog_from_begins_there(stages):
    stage = stages(keep=[("#", 0)])
    publish(stage, *range(6))
    first, second = stage.connected("m0", **DURABLE), stage.connected("m1", **DURABLE)
    begin = Properties(user_properties=(("everlog-from", "earliest"),))
    first.send(Subscribe(1, (Subscription("$share/g/t/#", 1),), begin))
    assert first.expect(Suback).reasons == (Reason.GRANTED_QOS_1,)
    assert drain(first) == list(range(6))
    second.send(Subscribe(1, (Subscription("$share/g/t/#", 1),), begin))
    assert "goes on where it is" in (second.expect(Suback).properties.reason_string or "")
    publish(stage, 6)
    assert sorted([*drain(first), *drain(second)]) == [6]


def test_nothing_of_a_topic_overtakes_a_message_that_waits_for_a_member(stages):
    stage = stages(groups=GroupOptions(member_messages=3, ack_timeout_s=60, ordered=("g",)))
    first = stage.connected("m0", **DURABLE)
    first.subscribe("$share/g/t/#", qos=1)
    second = stage.connected("m1", **DURABLE, receive_maximum=1)
    second.subscribe("$share/g/t/#", qos=1)
    publish(stage, 0, topic="t/a")
    publish(stage, 1, topic="t/b")
    late, other = first.expect(Publish), second.expect(Publish)
    sweep(stage, 61)  # the second has no room for what the first has had for too long
    assert first.expect(Publish).payload == other.payload
    publish(stage, 2, topic="t/a")
    first.expect_nothing()
    second.acknowledge(other)
    assert second.expect(Publish).payload == late.payload
    first.expect_nothing()
    away(stage, second, "m1")
    first.expect_nothing()
    first.acknowledge(late)
    assert first.expect(Publish).payload == b"2"
