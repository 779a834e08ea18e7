"""What a client that was away gets, as a suite for persistent sessions asks: on a real log and real tables."""

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conformance.clause import clauses
from tests.raw_client import Closed, RawClient
from tests.stages import Stage

from everlog.commitlog import LogSettings
from everlog.mqtt import Puback, Pubcomp, Publish, Pubrec, Pubrel, Reason, Subscription, Will
from everlog.sessions import SqliteTables
from everlog.store import LogStore

KEEP = {"clean_start": False, "expiry": 1000}
TOPICS = ("a/1", "a/2", "a/3")


@pytest.fixture(params=[1, 4], ids=["1 shard", "4 shards"])
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stage]:
    store = LogStore.open(str(tmp_path), LogSettings(durability="flush", segment_bytes=2000), shards=request.param)
    tables = SqliteTables(tmp_path / "sessions.db")
    stage = Stage(store, tables=tables)  # type: ignore[arg-type]
    yield stage
    stage.close()
    tables.close()
    store.close()


def gone(stage: Stage, client: RawClient, client_id: str = "c") -> None:
    client.close()
    stage.offline(client_id)


def back(stage: Stage, version: int, client_id: str = "c", present: bool = True) -> RawClient:
    client = stage.client(version)
    assert client.connect(client_id, **KEEP).session_present is present  # type: ignore[arg-type]
    return client


def expect_end(client: RawClient) -> None:
    with contextlib.suppress(Closed):
        while client.receive():
            pass


def in_order(stage: Stage, messages: list[Publish]) -> bool:
    """All of them in one shard, else those of each topic."""
    if len(stage.broker.log.shards) == 1:
        return messages == sorted(messages, key=lambda one: int(one.payload))
    return all(
        [one for one in messages if one.topic == topic]
        == sorted((one for one in messages if one.topic == topic), key=lambda one: int(one.payload))
        for topic in TOPICS
    )


@pytest.mark.parametrize("qos", [1, 2])
@clauses("MQTT-4.4.0-1 MQTT-3.3.1-1 MQTT-4.6.0-5", v4="MQTT-4.4.0-1 MQTT-3.3.1-1 MQTT-4.6.0-1")
def test_7_sent_4_acknowledged_5_more_while_away(stage: Stage, version: int, qos: int) -> None:
    client = stage.connected("c", version, **KEEP)
    client.subscribe("a/+", qos=qos)
    publisher = stage.connected("publisher")
    for number in range(7):
        publisher.publish(TOPICS[number % 3], str(number), qos)
    sent = {int(one.payload): one for one in (client.expect(Publish) for _ in range(7))}
    for number in (5, 0, 3, 2):
        client.acknowledge(sent[number])
    client.expect_nothing()
    gone(stage, client)
    for number in range(7, 12):
        publisher.publish(TOPICS[number % 3], str(number), qos)
    client = back(stage, version)
    found = [client.expect(Publish) for _ in range(8)]
    again, new = found[:3], found[3:]
    assert {(int(one.payload), one.packet_id, one.qos, one.dup) for one in again} == {
        (number, sent[number].packet_id, qos, True) for number in (1, 4, 6)
    }
    assert sorted((int(one.payload), one.qos, one.dup) for one in new) == [(n, qos, False) for n in range(7, 12)]
    assert in_order(stage, again)
    assert in_order(stage, new)
    assert len({one.packet_id for one in found}) == 8
    for one in found:
        client.acknowledge(one)
    client.expect_nothing()
    gone(stage, client)
    back(stage, version).expect_nothing()


@clauses("MQTT-4.4.0-1 MQTT-4.3.3-6", v4="MQTT-4.4.0-1 MQTT-4.3.3-1")
def test_pubrels_are_repeated_for_what_was_received_and_publishes_for_the_rest(stage: Stage, version: int) -> None:
    client = stage.connected("c", version, **KEEP)
    client.subscribe("a/1", qos=2)
    publisher = stage.connected("publisher")
    for number in range(4):
        publisher.publish("a/1", str(number), 2)
    sent = [client.expect(Publish) for _ in range(4)]
    for one in (sent[0], sent[2]):
        client.send(Pubrec(one.packet_id))
        assert client.expect(Pubrel).packet_id == one.packet_id
    gone(stage, client)
    for _ in range(2):  # as often as it takes
        client = back(stage, version)
        found = [client.receive() for _ in range(4)]
        assert [(type(one), one.packet_id) for one in found] == [  # type: ignore[union-attr]
            (Pubrel if number % 2 == 0 else Publish, one.packet_id) for number, one in enumerate(sent)
        ]
        assert all(one.dup for one in found if isinstance(one, Publish))
        gone(stage, client)
    client = back(stage, version)
    found = [client.receive() for _ in range(4)]
    client.send(*(Pubcomp(one.packet_id) for one in found if isinstance(one, Pubrel)))
    for one in found:
        if isinstance(one, Publish):
            client.acknowledge(one)
    client.expect_nothing()
    gone(stage, client)
    back(stage, version).expect_nothing()


