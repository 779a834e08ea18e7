"""Sessions: clean start, resuming, take-over, expiry, and what a client that was away gets."""

import pytest
from tests.conformance.clause import clauses
from tests.memory_log import MemoryLog
from tests.memory_tables import MemoryTables

from everlog.broker import Limits
from everlog.mqtt import Disconnect, Puback, Pubcomp, Publish, Pubrec, Pubrel, Reason, Subscription

KEEP = {"clean_start": False, "expiry": 1000}


def away(stage, client_id, version, *filters, qos=1):
    """A session to keep with some subscriptions, its client gone."""
    client = stage.connected(client_id, version, **KEEP)
    client.subscribe(*filters, qos=qos)
    client.disconnect()
    stage.offline(client_id)


def back(stage, client_id, version, present=True, **connect):
    client = stage.client(version)
    assert client.connect(client_id, **(KEEP | connect)).session_present is present
    return client


@clauses("MQTT-3.1.2-4 MQTT-3.2.2-2 MQTT-3.1.4-4", v4="MQTT-3.1.2-6 MQTT-3.2.2-1 MQTT-3.1.4-3")
def test_a_clean_start_discards_the_session(stage, version):
    away(stage, "c", version, "a")
    client = stage.client(version)
    assert not client.connect("c", True).session_present
    stage.connected("publisher").publish("a", "x", 1)
    client.expect_nothing()


@clauses("MQTT-3.1.2-4", v4="MQTT-3.1.2-6")
def test_nothing_of_a_discarded_session_comes_back(stage, version):
    away(stage, "c", version, "a")
    stage.connected("publisher").publish("a", "x", 1)
    stage.connected("c", version, clean_start=True).disconnect()
    stage.offline("c")
    back(stage, "c", version, present=False).expect_nothing()


@clauses("MQTT-3.1.2-5 MQTT-3.1.2-23 MQTT-3.2.2-3", v4="MQTT-3.1.2-4 MQTT-3.2.2-2")
def test_a_session_to_keep_is_resumed(stage, version):
    away(stage, "c", version, "a")
    client = back(stage, "c", version)
    stage.connected("publisher").publish("a", "x", 1)
    assert client.payloads(1) == ["x"]


@clauses("MQTT-3.1.2-6 MQTT-3.2.2-3", v4="MQTT-3.1.2-4 MQTT-3.2.2-3")
def test_without_a_session_a_new_one_begins(stage, version):
    back(stage, "c", version, present=False)


@clauses("MQTT-4.1.0-2 MQTT-3.1.2-23", v4="MQTT-3.1.2-6")
def test_a_session_without_expiry_ends_with_its_connection(stage, version):
    client = stage.connected("c", version)
    client.subscribe("a", qos=1)
    client.disconnect()
    stage.until(lambda: "c" not in stage.inside.sessions)
    back(stage, "c", version, present=False)


@clauses("MQTT-4.5.0-1 MQTT-3.1.2-23", v4="MQTT-4.5.0-1 MQTT-3.1.2-5 MQTT-4.1.0-1")
@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize("qos", [1, 2])
def test_a_client_that_was_away_gets_what_it_missed_in_order(stages, version, qos, shards):
    stage = stages(MemoryLog(shards))
    away(stage, "c", version, "a/#", qos=2)
    publisher = stage.connected("publisher")
    for number in range(20):
        publisher.publish("a/b", str(number), qos)
        publisher.publish("b/b", "not subscribed", qos)
    client = back(stage, "c", version)
    messages = [client.message() for _ in range(20)]
    assert [int(one.payload) for one in messages] == list(range(20))
    assert {(one.qos, one.dup, one.topic) for one in messages} == {(qos, False, "a/b")}
    client.expect_nothing()


@clauses("MQTT-4.5.0-1", v4="MQTT-3.1.2-5")
def test_a_topic_known_before_the_first_durable_subscription_is_kept(stage, version):
    publisher = stage.connected("publisher")
    publisher.publish("a", "before", 1)
    away(stage, "c", version, "a")
    publisher.publish("a", "after", 1)
    assert back(stage, "c", version).payloads(1) == ["after"]


