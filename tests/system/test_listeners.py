"""Several listeners of a kind, each with its own terms, and proxies that say for whom they connect."""

import socket
import struct
from pathlib import Path

import pytest
from tests.broker_process import BrokerProcess
from tests.brokers import RunningBroker
from tests.listening import eventually, opened
from tests.raw_client import RawClient

from everlog.app.listener_urls import parse_listener
from everlog.app.settings import Settings
from everlog.base import UsageError
from everlog.bench.load.brokers import free_port
from everlog.broker import Listener, set_password
from everlog.cli import main
from everlog.mqtt import Connect, Reason, encode

V1 = b"PROXY TCP4 203.0.113.7 10.0.0.1 56324 1883\r\n"
V2 = b"\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c" + bytes((203, 0, 113, 7, 10, 0, 0, 1)) + struct.pack(">HH", 56324, 1883)
V2_6 = (
    b"\r\n\r\n\x00\r\nQUIT\n\x21\x21\x00\x28"
    + socket.inet_pton(socket.AF_INET6, "2001:db8::7")
    + bytes(16)
    + struct.pack(">HH", 56324, 1883)
    + bytes(4)  # an extension
)


def test_listeners_of_one_kind_have_their_own_terms(tmp_path: Path) -> None:
    passwords, inner = tmp_path / "passwords", free_port()
    set_password(passwords, "anne", "secret")
    more = f"tcp://127.0.0.1:{inner}?anonymous=true"
    flags = ("--set", f"security.password_file={passwords}", "--set", f"listener.more={more}")
    with BrokerProcess(tmp_path, *flags) as broker:
        with broker.client() as client:
            assert client.connect("a").reason is Reason.NOT_AUTHORIZED
        with broker.client() as client:
            assert client.connect("a", user_name="anne", password=b"secret").reason is Reason.SUCCESS
        with eventual_client(inner) as client:
            assert client.connect("b").reason is Reason.SUCCESS
        with RawClient(inner) as client:
            assert client.connect("b", user_name="anne", password=b"wrong").reason is Reason.BAD_USER_NAME_OR_PASSWORD


def eventual_client(port: int) -> RawClient:
    """A connection to a port that may not be open yet."""

    def listens() -> bool:
        with socket.socket() as trial:
            return trial.connect_ex(("127.0.0.1", port)) == 0

    eventually(listens, "the listener is open")
    return RawClient(port)


def test_a_listener_has_a_mount_point(tmp_path: Path) -> None:
    """Rules name topics as the broker has them, and so does history."""
    inner, rules = free_port(), tmp_path / "acl"
    rules.write_text("everyone readwrite acme/public/#\n")
    more = f"tcp://127.0.0.1:{inner}?mount_point=acme/"
    flags = ("--set", f"listener.more={more}", "--set", f"security.acl_file={rules}")
    with BrokerProcess(tmp_path, *flags) as broker, broker.client() as outside, eventual_client(inner) as client:
        client.connect("a")
        outside.connect("b")
        outside.subscribe("acme/public/t", qos=1)
        assert client.publish("private/t", b"1", qos=1) is Reason.NOT_AUTHORIZED
        assert client.publish("public/t", b"2", qos=1) is Reason.SUCCESS
        assert outside.message().payload == b"2"
        client.subscribe("$replay/-1h/public/#", qos=1)
        message = client.message()
        assert (message.topic, message.payload) == ("public/t", b"2")


@pytest.mark.parametrize(
    ("header", "peer"),
    [
        (V1, "203.0.113.7:56324"),
        (V2, "203.0.113.7:56324"),
        (V2_6, "2001:db8::7:56324"),
        (b"PROXY UNKNOWN\r\n", "127.0.0.1:"),
        (V2[:12] + b"\x20\x00\x00\x00", "127.0.0.1:"),
    ],
)
def test_a_proxy_says_for_whom_it_connects(header: bytes, peer: str) -> None:
    with (
        RunningBroker() as broker,
        opened(broker, Listener("127.0.0.1", 0, is_proxied=True)) as listening,
        RawClient(listening.addresses()[0].port) as client,
    ):
        for byte in header:
            client.send_bytes(bytes((byte,)))
        client.connect("c")
        clients = broker.call(lambda: [one.peer for one in broker.inside.connections])
        assert [one.startswith(peer) for one in clients] == [True]


@pytest.mark.parametrize(
    ("header", "told"),
    [
        (b"", "no PROXY header"),
        (b"PROXY TCP4 x y\r\n", "can't be read"),
        (b"PROXY " + b"x" * 200, "can't be read"),
        (V2[:12] + b"\x31\x11\x00\x0c", "can't be read"),
    ],
)
def test_who_is_no_proxy_is_refused(header: bytes, told: str, caplog: pytest.LogCaptureFixture) -> None:
    with RunningBroker() as broker, opened(broker, Listener("127.0.0.1", 0, is_proxied=True)) as listening:
        with RawClient(listening.addresses()[0].port) as client:
            client.send_bytes(header + encode(Connect(5, "c" * 30), 5))
            client.expect_closed()
        eventually(lambda: broker.broker.metrics.protocol_errors == 1, "counted")
        eventually(lambda: broker.call(lambda: not broker.inside.pending), "forgotten")
    assert told in caplog.text


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("1884", "needs tcp, tls, ws or wss"),
        ("tcp://127.0.0.1", "needs tcp, tls, ws or wss"),
        ("tcp://127.0.0.1:99999", "Port out of range"),
        ("tcp://127.0.0.1:1?mount=x/", "no option"),
        ("tcp://127.0.0.1:1?proxy=yes", "no option"),
        ("tcp://127.0.0.1:1?mount_point=x", "no topics"),
        ("tcp://127.0.0.1:1?mount_point=/", "no topics"),
        ("tcp://127.0.0.1:1?mount_point=$SYS/", "no topics"),
        ("tcp://127.0.0.1:1?mount_point=a/%2B/", "no topics"),
    ],
)
def test_a_text_that_is_no_listener_is_refused(text: str, told: str) -> None:
    with pytest.raises(UsageError, match=told) as error:
        parse_listener(text, Settings())
    assert error.value.hint


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("tls://127.0.0.1:1", "needs a certificate"),
        ("tcp://0.0.0.0:1", "without a password"),
        ("nothing", "is no listener"),
    ],
)
def test_a_listener_that_can_not_be_used_keeps_the_broker_from_starting(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, told: str
) -> None:
    assert main(["serve", "--data", str(tmp_path), "--set", f"listener.more={text}"]) == 2
    assert told in capsys.readouterr().err
