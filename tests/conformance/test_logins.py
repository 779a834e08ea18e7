"""Many logins at once: who is gone is not checked, who comes too late is told so, and nobody holds up the others."""

import threading

import pytest

from everlog.broker import Limits, Security, delete_user, set_password
from everlog.mqtt import Connack, Connect, Pingreq, Reason

THREADS = 4  # passwords that are checked at a time


class SlowSecurity(Security):
    """Checks that last until they are let go, and the names that were checked."""

    def __init__(self, **settings):
        super().__init__(allow_anonymous=False, **settings)
        self.let_go = threading.Event()
        self.begun = threading.Semaphore(0)
        self.checked = []

    def verify(self, user, password):
        self.checked.append(user)
        self.begun.release()
        assert self.let_go.wait(20)
        return super().verify(user, password)


@pytest.fixture
def users(tmp_path):
    path = tmp_path / "users"
    set_password(path, "ann", b"right")
    set_password(path, "bob", b"right")
    return path


@pytest.fixture
def busy(stages, users):
    """A broker whose threads all check a password, and how it was made."""

    def make(**limits):
        security = SlowSecurity(password_file=str(users))
        stage = stages(security=security, limits=Limits(**limits))
        for number in range(THREADS):
            send_login(stage.client(), f"busy-{number}")
            assert security.begun.acquire(timeout=20)
        return stage, security

    return make


def send_login(client, name, password=b"wrong", *more):
    client.send(Connect(client.version, "", user_name=name, password=password), *more)


def waiting(stage, count):
    stage.until(lambda: len(stage.broker.connections.gate.logins) == count + THREADS)


@pytest.mark.parametrize("more", [(), (Pingreq(),)], ids=["silent", "with bytes behind"])
@pytest.mark.parametrize("end", ["close", "reset"])
def test_a_client_that_is_gone_before_its_turn_is_not_checked(busy, more, end):
    stage, security = busy()
    for number in range(20):
        client = stage.client()
        send_login(client, f"gone-{number}", b"wrong", *more)
        waiting(stage, number + 1 if more else 1)
        getattr(client, end)()
        if not more:
            waiting(stage, 0)
    security.let_go.set()
    assert stage.connected(user_name="ann", password=b"right")
    stage.until(lambda: not stage.inside.pending and not stage.inside.is_verifying)
    assert sorted(security.checked) == ["ann", *(f"busy-{number}" for number in range(THREADS))]


def test_with_too_many_waiting_the_next_is_told_so_at_once(busy, version):
    stage, security = busy(logins_waiting=3)
    patient = [stage.client(version) for _ in range(3)]
    for number, client in enumerate(patient):
        send_login(client, "ann", b"right")
        waiting(stage, number + 1)
    late = stage.client(version)
    send_login(late, "ann", b"right")
    assert late.expect(Connack).reason is (Reason.SERVER_BUSY if version == 5 else Reason.SERVER_UNAVAILABLE)
    late.expect_closed()
    assert stage.broker.metrics.logins_refused == 1
    security.let_go.set()
    assert [client.expect(Connack).reason for client in patient] == [Reason.SUCCESS] * 3


def test_large_connects_that_wait_are_bounded_in_bytes(busy):
    stage, security = busy(logins_bytes=100_000)
    for number in range(2):
        send_login(stage.client(), f"large-{number}", b"x" * 40_000)
        waiting(stage, number + 1)
    late = stage.client()
    send_login(late, "large-2", b"x" * 40_000)
    assert late.expect(Connack).reason is Reason.SERVER_BUSY
    security.let_go.set()


def test_who_has_waited_too_long_is_told_so(busy):
    stage, security = busy()
    client = stage.client()
    send_login(client, "ann", b"right")
    waiting(stage, 1)
    stage.call(lambda: stage.inside.sweep_pending(11))
    assert client.expect(Connack).reason is Reason.SERVER_BUSY
    client.expect_closed()
    security.let_go.set()
    stage.until(lambda: not stage.inside.is_verifying)
    assert "ann" not in security.checked


def test_names_that_have_logged_in_from_here_have_a_lane_of_their_own(stages, users):
    security = SlowSecurity(password_file=str(users))
    security.let_go.set()
    stage = stages(security=security)
    stage.connected(user_name="ann", password=b"right").close()
    stage.call(stage.inside.reload)  # passwords that were right are not remembered any more
    security.let_go.clear()
    security.checked.clear()
    for number in range(20):
        send_login(stage.client(), f"bad-{number}")
    stage.until(lambda: len(stage.broker.connections.gate.logins) == 20)
    client = stage.client()
    send_login(client, "ann", b"right")
    waiting(stage, 17)
    security.let_go.set()
    assert client.expect(Connack).reason is Reason.SUCCESS
    assert "ann" in security.checked[: THREADS + 1]


def test_a_user_deleted_while_the_password_is_checked_is_not_let_in(busy, users):
    stage, security = busy()
    client = stage.client()
    stage.call(lambda: None)
    send_login(client, "ann", b"right")
    waiting(stage, 1)
    other = stage.client()
    send_login(other, "bob", b"right")
    waiting(stage, 2)
    delete_user(users, "ann")
    stage.call(security.prepare())
    security.let_go.set()
    assert client.expect(Connack).reason is Reason.BAD_USER_NAME_OR_PASSWORD
    assert other.expect(Connack).reason is Reason.SUCCESS


def test_a_check_that_fails_costs_its_client_alone(busy, monkeypatch):
    stage, security = busy()
    client, other = stage.client(), stage.client()
    send_login(client, "ann", b"right")
    waiting(stage, 1)
    send_login(other, "bob", b"right")
    waiting(stage, 2)
    verify = Security.verify

    def fail_for_ann(self, user, password):
        if user == "ann":
            raise MemoryError
        return verify(self, user, password)

    monkeypatch.setattr(Security, "verify", fail_for_ann)
    security.let_go.set()
    assert client.expect(Connack).reason is Reason.SERVER_UNAVAILABLE
    client.expect_closed()
    assert other.expect(Connack).reason is Reason.SUCCESS
