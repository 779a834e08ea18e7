"""A real Mosquitto as a bridge to our broker, with its defaults."""

import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.brokers import RunningBroker
from tests.listening import eventually
from tests.raw_client import RawClient

from everlog.bench.load.brokers import free_port
from everlog.mqtt import Subscription

STATE = "$SYS/broker/connection/up/state"
pytestmark = pytest.mark.skipif(shutil.which("mosquitto") is None, reason="Mosquitto is not installed")


@contextmanager
def bridge(directory: Path, port: int, *options: str) -> "Iterator[tuple[int, subprocess.Popen[bytes]]]":
    """A Mosquitto that bridges `t/#` in both directions; its port and its process."""
    own = free_port()
    lines = [f"listener {own} 127.0.0.1", "allow_anonymous true", "persistence false", "connection up"]
    lines += [f"address 127.0.0.1:{port}", "remote_clientid up", "topic t/# both 1", "restart_timeout 1", *options]
    (directory / "mosquitto.conf").write_text("\n".join(lines) + "\n")
    process = subprocess.Popen(["mosquitto", "-c", str(directory / "mosquitto.conf")], stderr=subprocess.DEVNULL)
    try:
        yield own, process
    finally:
        process.kill()
        process.wait()


def peer(port: int) -> RawClient:
    def listens() -> bool:
        with socket.socket() as trial:
            return trial.connect_ex(("127.0.0.1", port)) == 0

    eventually(listens, "Mosquitto listens")
    client = RawClient(port, deadline_s=20)
    client.connect()
    return client


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("bridge_protocol_version mqttv31",),
        ("bridge_protocol_version mqttv50",),
        ("try_private false", "notifications true"),
    ],
)
def test_a_bridge_tells_its_state_and_echoes_nothing(tmp_path: Path, options: tuple[str, ...]) -> None:
    is_told = options[:1] != ("try_private false",)  # else it is a client like any other
    with RunningBroker(keep=[("#", 0)]) as broker, RawClient(broker.port, deadline_s=20) as here:
        here.connect("here")
        here.subscribe(STATE, Subscription("t/#", 1, retain_as_published=True))
        with bridge(tmp_path, broker.port, *options) as (port, process), peer(port) as there:
            assert (here.message().topic, "up" in broker.call(lambda: broker.inside.sessions)) == (STATE, True)
            there.subscribe(Subscription("t/#", 1, retain_as_published=True))
            here.publish("t/down", "kept", qos=1, retain=True)
            assert here.message().topic == "t/down"
            found = there.message()
            assert (found.topic, found.payload, found.retain) == ("t/down", b"kept", is_told)
            there.publish("t/up", "kept", qos=1, retain=True)
            found = here.message()
            assert (found.topic, found.payload, found.retain) == ("t/up", b"kept", True)
            assert there.message().topic == "t/up"
            if is_told:
                here.publish("t/end", "end", qos=1)
                assert there.message().payload == b"end", "nothing of its own has come back"
            process.kill()
            states = (one for one in iter(here.message, None) if one.topic == STATE)
            assert next(states).payload == b"0"


def test_the_state_of_another_bridge_is_not_its_own(tmp_path: Path) -> None:
    with RunningBroker() as broker, RawClient(broker.port) as client, RawClient(broker.port) as other:
        client.connect("up")
        other.connect("other")
        other.subscribe("$SYS/broker/connection/#")
        client.publish("$SYS/broker/connection/other/state", "1", retain=True)
        client.publish(STATE, "1")
        assert other.message().topic == STATE
        other.expect_nothing()