@clauses("MQTT-4.5.0-1", v4="MQTT-3.1.2-5")
def test_a_topic_known_while_nothing_was_kept_is_kept_later(stage, version):
    publisher = stage.connected("publisher")
    away(stage, "first", version, "a")
    client = stage.connected("first", version, clean_start=True)
    publisher.publish("new", "x", 1)
    client.disconnect()
    away(stage, "second", version, "new")
    publisher.publish("new", "y", 1)
    assert back(stage, "second", version).payloads(1) == ["y"]


@clauses("MQTT-3.8.4-8", v4="MQTT-3.8.4-6")
def test_messages_from_the_log_come_with_the_granted_qos(stage, version):
    away(stage, "c", version, "a", qos=1)
    publisher = stage.connected("publisher")
    for qos in (0, 1, 2):
        publisher.publish("a", str(qos), qos)
    client = back(stage, "c", version)
    assert [(one.payload, one.qos) for one in [client.message() for _ in range(3)]] == [(b"0", 0), (b"1", 1), (b"2", 1)]


@clauses(
    "MQTT-4.4.0-1 MQTT-3.3.1-1 MQTT-4.3.2-3 MQTT-2.2.1-5", v4="MQTT-4.4.0-1 MQTT-3.3.1-1 MQTT-4.3.2-1 MQTT-2.3.1-3"
)
def test_unacknowledged_qos_1_messages_come_again_with_dup_and_their_ids(stage, version):
    client = stage.connected("c", version, **KEEP)
    client.subscribe("a", qos=1)
    publisher = stage.connected("publisher")
    for number in range(7):
        publisher.publish("a", str(number), 1)
    sent = [client.expect(Publish) for _ in range(7)]
    assert not any(one.dup for one in sent)
    for one in (sent[0], sent[2], sent[3], sent[5]):
        client.send(Puback(one.packet_id))
    client.expect_nothing()
    client.close()
    stage.offline("c")
    for number in range(7, 12):
        publisher.publish("a", str(number), 1)
    client = back(stage, "c", version)
    again = [client.expect(Publish) for _ in range(8)]
    assert [(one.payload, one.dup) for one in again] == [
        *((sent[k].payload, True) for k in (1, 4, 6)),
        *((str(number).encode(), False) for number in range(7, 12)),
    ]
    assert [one.packet_id for one in again[:3]] == [sent[k].packet_id for k in (1, 4, 6)]
    assert len({one.packet_id for one in again}) == 8
    for one in again:
        client.send(Puback(one.packet_id))
    client.expect_nothing()
    client.close()
    stage.offline("c")
    back(stage, "c", version).expect_nothing()


@clauses(
    "MQTT-4.4.0-1 MQTT-4.3.3-3 MQTT-4.3.3-5 MQTT-4.3.3-6 MQTT-4.6.0-4",
    v4="MQTT-4.4.0-1 MQTT-4.3.3-1 MQTT-4.6.0-4",
)
def test_qos_2_messages_go_on_where_they_were(stage, version):
    client = stage.connected("c", version, **KEEP)
    client.subscribe("a", qos=2)
    publisher = stage.connected("publisher")
    for number in range(4):
        publisher.publish("a", str(number), 2)
    sent = [client.expect(Publish) for _ in range(4)]
    client.send(Pubrec(sent[1].packet_id), Pubrec(sent[2].packet_id), Pubrec(sent[3].packet_id))
    assert [client.expect(Pubrel).packet_id for _ in range(3)] == [one.packet_id for one in sent[1:]]
    client.send(Pubcomp(sent[3].packet_id))
    client.expect_nothing()
    client.close()
    stage.offline("c")
    client = back(stage, "c", version)
    first = client.expect(Publish)
    assert (first.payload, first.dup, first.packet_id, first.qos) == (b"0", True, sent[0].packet_id, 2)
    assert [client.expect(Pubrel).packet_id for _ in range(2)] == [sent[1].packet_id, sent[2].packet_id]
    client.send(Pubcomp(sent[1].packet_id), Pubcomp(sent[2].packet_id))
    client.acknowledge(first)
    client.expect_nothing()
    client.close()
    stage.offline("c")
    back(stage, "c", version).expect_nothing()


