"""Nobody holds up the others: what an innocent client waits for while others send the worst that is allowed.

Each test does one of the rows of the table in docs/reference/limits.md ("What others wait for") to a broker process
and prints its figure. Broker and clients use the limits that are coming: 128 levels.
"""

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator

import pytest
from tests.raw_client import RawClient
from tests.system.innocent import innocent
from tests.system.serving import Served

from everlog.bench.load.brokers import free_port
from everlog.broker import set_password
from everlog.mqtt import (
    Connack,
    Connect,
    Pingreq,
    Properties,
    Publish,
    Suback,
    Subscribe,
    Subscription,
    Unsubscribe,
    Will,
    encode,
)

pytestmark = pytest.mark.slow
MIB = 1 << 20
WORST_MS = 40.0  # a turn may take 5, a PINGREQ waits for two of them, the rest is the machine's
PATIENCE_S = 60.0


@contextlib.contextmanager
def stalled(served: Served, what: str) -> Iterator[None]:
    """What happens in here must not hold up another client."""
    with innocent(served.port, served.pid) as trips:
        began = served.cpu_s()
        yield
        took_s = served.cpu_s() - began
    print(f"\n{what}: {trips.worst_ms:.1f} ms at most of {1000 * took_s:.0f} ms, {trips.count} round trips")
    assert trips.count > 0
    assert trips.worst_ms <= WORST_MS


@contextlib.contextmanager
def serving(tmp_path, *arguments: str, **settings: object) -> Iterator[Served]:
    with Served(tmp_path / "data", *arguments, **settings) as served:
        yield served


def patient(port: int, version: int = 5) -> RawClient:
    return RawClient(port, version, deadline_s=PATIENCE_S)


@contextlib.contextmanager
def sending(client: RawClient, data: bytes) -> Iterator[None]:
    """Send this while the answers are read."""
    sender = threading.Thread(target=client.send_bytes, args=(data,))
    sender.start()
    yield
    sender.join()


def of_size(kind: int, body: bytes) -> bytes:
    """A packet with this first byte."""
    size, rest = bytearray(), len(body)
    while True:
        size.append(rest & 0x7F | (0x80 if rest > 0x7F else 0))
        rest >>= 7
        if not rest:
            return bytes((kind, *size)) + body


def through(client: RawClient) -> None:
    """Wait until the broker has taken all that a client has sent."""
    client.send(Pingreq())
    until_pong(client)


def until_pong(client: RawClient) -> None:
    while client.receive().type.name != "PINGRESP":
        pass


@pytest.mark.parametrize(
    "begin", [lambda k: f"0:{5000 - k}", lambda k: f"-{3600 + k}s"], ids=["falling positions", "times"]
)
def test_five_thousand_replays_in_one_subscribe(tmp_path, begin):
    with serving(tmp_path, keep__filters='["#"]') as served, patient(served.port) as client:
        client.connect("replays")
        for number in range(20):
            client.publish(f"r/{number}", b"x", 1)
        asked = tuple(Subscription(f"$replay/{begin(k)}/r/{k}", 1) for k in range(5000))
        with stalled(served, f"5,000 replays from {begin(0)} on"):
            client.send(Subscribe(1, asked))
            reasons = client.answer(Suback).reasons
            through(client)
        assert len(reasons) == 5000
        assert set(reasons) <= {1}


@pytest.mark.parametrize("first", [0x62, 0x50], ids=["PUBREL", "PUBREC"])
@pytest.mark.parametrize("tail", [b"", b"\x10"], ids=["", "with a reason"])
def test_acks_for_unknown_ids(tmp_path, first, tail):
    if tail and first == 0x62:
        tail = b"\x92"
    what = f"of {'PUBREL' if first == 0x62 else 'PUBREC'} for unknown ids"
    size = 2 * MIB if not tail else MIB // 4
    count = size // (4 + len(tail))
    acks = b"".join(bytes((first, 2 + len(tail))) + struct.pack(">H", k % 65_535 + 1) + tail for k in range(count))
    with serving(tmp_path) as served, patient(served.port) as client:
        client.connect("acks")
        with (
            stalled(served, f"{size >> 10} KiB {what}{', each with a reason' if tail else ''}"),
            sending(client, acks + encode(Pingreq(), 5)),
        ):
            received, end = 0, b""
            while received < 5 * count or end != b"\xd0\x00":  # each answer has a reason
                data = client.socket.recv(1 << 20)
                received, end = received + len(data), (end + data)[-2:]


def test_one_filter_named_260000_times(tmp_path):
    count = 260_000
    with serving(tmp_path) as served, patient(served.port) as client:
        client.connect("again")
        with stalled(served, "one filter 260,000 times"):
            client.send_bytes(of_size(0x82, b"\x00\x01\x00" + b"\x00\x01a\x00" * count))
            assert len(client.answer(Suback).reasons) == count
        with stalled(served, "one filter given up 340,000 times"):
            client.send_bytes(of_size(0xA2, b"\x00\x02\x00" + b"\x00\x01a" * 340_000))
            through(client)


