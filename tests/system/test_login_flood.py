"""A flood of wrong passwords on a real broker: newcomers from elsewhere get in meanwhile, and memory stays bounded."""

import select
import socket
from pathlib import Path

import pytest
from tests.system.serving import Probe, Served
from tests.system.test_abuse import CONNECTION, MIB, WORKING, connected, reset

from everlog.broker import set_password
from everlog.mqtt import Connect, Reason, encode

ATTEMPTS = 1500
WAITING = 200  # few enough that a slow sender too fills the line
CHECKS = 4 * 19 * MIB  # docs/reference/limits.md: passwords that are checked at a time, and what each takes


@pytest.fixture
def users(tmp_path: Path) -> Path:
    path = tmp_path / "users"
    set_password(path, "ann", b"right")
    return path


def login(port: int, address: str, name: str, password: bytes) -> bytes:
    """The CONNACK that a client at this address gets."""
    with socket.create_connection(("127.0.0.1", port), 60, source_address=(address, 0)) as one:
        one.sendall(encode(Connect(4, "", user_name=name, password=password), 4))
        return one.recv(4)


def wrong(number: int) -> bytes:
    return encode(Connect(5, f"bad-{number}", user_name=f"bad-{number}", password=b"wrong"), 5)


def readable(sockets: list[socket.socket]) -> list[socket.socket]:
    """Those that have something to read."""
    poll, by_number = select.poll(), {one.fileno(): one for one in sockets}
    for number in by_number:
        poll.register(number, select.POLLIN)
    return [by_number[number] for number, _ in poll.poll(0)]


def test_a_newcomer_gets_in_while_wrong_passwords_wait(tmp_path: Path, users: Path) -> None:
    with (
        Served(
            tmp_path / "data",
            security__password_file=users,
            security__allow_anonymous="true",
            limits__logins_waiting=WAITING,
        ) as served,
        Probe(served.port) as probe,
    ):
        probe.goes_on()
        served.metrics()
        with served.growing_at_most(ATTEMPTS * CONNECTION + CHECKS + WORKING):
            flood = [connected(served.port) for _ in range(ATTEMPTS)]
            for number, one in enumerate(flood):
                one.sendall(wrong(number))
            served.until("logins_refused_total", 1)  # as many wait as may
            before = served.metrics()["auth_failures_total"]
            assert login(served.port, "127.0.0.2", "ann", b"right") == b"\x20\x02\x00\x00"
            found = served.metrics()
            assert found["auth_failures_total"] - before < WAITING / 2, "the newcomer waited for the others"
            probe.goes_on()
        refused = [one.recv(200)[3] for one in readable(flood)]
        assert refused.count(Reason.SERVER_BUSY) >= found["logins_refused_total"]
        assert {*refused} <= {Reason.SERVER_BUSY, Reason.BAD_USER_NAME_OR_PASSWORD}
        checked = served.metrics()["auth_failures_total"]
        for one in flood:
            reset(one)
        served.down_to("connections_pending", 0)
        still = served.metrics()["auth_failures_total"] - checked
        assert still < WAITING / 2, "passwords of clients that are gone were checked"
        probe.goes_on()


def test_attempts_that_vanish_are_not_checked(tmp_path: Path, users: Path) -> None:
    with Served(tmp_path / "data", security__password_file=users) as served:
        for number in range(ATTEMPTS):
            one = connected(served.port)
            one.sendall(wrong(number) + b"\xc0\x00")
            reset(one)
        assert login(served.port, "127.0.0.1", "ann", b"right") == b"\x20\x02\x00\x00"
        served.down_to("connections_pending", 0)
        assert served.metrics()["auth_failures_total"] < ATTEMPTS / 10