@clauses("MQTT-3.3.4-2 MQTT-3.3.4-3 MQTT-3.3.4-4")
def test_overlapping_filters_bring_a_missed_message_once_with_all_identifiers(stage: Stage) -> None:
    client = stage.connected("c", **KEEP)
    client.subscribe("a/#", qos=1, identifier=1)
    client.subscribe("a/+", qos=2, identifier=2)
    client.subscribe("a/1", qos=0, identifier=3)
    client.subscribe("b", qos=2, identifier=4)
    gone(stage, client)
    publisher = stage.connected("publisher")
    for topic in ("a/1", "a/2", "a/2/x"):
        publisher.publish(topic, topic, 2)
    client = back(stage, 5)
    found = {one.topic: one for one in (client.message() for _ in range(3))}
    told = {topic: (one.qos, sorted(one.properties.subscription_identifiers)) for topic, one in found.items()}
    assert told == {"a/1": (2, [1, 2, 3]), "a/2": (2, [1, 2]), "a/2/x": (1, [1])}
    client.expect_nothing()


@clauses("MQTT-3.10.4-3", v4="MQTT-3.10.4-3")
def test_an_unsubscribe_with_unacknowledged_messages(stage: Stage, version: int) -> None:
    client = stage.connected("c", version, **KEEP)
    client.subscribe("a/1", "a/2", qos=1)
    publisher = stage.connected("publisher")
    publisher.publish("a/1", "0", 1)
    publisher.publish("a/2", "1", 1)
    sent = {one.topic: one for one in (client.expect(Publish), client.expect(Publish))}
    client.unsubscribe("a/1")
    gone(stage, client)
    publisher.publish("a/1", "2", 1)
    publisher.publish("a/2", "3", 1)
    client = back(stage, version)
    found = [client.message() for _ in range(3)]
    assert {(one.payload, one.packet_id, one.dup) for one in found[:2]} == {
        (one.payload, one.packet_id, True) for one in sent.values()
    }
    assert (found[2].payload, found[2].dup) == (b"3", False)
    client.expect_nothing()


@pytest.mark.parametrize("qos", [1, 2])
@clauses("MQTT-3.1.4-3", v4="MQTT-3.1.4-2")
def test_a_session_is_taken_over_while_messages_flow(stage: Stage, version: int, qos: int) -> None:
    """Each connection reads a little, acknowledges less, and is pushed out by the next."""
    count = 400
    client = stage.connected("c", version, **KEEP)
    client.subscribe("a/+", qos=qos)

    def publish() -> None:
        for number in range(count):
            publisher.publish(TOPICS[number % 3], str(number), qos)

    publisher = stage.connected("publisher")
    thread = threading.Thread(target=publish, daemon=True)
    thread.start()
    first: dict[int, Publish] = {}
    unreleased: dict[int, int] = {}
    connections = 0
    while len(first) < count:
        connections += 1
        for _ in range(37):
            if len(first) == count:
                break
            packet = client.receive()
            if isinstance(packet, Pubrel):
                unreleased.pop(packet.packet_id, None)
                client.send(Pubcomp(packet.packet_id))
                continue
            assert isinstance(packet, Publish)
            number = int(packet.payload)
            if qos == 2 and packet.packet_id in unreleased:
                assert (unreleased[packet.packet_id], packet.dup) == (number, True)
            else:
                assert number not in first or (qos == 1 and packet.dup)
                first.setdefault(number, packet)
            if qos == 2:
                unreleased[packet.packet_id] = number
            if number % 4 or packet.dup:
                client.send(Pubrec(packet.packet_id) if qos == 2 else Puback(packet.packet_id))
        old, client = client, back(stage, version)
        expect_end(old)
    thread.join()
    assert connections > 5
    assert in_order(stage, list(first.values()))


@clauses("MQTT-3.3.1-8 MQTT-3.3.1-9", v4="MQTT-3.3.1-8 MQTT-3.3.1-9")
def test_retained_messages_on_a_resumed_session(stage: Stage, version: int) -> None:
    publisher = stage.connected("publisher")
    publisher.publish("a/1", "0", 1, retain=True)
    client = stage.connected("c", version, **KEEP)
    client.subscribe("a/+", qos=1)
    one = client.message()
    assert (one.payload, one.retain) == (b"0", True)
    client.expect_nothing()
    gone(stage, client)
    publisher.publish("a/1", "1", 1, retain=True)
    publisher.publish("a/1", "2", 1, retain=True)
    client = back(stage, version)
    found = [client.message() for _ in range(2)]
    assert [(one.payload, one.retain) for one in found] == [(b"1", False), (b"2", False)], "as messages, once each"
    client.expect_nothing()
    client.subscribe("a/+", qos=1)
    one = client.message()
    assert (one.payload, one.retain) == (b"2", True)