@clauses("MQTT-4.4.0-1 MQTT-4.6.0-1", v4="MQTT-4.4.0-1 MQTT-4.6.0-1")
@pytest.mark.parametrize("shards", [1, 4])
def test_redelivery_is_in_the_order_of_the_first_sending(stages, version, shards):
    stage = stages(MemoryLog(shards))
    client = stage.connected("c", version, **KEEP)
    client.subscribe("a/#", qos=2)
    publisher = stage.connected("publisher")
    for number in range(12):
        publisher.publish("a/" + "x" * (number * 5 % 4), str(number), 1 + number % 2)
    sent = [client.expect(Publish) for _ in range(12)]
    client.close()
    stage.offline("c")
    client = back(stage, "c", version)
    again = [client.expect(Publish) for _ in range(12)]
    assert [(one.payload, one.packet_id, one.qos) for one in again] == [
        (one.payload, one.packet_id, one.qos) for one in sent
    ]


@clauses("MQTT-4.4.0-1", v4="MQTT-4.4.0-1")
def test_unacknowledged_retained_messages_come_again(stage, version):
    stage.connected("publisher").publish("a", "retained", 1, retain=True)
    client = stage.connected("c", version, **KEEP)
    client.subscribe("a", qos=1)
    first = client.expect(Publish)
    client.close()
    stage.offline("c")
    client = back(stage, "c", version)
    again = client.expect(Publish)
    assert (again.payload, again.packet_id, again.dup, again.retain) == (b"retained", first.packet_id, True, True)
    client.acknowledge(again)
    client.expect_nothing()


@clauses("MQTT-3.10.4-3 MQTT-4.4.0-1", v4="MQTT-3.10.4-3 MQTT-4.4.0-1")
def test_an_unsubscribe_leaves_what_is_under_way(stage, version):
    client = stage.connected("c", version, **KEEP)
    client.subscribe("a", qos=2)
    publisher = stage.connected("publisher")
    publisher.publish("a", "one", 1)
    publisher.publish("a", "two", 2)
    sent = [client.expect(Publish), client.expect(Publish)]
    client.unsubscribe("a")
    client.close()
    stage.offline("c")
    publisher.publish("a", "three", 1)
    client = back(stage, "c", version)
    again = [client.expect(Publish), client.expect(Publish)]
    assert [(one.payload, one.dup, one.packet_id, one.qos) for one in again] == [
        (one.payload, True, one.packet_id, one.qos) for one in sent
    ]
    for one in again:
        client.acknowledge(one)
    client.expect_nothing()


@clauses("MQTT-4.4.0-2")
def test_a_message_refused_by_the_client_is_not_sent_again(stage):
    client = stage.connected("c", **KEEP)
    client.subscribe("a", qos=2)
    publisher = stage.connected("publisher")
    publisher.publish("a", "one", 1)
    publisher.publish("a", "two", 2)
    one, two = client.expect(Publish), client.expect(Publish)
    client.send(
        Puback(one.packet_id, Reason.NOT_AUTHORIZED), Pubrec(two.packet_id, Reason.IMPLEMENTATION_SPECIFIC_ERROR)
    )
    client.expect_nothing()
    client.close()
    stage.offline("c")
    back(stage, "c", 5).expect_nothing()


@clauses("MQTT-3.3.4-9 MQTT-4.9.0-1 MQTT-4.9.0-2")
def test_redelivery_keeps_to_a_smaller_receive_maximum(stage):
    client = stage.connected("c", **KEEP)
    client.subscribe("a", qos=2)
    publisher = stage.connected("publisher")
    for number in range(10):
        publisher.publish("a", str(number), 1 + number % 2)
    sent = [client.expect(Publish) for _ in range(10)]
    client.close()
    stage.offline("c")
    publisher.publish("a", "10", 1)
    client = back(stage, "c", 5, receive_maximum=3)
    window = [client.expect(Publish) for _ in range(3)]
    client.expect_nothing()
    got = []
    while window:
        one = window.pop(0)
        got.append((one.payload, one.packet_id, one.dup))
        client.acknowledge(one)
        if len(got) + len(window) < 11:
            window.append(client.expect(Publish))
        client.expect_nothing()
    assert got[:10] == [(one.payload, one.packet_id, True) for one in sent]
    assert (got[10][0], got[10][2]) == (b"10", False)


