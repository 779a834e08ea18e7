"""Events of the broker in the log: their text, who causes which, and that no peer can flood or forge lines."""

import logging
import socket
from collections.abc import Iterator

import paho.mqtt.client as paho
import pytest
from tests.brokers import RunningBroker
from tests.listening import eventually

from everlog.broker import Event, Limits, Security, event, events

LOG = logging.getLogger("everlog.broker")


@pytest.fixture(autouse=True)
def _no_floods_from_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_flood", events.Flood())


class Lines(logging.Handler):
    """The events logged so far."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Event] = []

    def emit(self, record: logging.LogRecord) -> None:
        assert isinstance(record.msg, Event)
        self.events.append(record.msg)

    def of(self, name: str) -> list[dict[str, object]]:
        return [one.fields for one in self.events if one.name == name]


@pytest.fixture
def lines() -> Iterator[Lines]:
    handler, level = Lines(), LOG.level
    LOG.addHandler(handler)
    LOG.setLevel(logging.DEBUG)
    yield handler
    LOG.setLevel(level)
    LOG.removeHandler(handler)


def test_text_is_one_line_that_no_value_can_break() -> None:
    text = str(Event("connected", {"client": "a b\nERROR forged", "peer": "127.0.0.1:9", "user": None, "version": 5}))
    assert text == 'connected client="a b\\nERROR forged" peer=127.0.0.1:9 version=5'


def test_nothing_is_made_when_the_level_is_off(lines: Lines) -> None:
    LOG.setLevel(logging.WARNING)
    event(LOG, "connected", client="c")
    assert not lines.events


def test_a_flood_of_warnings_is_counted_and_not_written(lines: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(events, "_flood", events.Flood(2, lambda: now[0]))
    for _ in range(10):
        event(LOG, "limit", logging.WARNING)
    assert len(lines.events) == 2
    now[0] += 1
    event(LOG, "limit", logging.WARNING)
    event(LOG, "other", logging.WARNING)
    assert [one.fields for one in lines.events[2:]] == [{"left_out": 8}, {}]


def client(running: RunningBroker, name: str) -> paho.Client:
    made = paho.Client(paho.CallbackAPIVersion.VERSION2, name, protocol=paho.MQTTv5, reconnect_on_failure=False)
    made.connect("127.0.0.1", running.port)
    made.loop_start()
    return made


def test_the_life_of_a_client(lines: Lines) -> None:
    with RunningBroker() as running:
        first = client(running, "c")
        eventually(lambda: lines.of("connected"), "connected")
        second = client(running, "c")
        eventually(lambda: lines.of("disconnected"), "taken over")
        second.disconnect()
        eventually(lambda: len(lines.of("disconnected")) == 2, "disconnected")
        for one in (first, second):
            one.loop_stop()
    assert [one["version"] for one in lines.of("connected")] == [5, 5]
    assert [one["client"] for one in lines.of("taken_over")] == ["c"]
    assert [one["reason"] for one in lines.of("disconnected")] == ["session taken over", "client disconnected"]


def test_who_is_refused_and_why(lines: Lines) -> None:
    with RunningBroker(security=Security(allow_anonymous=False)) as running:
        client(running, "nobody").loop_stop()
        eventually(lambda: lines.of("auth_failed"), "refused")
        with socket.create_connection(("127.0.0.1", running.port), 20) as peer:
            peer.sendall(b"\x00\x00 no MQTT")
            eventually(lambda: len(lines.of("refused")) == 2, "garbage refused")
    assert lines.of("auth_failed")[0]["client"] == "nobody"
    assert lines.of("refused")[0]["client"] == "nobody"
    assert "user name" in str(lines.of("refused")[0]["reason"])


def test_refused_subscriptions_broken_rules_and_limits(lines: Lines) -> None:
    with RunningBroker(limits=Limits(connections=1, subscriptions_per_client=1)) as running:
        one = client(running, "c")
        eventually(lambda: lines.of("connected"), "connected")
        one.subscribe([("a", 0), ("b", 0)])
        eventually(lambda: lines.of("subscribe_refused"), "subscribe refused")
        socket.create_connection(("127.0.0.1", running.port), 20).close()
        eventually(lambda: lines.of("limit"), "limit")
        assert one._sock is not None
        one._sock.sendall(b"\x00\x00")
        eventually(lambda: lines.of("protocol_error"), "protocol error")
        one.loop_stop()
    assert lines.of("subscribe_refused")[0]["filter"] == "b"
    assert lines.of("limit")[0]["limit"] == "connections"
    assert lines.of("protocol_error")[0]["client"] == "c"