@clauses("MQTT-3.1.2-8", v4="MQTT-3.1.2-8")
def test_a_will_on_a_resumed_session(stage: Stage, version: int) -> None:
    watcher = stage.connected("watcher", version, **KEEP)
    watcher.subscribe("a/1", qos=2)
    gone(stage, watcher, "watcher")
    client = stage.connected("c", version, will=Will("a/1", b"gone", 2), **KEEP)
    client.close()
    stage.offline("c")
    watcher = back(stage, version, "watcher")
    one = watcher.message()
    assert (one.payload, one.qos, one.dup) == (b"gone", 2, False)
    back(stage, version).disconnect()
    stage.offline("c")
    watcher.expect_nothing()


def test_what_the_broker_says_of_itself_on_a_resumed_session(stage: Stage, version: int) -> None:
    client = stage.connected("c", version, **KEEP)
    client.subscribe("$SYS/broker/x", qos=1)
    gone(stage, client)
    client = back(stage, version)
    stage.call(lambda: stage.inside.publish(Publish("$SYS/broker/x", b"now", retain=True)))
    one = client.message()
    assert (one.topic, one.payload, one.retain) == ("$SYS/broker/x", b"now", False)
    client.expect_nothing()


@clauses("MQTT-2.2.1-5 MQTT-4.4.0-1", v4="MQTT-2.3.1-6 MQTT-4.4.0-1")
def test_acks_of_the_wrong_kind_close_and_all_comes_again(stage: Stage, version: int) -> None:
    client = stage.connected("c", version, **KEEP)
    client.subscribe("a/1", qos=2)
    publisher = stage.connected("publisher")
    publisher.publish("a/1", "0", 1)
    publisher.publish("a/1", "1", 2)
    one, two = client.expect(Publish), client.expect(Publish)
    for wrong in (Pubrec(one.packet_id), Pubcomp(one.packet_id), Puback(two.packet_id), Pubcomp(two.packet_id)):
        client.send(wrong)
        client.expect_closed(Reason.PROTOCOL_ERROR)
        gone(stage, client)
        client = back(stage, version)
        again = [client.expect(Publish), client.expect(Publish)]
        assert [(each.payload, each.packet_id, each.dup) for each in again] == [
            (b"0", one.packet_id, True),
            (b"1", two.packet_id, True),
        ]
    client.acknowledge(one)
    client.acknowledge(two)
    client.expect_nothing()
    gone(stage, client)
    back(stage, version).expect_nothing()


@clauses("MQTT-3.3.2-5 MQTT-3.3.2-6")
def test_a_message_grows_old_while_it_is_stored(stage: Stage) -> None:
    client = stage.connected("c", **KEEP)
    client.subscribe("a/+", qos=1)
    gone(stage, client)
    publisher = stage.connected("publisher")
    publisher.publish("a/1", "0", 1, message_expiry_interval=30)
    publisher.publish("a/2", "1", 1, message_expiry_interval=100)
    publisher.publish("a/3", "2", 1)
    stage.now_us += 40_000_000
    client = back(stage, 5)
    found = {one.payload: one.properties.message_expiry_interval for one in (client.message() for _ in range(2))}
    assert found == {b"1": 60, b"2": None}
    client.expect_nothing()


@clauses("MQTT-3.1.2-4 MQTT-3.14.2-2", v4="MQTT-3.1.2-6")
@pytest.mark.parametrize("how", ["clean start", "expiry at DISCONNECT"])
def test_a_session_that_is_over_owes_nothing(stage: Stage, how: str) -> None:
    client = stage.connected("c", **KEEP)
    client.subscribe(Subscription("a/+", 1))
    publisher = stage.connected("publisher")
    publisher.publish("a/1", "0", 1)
    client.expect(Publish)
    if how == "clean start":
        gone(stage, client)
        publisher.publish("a/1", "1", 1)
        client = stage.client()
        assert not client.connect("c", True, expiry=1000).session_present
    else:
        client.disconnect(session_expiry_interval=0)
        stage.until(lambda: stage.inside.session_count == 1)
        publisher.publish("a/1", "1", 1)
        client = back(stage, 5, present=False)
    publisher.publish("a/1", "2", 1)
    client.expect_nothing()
