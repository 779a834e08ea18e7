"""Listeners with a mount point: their clients' topics stand behind it, and they see nothing else."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.brokers import RunningBroker
from tests.listening import opened
from tests.raw_client import RawClient

from everlog.broker import Listener
from everlog.mqtt import Disconnect, Publish, Reason, Will

MOUNT = "customers/acme/"


@contextmanager
def mounted(broker: RunningBroker) -> Iterator[int]:
    with opened(broker, Listener("127.0.0.1", 0, mount_point=MOUNT)) as listening:
        yield listening.addresses()[0].port


@contextmanager
def pair() -> Iterator[tuple[RawClient, RawClient]]:
    """A client of the mounted listener and one of a plain one."""
    with (
        RunningBroker() as broker,
        mounted(broker) as port,
        RawClient(port) as inside,
        RawClient(broker.port) as outside,
    ):
        inside.connect("a")
        outside.connect("c")
        yield inside, outside


def seen(client: RawClient) -> tuple[str, bytes]:
    message = client.message()
    return message.topic, message.payload


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_what_its_clients_publish_stands_behind_it(version: int, qos: int) -> None:
    with (
        RunningBroker() as broker,
        mounted(broker) as port,
        RawClient(port, version) as inside,
        RawClient(port, version) as other,
        RawClient(broker.port) as outside,
    ):
        inside.connect("a")
        other.connect("b")
        outside.connect("c")
        other.subscribe("t/+", qos=qos)
        outside.subscribe(MOUNT + "t/1", qos=qos)
        inside.publish("t/1", b"x", qos=qos)
        assert seen(other) == ("t/1", b"x")
        assert seen(outside) == (MOUNT + "t/1", b"x")
        outside.publish(MOUNT + "t/2", b"y", qos=qos)
        assert seen(other) == ("t/2", b"y")


def test_its_clients_see_nothing_else() -> None:
    with (
        RunningBroker() as broker,
        mounted(broker) as port,
        RawClient(port) as inside,
        RawClient(broker.port) as outside,
    ):
        inside.connect("a")
        outside.connect("c")
        inside.subscribe("#", "$SYS/#", qos=1)
        outside.publish("t/1", b"no", qos=1)
        outside.publish("customers/acm", b"no", qos=1)
        outside.publish(MOUNT, b"no: it has no name there", qos=1)
        outside.publish(MOUNT + "end", b"yes", qos=1)
        assert seen(inside) == ("end", b"yes")


def test_filters_of_groups_replays_and_unsubscribes() -> None:
    with (
        RunningBroker() as broker,
        mounted(broker) as port,
        RawClient(port) as inside,
        RawClient(broker.port) as outside,
    ):
        inside.connect("a")
        outside.connect("c")
        assert inside.subscribe("$share/g/t", qos=1) == (Reason.GRANTED_QOS_1,)
        outside.publish(MOUNT + "t", b"1", qos=1)
        assert seen(inside) == ("t", b"1")
        assert inside.unsubscribe("$share/g/t", "t") == (Reason.SUCCESS, Reason.NO_SUBSCRIPTION_EXISTED)
        assert inside.subscribe("t", qos=1) == (Reason.GRANTED_QOS_1,)
        assert inside.unsubscribe("t") == (Reason.SUCCESS,)
        assert inside.subscribe("$share/g/")[0].is_error


def test_retained_messages_wills_and_aliases() -> None:
    with RunningBroker() as broker, mounted(broker) as port, RawClient(broker.port) as outside:
        outside.connect("c")
        outside.subscribe("#", qos=1)
        with RawClient(port) as inside:
            inside.connect("a", will=Will("gone", b"w", 1, retain=True))
            inside.publish("kept", b"r", qos=1, retain=True)
            assert seen(outside) == (MOUNT + "kept", b"r")
            inside.publish("aliased", b"1", qos=1, topic_alias=1)
            inside.publish("", b"2", qos=1, topic_alias=1)
            assert [seen(outside), seen(outside)] == [(MOUNT + "aliased", b"1"), (MOUNT + "aliased", b"2")]
        assert seen(outside) == (MOUNT + "gone", b"w")
        with RawClient(port) as inside:
            inside.connect("b", topic_alias_maximum=10)
            inside.subscribe("+", qos=1)
            assert sorted([seen(inside), seen(inside)]) == [("gone", b"w"), ("kept", b"r")]


def test_a_session_may_come_back_by_another_listener() -> None:
    """It has the filters that it had; through the mount point it is shown what is behind it."""
    with RunningBroker() as broker, mounted(broker) as port:
        with RawClient(broker.port) as client:
            client.connect("s", clean_start=True, session_expiry_interval=1000)
            client.subscribe("t", MOUNT + "t", qos=1)
        with RawClient(broker.port) as outside:
            outside.connect("c")
            for topic in ("t", MOUNT + "t"):
                outside.publish(topic, topic.encode(), qos=1)
        with RawClient(port) as client:
            assert client.connect("s", clean_start=False, session_expiry_interval=1000).session_present
            message = client.expect(Publish)
            assert (message.topic, message.payload) == ("t", (MOUNT + "t").encode())
            client.acknowledge(message)
            client.publish("t", b"more", qos=1)
            assert seen(client) == ("t", b"more")


@pytest.mark.parametrize("topic", ["", "a/+", "a/#", "a\0"])
def test_what_is_no_topic_is_none_behind_it(topic: str) -> None:
    with RunningBroker() as broker, mounted(broker) as port, RawClient(port) as client:
        client.connect("a")
        body = len(topic.encode()).to_bytes(2, "big") + topic.encode() + b"\0"
        client.send_bytes(bytes((0x30, len(body))) + body)
        assert client.expect(Disconnect).reason.is_error
        client.expect_closed()


def test_limits_count_with_it() -> None:
    with RunningBroker() as broker, mounted(broker) as port, RawClient(port) as client:
        client.connect("a")
        client.subscribe("/".join("a" * 126), qos=0)
        assert client.subscribe("/".join("a" * 127), qos=0)[0].is_error
