"""Wills of clients that were connected when a real broker was killed, and of those that had left it in order."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.broker_process import BrokerProcess
from tests.raw_client import RawClient

from everlog.mqtt import Publish, Will


@contextlib.contextmanager
def connected(broker: BrokerProcess, client_id: str, version: int = 5, **options: Any) -> Iterator[RawClient]:
    with broker.client(version) as client:
        client.connect(client_id, **options)
        yield client


def retained(broker: BrokerProcess) -> dict[str, str]:
    """The retained messages of a broker, by topic."""
    with connected(broker, "reader") as reader:
        reader.subscribe("presence/#", "end")
        reader.publish("end")  # sent after what is retained
        found = iter(reader.message, Publish("end", b""))
        return {message.topic: message.payload.decode() for message in found}


def offline(client_id: str) -> Will:
    return Will(f"presence/{client_id}", b"offline", 1, True)


@pytest.mark.parametrize("keep", ["#", "nothing"])
def test_the_wills_of_clean_sessions_are_sent_after_a_crash(tmp_path: Path, keep: str) -> None:
    with BrokerProcess(tmp_path, "--set", f'keep.filters=["{keep}"]', sync_ms=20) as broker:
        with (
            connected(broker, "five", will=offline("five")) as five,
            connected(broker, "four", 4, will=offline("four")),
            connected(broker, "left", will=offline("left")) as left,
            connected(broker, "none"),
        ):
            five.publish("presence/five", "online", qos=1, retain=True)
            left.publish("presence/left", "online", qos=1, retain=True)
            left.disconnect()
            broker.kill()
        broker.start()
        expected = {"presence/five": "offline", "presence/four": "offline", "presence/left": "online"}
        assert retained(broker) == expected
        with connected(broker, "five") as five:
            five.publish("presence/five", "back", qos=1, retain=True)
        broker.kill()
        broker.start()
        assert retained(broker) == {**expected, "presence/five": "back"}, "a will is sent once"


def test_no_crash_sends_the_will_of_a_durable_session_whose_client_has_left_in_order(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, sync_ms=20) as broker:
        with connected(broker, "c", will=offline("c"), expiry=100) as client:
            client.publish("presence/c", "online", qos=1, retain=True)
            client.disconnect()  # returns when the broker has closed the connection
        broker.kill()
        broker.start()
        assert retained(broker) == {"presence/c": "online"}


def test_an_orderly_end_leaves_no_will_for_the_next_start(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, sync_ms=20) as broker:
        with connected(broker, "c", will=offline("c")):
            broker.stop()
        broker.start()
        assert retained(broker) == {"presence/c": "offline"}
        with connected(broker, "c") as client:
            client.publish("presence/c", "", qos=1, retain=True)
        broker.stop()
        broker.start()
        assert retained(broker) == {}
