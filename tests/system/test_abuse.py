"""Abuse of a real broker: memory stays within what docs/reference/limits.md states, others are served, all is counted.

Each test holds its abuse up while a probe goes on with its round trips, which only have to be done, not in any time.
"""

import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from random import Random

import pytest
from tests.certificates import Authority, needs_openssl
from tests.raw_client import RawClient
from tests.system.serving import PATIENCE_S, Probe, Served

from everlog.bench.load.brokers import free_port
from everlog.mqtt import Connect, Pingreq, Publish, Subscribe, Subscription, encode

MIB = 1 << 20
CONNECTION = 16 << 10  # docs/reference/limits.md: of one connection that has said little
WORKING = 24 * MIB  # and of what is under way in one moment


@contextmanager
def abused(tmp_path: Path, *arguments: str, **settings: object) -> Iterator[tuple[Served, Probe]]:
    """A broker with a probe that is under way; what it holds is in memory alone, unless the settings say otherwise."""
    settings = {"keep__filters": "[]", **settings}
    with Served(tmp_path / "data", *arguments, **settings) as served, Probe(served.port) as probe:
        probe.goes_on()
        served.metrics()  # so that what the first look takes is not counted as the abuse's
        yield served, probe


def connected(port: int, receive_buffer: int = 0) -> socket.socket:
    one = socket.socket()
    one.settimeout(PATIENCE_S)
    if receive_buffer:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    one.connect(("127.0.0.1", port))
    return one


def reset(one: socket.socket) -> None:
    """End the connection without a word."""
    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    one.close()


@contextmanager
def many(count: int, port: int, receive_buffer: int = 0) -> Iterator[list[socket.socket]]:
    """So many connections at once."""
    with ExitStack() as stack:
        yield [stack.enter_context(connected(port, receive_buffer)) for _ in range(count)]


def push(one: socket.socket, data: bytes) -> None:
    """Send as much as the broker takes before it hangs up."""
    with suppress(ConnectionError):
        one.sendall(data)


def until_closed(one: socket.socket) -> bytes:
    """What the broker says before it hangs up."""
    said = b""
    with suppress(ConnectionError):
        while data := one.recv(65536):
            said += data
    return said


def test_clients_that_connect_and_vanish(tmp_path):
    rounds, count = 5, 1000
    with abused(tmp_path, limits__connects_per_second="100000/s") as (served, probe):
        with served.growing_at_most(count * CONNECTION + WORKING):
            for turn in range(rounds):
                with many(count, served.port) as clients:
                    for number, one in enumerate(clients):
                        hello = encode(Connect(5, f"c{number}"), 5)
                        one.sendall(hello + encode(Subscribe(1, (Subscription(f"a/{number}"),)), 5))
                    for one in clients if turn else ():  # in the first round they do not even wait for the CONNACK
                        assert one.recv(2)[0] == 0x20
                    for one in clients:
                        reset(one)
            found = served.until("vanished_total", (rounds - 1) * count)
            served.until("disconnects_total", rounds * count)
            probe.goes_on()
        assert found["connects_total"] >= (rounds - 1) * count
        served.down_to("connections", 1)
        served.down_to("sessions", 1)


def test_connections_that_never_say_anything(tmp_path):
    count = 1000
    with abused(tmp_path, limits__connect_timeout_s="2s") as (served, probe):
        with served.growing_at_most(count * CONNECTION + WORKING), many(count, served.port) as silent:
            served.until("connections_pending", count / 2)
            probe.goes_on()
            served.until("connect_timeouts_total", count)
            assert all(until_closed(one) == b"" for one in silent)
            probe.goes_on()
        served.down_to("connections_pending", 0)


def test_senders_of_a_byte_at_a_time(tmp_path):
    count = 200
    with abused(tmp_path) as (served, probe):
        hello = encode(Connect(5, "", keep_alive=1), 5)
        never_whole = encode(Publish("a", b"x" * 100_000), 5)
        with served.growing_at_most(count * CONNECTION + WORKING), many(count, served.port) as slow:
            for byte in hello:
                for one in slow:
                    one.sendall(bytes((byte,)))
            assert all(one.recv(2)[0] == 0x20 for one in slow)  # slow is allowed, for a while
            at, deadline = 0, time.monotonic() + PATIENCE_S
            while served.metrics()["keep_alive_timeouts_total"] < count:
                assert time.monotonic() < deadline
                for one in slow:
                    push(one, never_whole[at : at + 1])
                at += 1
            probe.goes_on()
        served.until("disconnects_total", count)