@clauses("MQTT-4.9.0-2")
def test_acks_of_messages_that_redelivery_has_not_reached_are_taken(stage):
    client = stage.connected("c", **KEEP)
    client.subscribe("a", qos=1)
    publisher = stage.connected("publisher")
    for number in range(6):
        publisher.publish("a", str(number), 1)
    sent = [client.expect(Publish) for _ in range(6)]
    client.close()
    stage.offline("c")
    client = back(stage, "c", 5, receive_maximum=2)
    first = [client.expect(Publish), client.expect(Publish)]
    client.send(*(Puback(one.packet_id) for one in sent[2:5]))
    client.expect_nothing()
    for one in first:
        client.acknowledge(one)
    assert client.message().packet_id == sent[5].packet_id
    client.expect_nothing()


@clauses("MQTT-4.4.0-1 MQTT-4.9.0-3")
def test_pubrels_come_again_whatever_the_receive_maximum_leaves_room_for(stage):
    client = stage.connected("c", **KEEP)
    client.subscribe("a", qos=2)
    publisher = stage.connected("publisher")
    for number in range(4):
        publisher.publish("a", str(number), 2)
    sent = [client.expect(Publish) for _ in range(4)]
    for one in sent[1:]:
        client.send(Pubrec(one.packet_id))
        client.expect(Pubrel)
    client.close()
    stage.offline("c")
    client = back(stage, "c", 5, receive_maximum=2)
    for one in sent[1:]:
        assert client.expect(Pubrel).packet_id == one.packet_id
    client.expect_nothing()
    client.send(*(Pubcomp(one.packet_id) for one in sent[1:]))
    again = client.expect(Publish)
    assert (again.packet_id, again.payload, again.dup) == (sent[0].packet_id, b"0", True)
    client.expect_nothing()


@clauses("MQTT-4.3.3-1", v4="MQTT-4.3.3-1")
def test_the_id_of_a_qos_2_message_that_is_kept_no_more_is_released(stages, version):
    log = MemoryLog()
    stage = stages(log)
    client = stage.connected("c", version, **KEEP)
    client.subscribe("a", qos=2)
    publisher = stage.connected("publisher")
    for number in range(3):
        publisher.publish("a", str(number), 1 + (number > 0))
    sent = [client.expect(Publish) for _ in range(3)]
    client.close()
    stage.offline("c")
    stage.call(lambda: log.shards[0].drop(2))
    client = back(stage, "c", version)
    assert client.expect(Pubrel).packet_id == sent[1].packet_id
    again = client.expect(Publish)
    assert (again.packet_id, again.payload, again.dup) == (sent[2].packet_id, b"2", True)
    client.send(Pubcomp(sent[1].packet_id))
    client.expect_nothing()
    client.close()
    stage.offline("c")
    assert back(stage, "c", version).expect(Publish).packet_id == sent[2].packet_id


@clauses("MQTT-3.3.2-5 MQTT-4.3.3-7", v4="MQTT-4.4.0-1")
def test_a_qos_2_message_that_was_sent_does_not_expire(stage):
    client = stage.connected("c", **KEEP)
    client.subscribe("a", qos=2)
    stage.connected("publisher").publish("a", "x", 2, message_expiry_interval=10)
    first = client.expect(Publish)
    client.close()
    stage.offline("c")
    stage.now_us += 60_000_000
    client = back(stage, "c", 5)
    again = client.expect(Publish)
    assert (again.packet_id, again.dup) == (first.packet_id, True)


@clauses("MQTT-3.1.4-3", v4="MQTT-3.1.4-2")
def test_a_second_connection_takes_the_session_over(stage, version):
    first = stage.connected("c", version, **KEEP)
    first.subscribe("a", qos=1)
    second = back(stage, "c", version)
    first.expect_closed(Reason.SESSION_TAKEN_OVER)
    stage.connected("publisher").publish("a", "x", 1)
    assert second.payloads(1) == ["x"]
    assert stage.broker.metrics.takeovers == 1


