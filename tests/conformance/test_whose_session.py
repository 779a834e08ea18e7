"""A session is of the user who began it, and when it is resumed it has what the rules allow by then."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.stages import Stage

from everlog.broker import Security, set_password
from everlog.mqtt import Publish, Reason

KEEP: dict[str, Any] = {"clean_start": False, "expiry": 1000}


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    path = tmp_path / "acl"
    path.write_text("user alice readwrite a/#\nuser alice readwrite s/#\nuser bob readwrite #\n")
    return path


@pytest.fixture
def stage(stages: Callable[..., Stage], tmp_path: Path, rules: Path) -> Stage:
    users = tmp_path / "users"
    for name in ("alice", "bob"):
        set_password(users, name, b"secret")
    return stages(security=Security(allow_anonymous=True, password_file=str(users), acl_file=str(rules)))


def by(user: str) -> dict[str, Any]:
    return {"user_name": user, "password": b"secret"}


@pytest.mark.parametrize("version", [4, 5])
def test_another_user_does_not_resume_a_session(stage: Stage, version: int) -> None:
    alice = stage.connected("x", **KEEP, **by("alice"))
    alice.subscribe("a/#")
    for user in (by("bob"), {}):
        refused = stage.client(version).connect("x", clean_start=False, **user)
        assert refused.reason.is_error
    bob = stage.connected("bob", **by("bob"))
    bob.send(Publish("a/1", b"for alice", qos=1, packet_id=1))
    assert alice.message().payload == b"for alice"  # she is still connected
    alice.close()
    stage.offline("x")
    assert stage.client(version).connect("x", clean_start=False, **by("bob")).reason.is_error
    again = stage.client(5)
    assert again.connect("x", **KEEP, **by("alice")).session_present


@pytest.mark.parametrize("version", [4, 5])
def test_another_user_does_not_end_a_durable_session(stage: Stage, version: int) -> None:
    alice = stage.connected("x", **KEEP, **by("alice"))
    alice.subscribe("a/#")
    for _ in range(2):  # while she is connected, and while she is away
        for user in (by("bob"), {}):
            refused = stage.client(version).connect("x", clean_start=True, **user)
            assert refused.reason is Reason.NOT_AUTHORIZED
        alice.close()
        stage.offline("x")
    assert stage.client(5).connect("x", **KEEP, **by("alice")).session_present
    assert not stage.client(5).connect("x", clean_start=True, **by("alice")).reason.is_error


def test_another_user_may_have_a_client_id_that_nothing_is_kept_for(stage: Stage) -> None:
    stage.connected("x", **by("alice"))
    bob = stage.client(5)
    assert not bob.connect("x", **{**KEEP, "clean_start": True}, **by("bob")).session_present
    assert stage.call(lambda: [*stage.inside.sessions["x"].subscriptions]) == []


def test_what_is_not_allowed_any_more_is_given_up_at_the_next_connect(stage: Stage, rules: Path) -> None:
    alice = stage.connected("x", **KEEP, **by("alice"))
    alice.subscribe("a/#", "s/#", "$share/g/a/+")
    alice.close()
    stage.offline("x")
    rules.write_text("user alice readwrite s/#\nuser bob readwrite #\n")
    stage.call(stage.inside.reload)
    bob = stage.connected("bob", **by("bob"))
    for packet_id, topic in enumerate(("a/1", "s/1"), 1):
        bob.send(Publish(topic, b"m", qos=1, packet_id=packet_id))
    alice = stage.client(5)
    assert alice.connect("x", **KEEP, **by("alice")).session_present
    assert alice.message().topic == "s/1"
    bob.send(Publish("a/2", b"m", qos=1, packet_id=3))
    alice.expect_nothing()
    assert stage.call(lambda: [*stage.inside.sessions["x"].subscriptions]) == ["s/#"]


def test_a_session_of_nobody_goes_on_with_who_comes(stage: Stage) -> None:
    nobody = stage.connected("x", **KEEP)
    nobody.close()
    stage.offline("x")
    alice = stage.client(5)
    found = alice.connect("x", **KEEP, **by("alice"))
    assert (found.reason, found.session_present) == (Reason.SUCCESS, True)