def test_packets_that_never_end(tmp_path):
    count = 100
    with abused(tmp_path, limits__unfinished_bytes="16MiB") as (served, probe):
        beginning = b"\x30\xff\xff\x3e" + bytes(MIB - 20_000)  # of a PUBLISH of 1 MiB
        with served.growing_at_most(16 * MIB + count * CONNECTION + WORKING), many(count, served.port) as clients:
            for one in clients:
                one.sendall(encode(Connect(4, ""), 4))
                assert one.recv(4) == b"\x20\x02\x00\x00"
                push(one, beginning)
            probe.goes_on()
            served.until("unfinished_total", count - 16)


@pytest.mark.parametrize("qos", [0, 1])
def test_subscribers_that_never_read(tmp_path, qos):
    count = 10
    each = 256 * 1024 + 4 * MIB  # limits.output_bytes and limits.queue_bytes
    few = {"limits__spill_bytes": "8MiB", "keep__filters": "[]"}
    with abused(tmp_path, **few) as (served, probe), many(count, served.port, 4096) as deaf:
        for number, one in enumerate(deaf):
            one.sendall(encode(Connect(4, f"deaf{number}"), 4) + encode(Subscribe(1, (Subscription("a", qos),)), 4))
            one.recv(9)
        with served.growing_at_most(count * each + WORKING), RawClient(served.port, 4) as publisher:
            publisher.connect("p")
            wanted, metric = (1, "messages_dropped_total") if qos == 0 else (count, "over_quota_total")
            deadline = time.monotonic() + PATIENCE_S
            while served.metrics()[metric] < wanted:
                assert time.monotonic() < deadline
                for _ in range(50):
                    publisher.send(
                        *(Publish("a", bytes(10_000), qos, packet_id=k + 1 if qos else 0) for k in range(20))
                    )
                    publisher.send(Pingreq())
                    while publisher.receive().type.name != "PINGRESP":
                        pass
            probe.goes_on()


def test_garbage(tmp_path):
    random = Random(4)
    garbage = random.randbytes(10 * MIB)
    hellos = [
        b"",
        encode(Connect(4, "g"), 4),
        encode(Connect(5, "g"), 5),
        encode(Connect(5, "g"), 5) + b"\x30\x7f\x00\x01a",
    ]
    with abused(tmp_path) as (served, probe):
        before = served.metrics()["protocol_errors_total"]
        with served.growing_at_most(MIB + WORKING):
            for hello in hellos * 3:
                with connected(served.port) as one:
                    push(one, hello + garbage)
                    until_closed(one)
            probe.goes_on()
        served.until("protocol_errors_total", before + len(hellos) * 3 - 3)


def flood(port: int, first: int, count: int, size: int) -> bool:
    """PUBLISHes to distinct topics; whether the broker took them all."""
    with connected(port) as one:
        push(one, encode(Connect(4, "flood"), 4))
        assert one.recv(4) == b"\x20\x02\x00\x00"
        for at in range(first, first + count, 5000):
            names = (f"{number:08}".ljust(size, "x") for number in range(at, at + 5000))
            push(one, b"".join(encode(Publish(name, b""), 4) for name in names))
        push(one, encode(Pingreq(), 4))
        return until_closed_or(one, b"\xd0\x00")


def until_closed_or(one: socket.socket, wanted: bytes) -> bool:
    """Whether these bytes come before the end."""
    with suppress(ConnectionError):
        return one.recv(len(wanted)) == wanted
    return False