@clauses("MQTT-3.1.4-3 MQTT-3.1.4-4", v4="MQTT-3.1.4-2 MQTT-3.1.4-3")
def test_a_take_over_with_a_clean_start_begins_anew(stage, version):
    first = stage.connected("c", version, **KEEP)
    first.subscribe("a", qos=1)
    second = stage.client(version)
    assert not second.connect("c", True).session_present
    first.expect_closed(Reason.SESSION_TAKEN_OVER)
    stage.connected("publisher").publish("a", "x", 1)
    second.expect_nothing()


@clauses("MQTT-4.4.0-1", v4="MQTT-4.4.0-1")
def test_a_take_over_sends_what_is_under_way_again(stage, version):
    first = stage.connected("c", version, **KEEP)
    first.subscribe("a", qos=1)
    stage.connected("publisher").publish("a", "x", 1)
    sent = first.expect(Publish)
    again = back(stage, "c", version).expect(Publish)
    assert (again.packet_id, again.dup) == (sent.packet_id, True)


@clauses("MQTT-4.1.0-2 MQTT-3.1.2-23")
def test_a_session_ends_when_its_time_is_over(stage):
    client = stage.connected("c", clean_start=False, expiry=10)
    client.subscribe("a", qos=1)
    client.disconnect()
    stage.offline("c")
    stage.later(9)
    assert "c" in stage.inside.sessions
    stage.later(2)
    assert "c" not in stage.inside.sessions
    assert stage.call(stage.inside.kept_filters) == []
    back(stage, "c", 5, present=False)


@clauses("MQTT-4.1.0-1 MQTT-4.1.0-2")
def test_the_time_of_a_session_runs_from_its_last_connection(stage):
    sessions = stage.inside.sessions
    stage.connected("c", clean_start=False, expiry=1000).disconnect()
    stage.offline("c")
    stage.later(500)
    client = back(stage, "c", 5, expiry=1000)
    stage.later(2000)
    assert "c" in sessions
    client.disconnect()
    stage.offline("c")
    stage.later(600)
    assert "c" in sessions
    stage.later(600)
    assert "c" not in sessions


@clauses("MQTT-3.1.2-23")
def test_disconnect_can_change_how_long_the_session_stays(stage):
    client = stage.connected("c", clean_start=False, expiry=10)
    client.subscribe("a", qos=1)
    client.disconnect(session_expiry_interval=100)
    stage.offline("c")
    stage.later(50)
    assert "c" in stage.inside.sessions


@clauses("MQTT-4.1.0-2")
def test_disconnect_can_end_the_session(stage):
    client = stage.connected("c", clean_start=False, expiry=10)
    client.subscribe("a", qos=1)
    client.disconnect(session_expiry_interval=0)
    stage.until(lambda: "c" not in stage.inside.sessions)
    assert stage.call(stage.inside.kept_filters) == []


@clauses("MQTT-4.1.0-2")
def test_a_session_resumed_without_expiry_ends_and_leaves_nothing_kept(stage):
    away(stage, "c", 5, "a", "b/+")
    client = stage.client()
    assert client.connect("c", False).session_present
    client.disconnect()
    stage.until(lambda: "c" not in stage.inside.sessions)
    assert stage.call(stage.inside.kept_filters) == []


@clauses("MQTT-4.13.1-1 MQTT-3.14.2-2")
def test_disconnect_can_not_begin_an_expiry(stage):
    client = stage.connected("c")
    client.send_bytes(b"\xe0\x07\x00\x05\x11\x00\x00\x00\x0a")
    client.expect_closed(Reason.PROTOCOL_ERROR)


@clauses("MQTT-3.1.2-23")
def test_the_longest_expiry_is_announced(stages):
    stage = stages(limits=Limits(session_expiry_s=60))
    assert stage.client().connect("a", False, expiry=61).properties.session_expiry_interval == 60
    assert stage.client().connect("b", False, expiry=60).properties.session_expiry_interval is None


