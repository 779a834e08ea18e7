"""Packets and ends that take many turns of the loop: order, take-over and the end in their midst, each step a turn."""

import threading

import pytest
from tests.stages import Stage

from everlog.mqtt import Pingreq, Pingresp, Reason, Suback, Subscribe, Subscription, Unsuback, Unsubscribe

KEEP = {"clean_start": False, "expiry": 1000}
COUNT = 300


@pytest.fixture
def stage(monkeypatch):
    """A broker that does one step of long work in each turn."""
    monkeypatch.setattr("everlog.broker.turns.TURN_S", 0.0)
    monkeypatch.setattr("everlog.broker.turns.SLICE_S", 0.0)
    made = Stage()
    yield made
    made.close()


def subscribe(client, *filters):
    client.send(Subscribe(9, tuple(Subscription(one, 1) for one in filters)))


def many(prefix="f", count=COUNT):
    return [f"{prefix}/{number}" for number in range(count)]


def test_what_is_sent_behind_a_long_packet_is_answered_behind_it(stage):
    client, other = stage.connected("c"), stage.connected("other")
    subscribe(client, *many())
    client.send(Unsubscribe(10, tuple(many())), Pingreq())
    client.send(Pingreq())
    other.expect_nothing()  # it need not wait
    assert client.expect(Suback).reasons == (Reason.GRANTED_QOS_1,) * COUNT
    assert client.expect(Unsuback).reasons == (Reason.SUCCESS,) * COUNT
    client.expect(Pingresp)
    client.expect(Pingresp)
    assert stage.inside.live_subscriptions == 0


@pytest.mark.parametrize("connect", [{}, KEEP], ids=["transient", "durable"])
def test_nothing_is_left_of_a_client_that_ends_within_its_subscribe(stage, connect):
    client = stage.connected("c", **connect)
    subscribe(client, *many(), "$share/g/x")
    stage.until(lambda: stage.inside.live_subscriptions > 0)
    client.close()
    stage.offline("c")
    assert stage.inside.live_subscriptions == 0
    assert stage.inside.sink_count == 0
    again = stage.connected("c")  # a clean start
    assert stage.inside.kept_filters() == []
    assert stage.inside.group_states() == []
    again.expect_nothing()


def test_a_client_that_is_back_finds_its_session_when_the_last_connection_has_left(stage):
    client = stage.connected("c", **KEEP)
    assert client.subscribe(*many(), "$share/g/x", qos=1) == (Reason.GRANTED_QOS_1,) * (COUNT + 1)
    again = stage.client()
    assert again.connect("c", **KEEP).session_present  # taken over
    client.expect_closed(Reason.SESSION_TAKEN_OVER)
    stage.until(lambda: stage.inside.live_subscriptions == COUNT + 1)
    publisher = stage.connected("p")
    publisher.publish("f/7", "7", 1)
    publisher.publish("x", "x", 1)
    assert sorted(again.payloads(2)) == ["7", "x"]


def test_the_next_session_of_a_client_id_keeps_what_it_subscribes_to(stage):
    client = stage.connected("c")
    client.subscribe(*many(), *many("$share/g"), qos=1)
    client.disconnect()
    again = stage.connected("c", **KEEP)
    again.subscribe("f/1", "$share/g/1", qos=1)
    publisher = stage.connected("p")
    for topic in ("f/1", "1", "f/2", "2"):
        publisher.publish(topic, topic, 1)
    assert sorted(again.payloads(2)) == ["1", "f/1"]
    assert stage.inside.live_subscriptions == 2
    assert [(one.name, one.filter) for one in stage.call(stage.inside.group_states)] == [("g", "1")]


def test_nothing_is_lost_that_is_published_while_a_client_leaves(stage):
    client = stage.connected("c", **KEEP)
    client.subscribe(*many(), qos=1)
    publisher, count = stage.connected("p"), 200

    def publish():
        for number in range(count):
            publisher.publish(f"f/{number % COUNT}", str(number), 1)

    thread = threading.Thread(target=publish)
    thread.start()
    found = set()
    while len(found) < count:
        for _ in range(20):
            if len(found) < count:
                found.add(int(client.message().payload))
        if len(found) < count:
            client.close()
            client = stage.connected("c", **KEEP)
    thread.join()


def test_others_get_their_messages_while_a_client_with_many_filters_leaves(stage):
    client, other = stage.connected("c"), stage.connected("other")
    client.subscribe(*many(), "#", "$share/g/t", qos=1)
    other.subscribe("t", "$share/g/t", qos=1)
    client.close()
    for number in range(20):
        assert other.publish("t", str(number), 1) is Reason.SUCCESS
    stage.offline("c")
    assert sorted(map(int, other.payloads(40))) == sorted([*range(20), *range(20)])


def test_silent_clients_are_closed_in_turns_and_the_others_stay(stage, monkeypatch):
    monkeypatch.setattr("everlog.broker.registry.silence._SLICE", 2)
    silent = [stage.connected(f"c{number}", keep_alive=10) for number in range(7)]
    for_ever = stage.connected("for ever")
    turns = []

    def sweep():
        stage.inside.sweep_clients(60)
        stage.inside.sweep_clients(60)  # while the first is under way: not twice
        turns.append(len(stage.inside.connected_ids))

    stage.call(sweep)
    stage.until(lambda: len(stage.inside.connected_ids) == 1)
    assert turns[0] > 1  # not all of them in one turn
    for client in silent:
        client.expect_closed(Reason.KEEP_ALIVE_TIMEOUT)
    for_ever.send(Pingreq())
    for_ever.expect(Pingresp)
    again = stage.connected("again", keep_alive=10)
    stage.call(lambda: stage.inside.sweep_clients(60))
    again.expect_closed(Reason.KEEP_ALIVE_TIMEOUT)


class Newcomer:
    """A peer that counts how often the number of its file is asked for."""

    peer = "peer"
    asked = 0

    @property
    def file_number(self):
        self.asked += 1
        return 20_000

    def close(self, reason, why):
        raise AssertionError


@pytest.mark.parametrize("files", [4096, 64], ids=["many", "few"])
def test_the_number_of_a_file_is_asked_for_where_it_may_be_too_high(stage, files):
    gate, newcomer = stage.running.broker.connections.gate, Newcomer()

    def admit():
        gate.reserve_files(files + 40, 40)
        found = gate.admit(newcomer)
        gate.forget(newcomer)
        return found

    found = stage.call(admit)
    assert newcomer.asked == (files < 4096)
    assert (found is not None) == (files < 4096)