@pytest.mark.parametrize("kept", ["[]", '["#"]'])
def test_a_million_topics_from_one_client(tmp_path, kept):
    each = 200_000  # limits.topics_per_client
    with abused(tmp_path, keep__filters=kept) as (served, probe), RawClient(served.port) as watcher:
        watcher.connect("w")
        watcher.subscribe("none/of/them")
        with served.growing_at_most(1_000_000 * 450 + WORKING):
            assert not flood(served.port, 0, each + 5000, 16)
            assert served.until("protocol_errors_total", 1)["protocol_errors_total"] == 1
            for turn in range(1, 6):
                assert flood(served.port, turn * 250_000, each, 16)
                probe.goes_on()
        found = served.metrics()
        assert found["messages_received_total"] >= 1_000_000
        assert found["table_resets_total"] == 1  # limits.topics
        assert found["topics"] <= 1_000_000


def test_long_topics_from_one_client(tmp_path):
    with abused(tmp_path) as (served, probe), RawClient(served.port) as watcher:
        watcher.connect("w")
        watcher.subscribe("none/of/them")
        with served.growing_at_most(8 * 64 * MIB + WORKING):
            assert flood(served.port, 0, 100_000, 1000)
            probe.goes_on()
        assert served.metrics()["table_resets_total"] == 1  # limits.topics_bytes


def test_a_publisher_that_never_reads_its_answers(tmp_path):
    with abused(tmp_path) as (served, probe), connected(served.port, 4096) as one:
        one.sendall(encode(Connect(4, "p"), 4))
        one.recv(4)
        with served.growing_at_most(WORKING):
            message = encode(Publish("a", b"", 1, packet_id=1), 4)
            sender = threading.Thread(target=push, args=(one, message * 5_000_000))
            sender.start()
            served.until("unread_answers_total", 1)
            probe.goes_on()
        one.shutdown(socket.SHUT_RDWR)
        sender.join()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("ca")).issue("localhost")


@needs_openssl
def test_tls_handshakes_that_never_end(tmp_path, certificate):
    count, tls_port = 300, free_port()
    arguments = ("--tls-port", str(tls_port), "--cert-file", certificate.cert, "--key-file", certificate.key)
    limits = {"limits__connections": count + 1, "limits__connect_timeout_s": "3s"}
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with abused(tmp_path, *arguments, **limits) as (served, probe):
        with served.growing_at_most(count * 4 * CONNECTION + WORKING), many(count, tls_port) as unfinished:
            hello = client_hello()
            for one in unfinished:
                push(one, hello[:40])
            served.until("connections_pending", count)
            with connected(tls_port) as one, connected(served.port) as other:  # no room for any, TLS or not
                push(other, encode(Connect(4, ""), 4))
                assert until_closed(other) == b"\x20\x02\x00\x03"
                with connected(tls_port) as raw, context.wrap_socket(raw) as third:
                    third.sendall(encode(Connect(4, ""), 4))
                    assert third.recv(4) == b"\x20\x02\x00\x03"
                assert until_closed(one) == b""
            assert served.until("connects_limited_total", 3)["connects_limited_total"] == 3
            probe.goes_on()
            served.until("connect_timeouts_total", count)
            assert all(until_closed(one) == b"" for one in unfinished)
        for _ in range(50):  # each is answered, however its bytes and the handshake's beginning meet
            with connected(tls_port) as one:
                push(one, b"GET / HTTP/1.1\r\n\r\n")
                until_closed(one)
        assert served.until("tls_failures_total", 50)["tls_failures_total"] == 50
        for _ in range(50):
            with connected(tls_port) as raw, context.wrap_socket(raw) as one:
                one.sendall(encode(Connect(4, ""), 4))
                assert one.recv(4) == b"\x20\x02\x00\x00"


def client_hello() -> bytes:
    """The first bytes of a TLS client."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context()
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
    return outgoing.read()


def test_websocket_upgrades_that_never_end(tmp_path):
    count, port = 300, free_port()
    head = b"GET /mqtt HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n" + b"X-Slow: 1\r\n" * 500
    with abused(tmp_path, "--websocket-port", str(port), limits__connect_timeout_s="2s") as (served, probe):
        with served.growing_at_most(count * 2 * CONNECTION + WORKING), many(count, port) as slow:
            at, deadline = 0, time.monotonic() + PATIENCE_S
            while served.metrics()["connect_timeouts_total"] < count:
                assert time.monotonic() < deadline
                for one in slow:
                    push(one, head[at : at + 1])
                at += 1
            probe.goes_on()
        served.down_to("connections_pending", 0)