@clauses("MQTT-3.3.1-5", v4="MQTT-3.1.2-7")
def test_retained_messages_outlive_the_session(stage, version):
    client = stage.connected("c", version)
    client.publish("a", "x", retain=True)
    client.disconnect()
    stage.until(lambda: "c" not in stage.inside.sessions)
    client = stage.connected("d", version)
    client.subscribe("a")
    assert client.payloads(1) == ["x"]


@clauses("MQTT-4.3.3-10", v4="MQTT-4.3.3-2")
def test_a_qos_2_message_is_remembered_across_connections(stage, version):
    watcher = stage.connected("watcher")
    watcher.subscribe("a", qos=2)
    client = stage.connected("c", version, **KEEP)
    client.send(Publish("a", b"x", 2, packet_id=9))
    client.expect(Pubrec)
    client.close()
    stage.offline("c")
    client = back(stage, "c", version)
    client.send(Publish("a", b"x", 2, dup=True, packet_id=9))
    assert client.expect(Pubrec).reason is Reason.SUCCESS
    client.send(Pubrel(9))
    assert client.expect(Pubcomp).reason is Reason.SUCCESS
    assert watcher.payloads(1) == ["x"]
    watcher.expect_nothing()


@clauses("MQTT-4.3.3-12", v4="MQTT-4.3.3-2")
def test_qos_2_ids_of_a_discarded_session_are_new(stage, version):
    watcher = stage.connected("watcher")
    watcher.subscribe("a", qos=0)
    client = stage.connected("c", version, **KEEP)
    client.send(Publish("a", b"x", 2, packet_id=9))
    client.expect(Pubrec)
    client = stage.connected("c", version, clean_start=True)
    client.send(Publish("a", b"y", 2, packet_id=9))
    client.expect(Pubrec)
    assert watcher.payloads(2) == ["x", "y"]


def test_a_durable_session_may_not_ask_for_everything_unless_allowed(stages):
    stage = stages(limits=Limits(durable_wildcard=True))
    assert stage.connected("c", **KEEP).subscribe("#", qos=1) == (Reason.GRANTED_QOS_1,)
    stage = stages()
    assert stage.connected("c", **KEEP).subscribe("#", qos=1) == (Reason.NOT_AUTHORIZED,)
    assert stage.connected("d").subscribe("#", qos=1) == (Reason.GRANTED_QOS_1,)


@pytest.mark.parametrize("prefix", ["", "$share/g/", "$replay/latest/"])
def test_everything_in_other_words_is_everything_too(stage, prefix):
    client = stage.connected("c", **KEEP)
    everything = client.subscribe(*(prefix + one for one in ("#", "+/#", "+/+/#", "+", "+/+", "+/+/+")), qos=1)
    assert everything == (Reason.NOT_AUTHORIZED,) * 6
    parts = client.subscribe(*(prefix + one for one in ("+/a/#", "a/#", "/#", "+/a")), qos=1)
    assert parts == (Reason.GRANTED_QOS_1,) * 4


def test_a_stored_session_that_is_resumed_to_end_with_its_connection_may_not_ask_for_everything(stage):
    stage.connected("c", **KEEP).disconnect()
    stage.offline("c")
    client = stage.connected("c", clean_start=False)
    assert client.subscribe("#", qos=1) == (Reason.NOT_AUTHORIZED,)


@pytest.mark.parametrize("wish", [("everlog-order", "topic"), ("everlog-from", "earliest")])
def test_a_clean_member_may_not_have_a_group_read_everything_from_the_log(stages, wish):
    for keep, reason in (
        ([], Reason.NOT_AUTHORIZED),
        ([("#", 1)], Reason.NOT_AUTHORIZED),
        ([("#", 0)], Reason.GRANTED_QOS_1),
    ):
        client = stages(keep=keep).connected("c")
        assert client.subscribe("$share/g/#", qos=1, wishes=(wish,)) == (reason,)
        assert client.subscribe("$share/h/#", qos=1) == (Reason.GRANTED_QOS_1,)  # in memory


