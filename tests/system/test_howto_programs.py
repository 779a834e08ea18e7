"""The Python that how-tos show runs as it stands there; where it needs a client or a check, the test has one."""

import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from tests.system.serving import PATIENCE_S, Served
from tests.system.terminal import blocks

from everlog.bench.load.brokers import free_port
from everlog.broker import Accept, Applicant, Continue, Refuse

HOW_TOS = Path(__file__).parents[2] / "docs/howto"


def programs(name: str) -> list[str]:
    return [block for kind, block in blocks((HOW_TOS / name).read_text()) if kind == "python"]


def run(block: str, **known: Any) -> dict[str, Any]:
    exec(block, known)
    return known


@pytest.mark.parametrize("number", [0, 1])
def test_a_client_replays(tmp_path: Path, number: int) -> None:
    got: list[bytes] = []
    arrived = threading.Event()

    def take(*words: Any) -> None:
        got.append(words[-1].payload)
        if len(got) == 2:
            arrived.set()

    with Served(tmp_path / "data") as broker:
        version = (mqtt.MQTTv5, mqtt.MQTTv311)[number]
        client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, protocol=version)
        client.on_message = take
        client.connect("127.0.0.1", broker.port)
        client.loop_start()
        for payload in ("1", "2"):
            client.publish("sensors/a", payload, qos=1).wait_for_publish(PATIENCE_S)
        run(programs("replay.md")[number], client=client, Properties=Properties, PacketTypes=PacketTypes)
        assert arrived.wait(PATIENCE_S)
        client.disconnect()
        client.loop_stop()
    assert got == [b"1", b"2"]


def test_a_client_connects_by_websocket(tmp_path: Path) -> None:
    port = free_port()
    with Served(tmp_path / "data", "--websocket-port", str(port)):
        (block,) = programs("websocket.md")
        client = run(block.replace("8080", str(port)))["client"]
        connected = threading.Event()
        client.on_connect = lambda *words: connected.set()
        client.loop_start()
        assert connected.wait(PATIENCE_S)
        client.disconnect()
        client.loop_stop()


def test_a_method_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = programs("authentication.md")
    theirs = ModuleType("company.tokens")
    theirs.check = lambda challenge, data: "anne" if data == challenge[::-1] else None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "company", ModuleType("company"))
    monkeypatch.setitem(sys.modules, "company.tokens", theirs)
    method = run(block)["Token"](None)
    begun = method.begin("TOKEN", None, Applicant("c", "127.0.0.1:1"))
    assert isinstance(begun, Continue)
    assert method.step(begun.data[::-1]) == Accept("anne")
    assert isinstance(method.step(b"wrong"), Refuse)