def test_ten_thousand_filters_in_one_subscribe(tmp_path):
    with serving(tmp_path) as served, patient(served.port) as client:
        client.connect("many", expiry=60)
        filters = tuple(f"a/{k}/+/b" for k in range(10_000))
        with stalled(served, "10,000 filters in one SUBSCRIBE"):
            client.send(Subscribe(1, tuple(Subscription(one) for one in filters)))
            assert len(client.answer(Suback).reasons) == 10_000
        with patient(served.port) as again:
            with stalled(served, "a durable session of 10,000 filters is taken over"):
                again.connect("many", False, expiry=60)
                through(again)
            with stalled(served, "10,000 filters in one UNSUBSCRIBE"):
                again.send(Unsubscribe(1, filters))
                through(again)


def test_new_topics_against_many_filters(tmp_path):
    filters = ["/".join("+" if k >> level & 1 else "a" for level in range(13)) for k in range(8192)]
    with serving(tmp_path) as served, patient(served.port) as client, patient(served.port) as publisher:
        client.connect("filters")
        client.send(Subscribe(1, tuple(Subscription(one) for one in filters)))
        assert len(client.answer(Suback).reasons) == 8192
        publisher.connect("topics")
        with stalled(served, "400 new topics against 8,192 filters"):
            for turn in range(2):
                names = ("/".join(["a"] * 12 + [f"{turn}-{k}"]) for k in range(200))
                publisher.send(*(Publish(name, b"") for name in names))
            through(publisher)


def test_clients_with_many_filters_leave(tmp_path):
    filters = tuple(Subscription(f"a/{k}/+/b") for k in range(10_000))
    with serving(tmp_path) as served, contextlib.ExitStack() as clients:
        for number in range(4):
            client = clients.enter_context(patient(served.port))
            client.connect(f"leaver{number}")
            client.send(Subscribe(1, filters))
            assert len(client.answer(Suback).reasons) == 10_000
        with stalled(served, "4 clients with 10,000 filters each leave"):
            clients.close()
            served.down_to("subscriptions_live", 0)


def test_thousands_of_clients_leave_at_once(tmp_path):
    count = 3000
    with serving(tmp_path, limits__connects_per_second=100_000) as served:
        sockets = []
        for number in range(count):
            one = socket.create_connection(("127.0.0.1", served.port))
            one.sendall(encode(Connect(4, f"c{number}"), 4) + encode(Subscribe(1, (Subscription(f"c/{number}"),)), 4))
            sockets.append(one)
        for one in sockets:
            one.recv(9)
        served.until("connections", count)
        with stalled(served, f"{count} clients leave at once"):
            for one in sockets:
                one.close()
            served.down_to("connections", 1)


def masked(opcode: int, payload: bytes = b"") -> bytes:
    return bytes((0x80 | opcode, 0x80 | len(payload))) + bytes(4) + payload


@pytest.mark.parametrize(("opcode", "what"), [(9, "pings"), (10, "pongs"), (2, "empty frames")])
def test_websocket_frames(tmp_path, opcode, what):
    port = free_port()
    with serving(tmp_path, "--websocket-port", str(port)) as served, patient(port) as client:
        client.send_bytes(
            b"GET /mqtt HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: mqtt\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        assert client.socket.recv(4096).startswith(b"HTTP/1.1 101")
        client.send_bytes(masked(2, encode(Connect(4, "ws"), 4)))
        assert client.socket.recv(4096)
        with stalled(served, f"1 MiB of WebSocket {what}"):
            frames, data = masked(opcode) * (MIB // 6) + masked(2, encode(Pingreq(), 4)), b""
            with sending(client, frames):
                while not data.endswith(b"\x82\x02\xd0\x00"):
                    data = data[-4:] + client.socket.recv(1 << 16)


@pytest.mark.parametrize("of_will", [False, True], ids=["user properties", "will properties"])
@pytest.mark.parametrize("refused", [False, True], ids=["", "refused"])
def test_a_connect_with_a_mebibyte_of_properties(tmp_path, of_will, refused):
    pairs = Properties(user_properties=(("", ""),) * 200_000)
    will = Will("will", b"", 0, False, pairs) if of_will else None
    user, password = ("nobody", b"x") if refused else (None, None)
    connect = encode(Connect(5, "big", True, 0, will, user, password, Properties() if of_will else pairs), 5)
    passwords = tmp_path / "passwords"
    set_password(passwords, "somebody", b"secret")
    settings = {"security__password_file": passwords, "security__allow_anonymous": "true"}
    what = f"a CONNECT of 1 MiB of {'will' if of_will else 'user'} properties{', refused' if refused else ''}"
    with serving(tmp_path, **settings) as served, stalled(served, what):
        for _ in range(3):
            with patient(served.port) as client:
                client.send_bytes(connect)
                assert client.expect(Connack).reason.is_error == refused
