"""Rules that change while clients are connected hold for them, too."""

from collections.abc import Callable
from pathlib import Path

from tests.conformance.conftest import Stage

from everlog.broker import Security
from everlog.mqtt import Puback, Publish, Reason


def test_rules_read_anew_hold_for_who_is_connected(stages: Callable[..., Stage], tmp_path: Path) -> None:
    rules = tmp_path / "acl"
    rules.write_text("everyone readwrite a/#\neveryone readwrite b/#\n")
    stage = stages(security=Security(acl_file=str(rules)))
    client = stage.connected()
    client.subscribe("a/#", "b/#")
    client.send(Publish("a/1", b"before", qos=1, packet_id=1))
    assert client.answer(Puback).reason is Reason.SUCCESS
    rules.write_text("everyone readwrite b/#\n")
    stage.call(stage.broker.security.reload)
    stage.call(stage.broker.rules_changed)
    client.send(Publish("a/1", b"after", qos=1, packet_id=2))
    assert client.answer(Puback).reason is Reason.NOT_AUTHORIZED
    client.send(Publish("b/1", b"still", qos=1, packet_id=3))
    assert client.answer(Puback).reason is Reason.SUCCESS
    assert list(stage.call(lambda: [*next(iter(stage.broker.clients.connections)).subscriptions])) == ["b/#"]