def test_everything_may_be_asked_for_where_all_of_it_is_kept_already(stages):
    client = stages(keep=[("#", 0)]).connected("c", **KEEP)
    assert client.subscribe("#", "+/+", "$share/g/#", qos=1) == (Reason.GRANTED_QOS_1,) * 3
    client = stages(keep=[("#", 0)], never=["response/#"]).connected("c", **KEEP)
    assert client.subscribe("#", "+/+", qos=1) == (Reason.GRANTED_QOS_1,) * 2
    client = stages(keep=[("+/a/#", 0)]).connected("c", **KEEP)
    assert client.subscribe("#", "+/+", qos=1) == (Reason.NOT_AUTHORIZED,) * 2


def test_what_is_never_kept_for_replay_is_kept_for_a_durable_session(stages):
    stage = stages(keep=[("#", 0)], never=["response/#"])
    publisher = stage.connected("publisher")
    publisher.publish("response/c/1", "unkept", 1)
    assert stage.call(lambda: stage.inside.messages_kept) == 0
    away(stage, "c", 5, "response/c/+")
    publisher.publish("response/c/1", "owed", 1)
    publisher.publish("response/d/1", "unkept", 1)
    assert stage.call(lambda: stage.inside.messages_kept) == 1
    client = stage.connected("c", clean_start=False, expiry=100)
    assert client.message().payload == b"owed"
    client.expect_nothing()


def test_without_durable_sessions_nothing_outlives_a_connection_and_nothing_is_stored(stages, version):
    tables = MemoryTables()
    stage = stages(limits=Limits(session_expiry_s=0), tables=tables)
    client = stage.client(version)
    answer = client.connect("c", clean_start=version == 5, expiry=1000)
    assert answer.properties.session_expiry_interval == (0 if version == 5 else None)
    assert client.subscribe("a", qos=2) == (Reason.GRANTED_QOS_2,)
    stage.connected("publisher").publish("a", "1", 2)
    assert client.message().payload == b"1"
    client.close()
    stage.offline("c")
    client = stage.client(version)
    assert not client.connect("c", clean_start=False).session_present
    client.expect_nothing()
    stage.stop()
    stored = tables.load()
    assert (list(stored.sessions), list(stored.groups)) == ([], [])


def test_an_offline_session_costs_no_memory_for_each_message(stage):
    away(stage, "c", 5, "a")
    publisher = stage.connected("publisher")
    for number in range(50):
        publisher.publish("a", str(number), 1)
    session = stage.inside.sessions["c"]
    assert (session.queued_bytes, session.inflight) == (0, 0)


@pytest.mark.parametrize("inflight", [1, 5, 64])
def test_many_messages_missed_come_through_a_small_window(stages, version, inflight):
    stage = stages(MemoryLog(), limits=Limits(inflight_messages=inflight))
    away(stage, "c", version, "a/+")
    publisher = stage.connected("publisher")
    for number in range(300):
        publisher.send(Publish(f"a/{number % 3}", str(number).encode(), 1, packet_id=number + 1))
    for _ in range(300):
        publisher.expect(Puback)
    client = back(stage, "c", version)
    assert [int(one) for one in client.payloads(300)] == list(range(300))
    client.expect_nothing()


def test_an_old_connections_disconnect_does_not_hurt_the_new_one(stage):
    first = stage.connected("c", **KEEP)
    second = back(stage, "c", 5)
    assert first.expect(Disconnect).reason is Reason.SESSION_TAKEN_OVER
    first.close()
    second.subscribe(Subscription("a", 1))
    stage.connected("publisher").publish("a", "x", 1)
    assert second.payloads(1) == ["x"]


@clauses(v4="MQTT-4.1.0-2")
@pytest.mark.parametrize("clean", [True, False])
def test_a_session_lasts_as_long_as_its_connection(stages, version, clean):
    stage = stages(limits=Limits(session_expiry_s=1))
    client, other = stage.client(version), stage.connected("o", version)
    client.connect("c", clean, expiry=0 if clean else 1)
    client.subscribe("a", qos=1)
    stage.later(1000)  # longer than any session may outlive its connection
    other.publish("a", "x", 1)
    assert client.payloads(1) == ["x"]
