"""The connection of a part of the broker's own process: rules do not bind it, and no other client can be it."""

import asyncio
from pathlib import Path

import pytest
from tests.brokers import serve_on
from tests.buses import Heard
from tests.memory_log import MemoryLog

from everlog.base import EverlogError
from everlog.broker import Broker, Security, connect_inside
from everlog.bus import MqttAddress, MqttBus, NotAllowed
from everlog.mqtt import Connect, encode


async def inside(broker: Broker) -> MqttBus:
    async def dial(protocol: asyncio.Protocol) -> None:
        wire = await connect_inside(broker.connections)
        await asyncio.get_running_loop().create_unix_connection(lambda: protocol, sock=wire)

    bus = MqttBus([], dialer=dial)
    await bus.open()
    return bus


async def test_the_inner_client_may_do_what_no_rule_allows(tmp_path: Path) -> None:
    rules = tmp_path / "rules.acl"
    rules.write_text("user anne readwrite open/#\n")
    broker = Broker(MemoryLog(), security=Security(allow_anonymous=True, acl_file=str(rules)))
    broker.start()
    server, port = await serve_on(broker)
    one, other = await inside(broker), await inside(broker)
    heard = Heard()
    await one.subscribe("secret/#", heard)
    other.publish("secret/a", b"x")
    await heard.until(1)
    outsider = MqttBus([MqttAddress("127.0.0.1", port)])
    await outsider.open()
    with pytest.raises(NotAllowed):
        await outsider.subscribe("secret/#", Heard())
    for bus in (one, other, outsider):
        await bus.close()
    server.close()
    await broker.stop()


def test_no_client_can_have_the_inner_users_name() -> None:
    with pytest.raises(EverlogError, match=r"U\+0000|null|NUL"):
        encode(Connect(version=5, client_id="c", user_name="\0everlog"), 5)


async def test_the_first_message_below_a_prefix_is_told_once() -> None:
    broker = Broker(MemoryLog())
    broker.start()
    calls: list[int] = []
    broker.connections.rules.call_once(b"everlog/p/", lambda: calls.append(1))
    bus = await inside(broker)
    heard = Heard()
    await bus.subscribe("everlog/#", heard)
    for topic in ("everlog/q", "everlog/p/hello", "everlog/p/other"):
        bus.publish(topic, b"")
    await heard.until(3)
    assert calls == [1]
    await bus.close()
    await broker.stop()
