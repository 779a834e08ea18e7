"""The WebSocket listener against a hand-driven socket and against the `websockets` package's client."""

import base64
import os
import socket
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.brokers import RunningBroker
from tests.listening import eventually, opened
from websockets.exceptions import ConnectionClosed
from websockets.frames import Frame, Opcode
from websockets.sync.client import ClientConnection, connect

from everlog.broker import Limits, Listener
from everlog.broker.transport import websocket
from everlog.broker.transport.websocket_frames import (
    Close,
    FrameReader,
    Ping,
    Violation,
    close_frame,
    header,
    unmask,
    unmask_slowly,
)
from everlog.broker.transport.websocket_handshake import MAX_REQUEST_BYTES, answer
from everlog.mqtt import (
    Connack,
    Connect,
    Packet,
    Pingreq,
    Pingresp,
    Publish,
    Reason,
    Suback,
    Subscribe,
    Subscription,
    decode,
    read_fixed_header,
)
from everlog.mqtt import encode as encode_packet

KEY = base64.b64encode(bytes(range(16))).decode()


def request(path: str = "/mqtt", *, without: str = "", **fields: str) -> bytes:
    """A handshake, with some fields other than usual."""
    lines = {
        "Host": "localhost",
        "Upgrade": "websocket",
        "Connection": "keep-alive, Upgrade",
        "Sec-WebSocket-Key": KEY,
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Protocol": "mqtt",
        **{name.replace("_", "-"): value for name, value in fields.items()},
    }
    lines.pop(without, None)
    head = "\r\n".join([f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in lines.items())])
    return head.encode() + b"\r\n\r\n"


def frame(payload: bytes, opcode: Opcode = Opcode.BINARY, fin: bool = True) -> bytes:
    """A client's frame, written by somebody else."""
    return bytes(Frame(opcode, payload, fin).serialize(mask=True))


# Frames


@given(st.binary(max_size=300), st.binary(min_size=4, max_size=4))
def test_unmasking_is_the_same_fast_and_slow(data: bytes, mask: bytes) -> None:
    expected = bytes(byte ^ mask[i % 4] for i, byte in enumerate(data))
    assert unmask_slowly(data, mask) == expected
    assert unmask(data, mask) == expected


@given(
    st.lists(st.tuples(st.booleans(), st.binary(max_size=200)), max_size=12),
    st.lists(st.integers(1, 60), max_size=60),
)
def test_payload_is_the_same_in_any_fragments_and_chunks(parts: list[tuple[bool, bytes]], sizes: list[int]) -> None:
    wire, in_message = b"", False
    for is_last, payload in parts:
        wire += frame(payload, Opcode.CONT if in_message else Opcode.BINARY, is_last)
        wire += frame(b"?", Opcode.PING)  # control frames may come between fragments
        in_message = not is_last
    reader, events = FrameReader(), []
    for size in [*sizes, len(wire) + 1]:
        events += reader.feed(wire[:size])
        wire = wire[size:]
    assert b"".join(one for one in events if isinstance(one, bytes)) == b"".join(payload for _, payload in parts)
    assert [one for one in events if not isinstance(one, bytes)] == [Ping(b"?")] * len(parts)


def test_frames_of_one_read_come_out_as_one_piece() -> None:
    assert FrameReader().feed(frame(b"ab") + frame(b"") + frame(b"cd")) == [b"abcd"]


@pytest.mark.parametrize("size", [0, 125, 126, 65535, 65536, 200_000])
def test_every_length_of_frame(size: int) -> None:
    payload = os.urandom(size)
    assert b"".join(one for one in FrameReader().feed(frame(payload)) if isinstance(one, bytes)) == payload
    assert header(size) + payload == Frame(Opcode.BINARY, payload).serialize(mask=False)


def test_a_huge_frame_is_passed_on_as_it_comes_and_not_gathered() -> None:
    reader = FrameReader()
    assert reader.feed(b"\x82\xff" + (1 << 62).to_bytes(8, "big") + bytes(4)) == []
    assert reader.feed(b"x" * 1000) == [b"x" * 1000]


@pytest.mark.parametrize(
    ("data", "code"),
    [
        pytest.param(b"\x82\x02ab", 1002, id="not masked"),
        pytest.param(b"\xc2\x80" + bytes(4), 1002, id="reserved bit"),
        pytest.param(frame(b"text", Opcode.TEXT), 1003, id="text"),
        pytest.param(b"\x83\x80" + bytes(4), 1002, id="unknown opcode"),
        pytest.param(b"\x8b\x80" + bytes(4), 1002, id="unknown control opcode"),
        pytest.param(b"\x80\x80" + bytes(4), 1002, id="continuation of nothing"),
        pytest.param(frame(b"a", fin=False) + frame(b"b"), 1002, id="new message within a message"),
        pytest.param(b"\x09\x80" + bytes(4), 1002, id="fragmented ping"),
        pytest.param(b"\x89\xfe", 1002, id="long ping"),
        pytest.param(b"\x82\xff" + b"\xff" * 8 + bytes(4), 1002, id="length of 64 bits"),
        pytest.param(frame(b"\x03", Opcode.CLOSE), 1002, id="half a close code"),
        pytest.param(frame((1005).to_bytes(2, "big"), Opcode.CLOSE), 1002, id="close code not for the wire"),
    ],
)
def test_violations_end_the_reading(data: bytes, code: int) -> None:
    reader = FrameReader()
    last = reader.feed(data)[-1]
    assert isinstance(last, Violation)
    assert last.code == code
    assert reader.feed(frame(b"more")) == []


def test_data_before_a_close_comes_out_before_it() -> None:
    assert FrameReader().feed(frame(b"ab") + frame(b"", Opcode.CLOSE)) == [b"ab", Close(1000)]


def test_a_close_frame_has_at_most_125_bytes_of_whole_characters() -> None:
    data = close_frame(1000, "ü" * 100)
    assert data[1] == len(data) - 2 <= 125
    assert data[4:].decode() == "ü" * 61


# Handshake


def test_the_handshake_of_the_specification() -> None:
    found = answer(request(Sec_WebSocket_Key="dGhlIHNhbXBsZSBub25jZQ==") + b"rest", "/mqtt")
    assert found is not None
    assert found.accepted
    assert found.rest == b"rest"
    assert b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" in found.data
    assert b"Sec-WebSocket-Protocol: mqtt\r\n" in found.data  # [MQTT-6.0.0-4]


def test_the_old_subprotocol_is_accepted_and_the_new_one_preferred() -> None:
    old = answer(request(Sec_WebSocket_Protocol="mqttv3.1"), "/mqtt")
    both = answer(request(Sec_WebSocket_Protocol="mqttv3.1, mqtt"), "/mqtt")
    assert old is not None
    assert b"Sec-WebSocket-Protocol: mqttv3.1\r\n" in old.data
    assert both is not None
    assert b"Sec-WebSocket-Protocol: mqtt\r\n" in both.data


@pytest.mark.parametrize(
    ("data", "status", "word"),
    [
        (b"GET /mqtt HTTP/1.1\r\nHost: x\r\n\r\n", 426, b"MQTT client"),
        (b"GET /elsewhere HTTP/1.1\r\nHost: x\r\n\r\n", 404, b"/mqtt"),
        (request().replace(b"GET", b"POST"), 405, b"Allow: GET"),
        (request(Sec_WebSocket_Version="8"), 426, b"Sec-WebSocket-Version: 13"),
        (request(Sec_WebSocket_Key="short"), 400, b"16 bytes"),
        (request(without="Sec-WebSocket-Protocol"), 400, b"subprotocol mqtt"),
        (request(Sec_WebSocket_Protocol="chat"), 400, b"subprotocol mqtt"),
        (b"GET /mqtt\r\n\r\n", 400, b"HTTP/1.1"),
        (b"GET /mqtt HTTP/1.1\r\nnocolon\r\n\r\n", 400, b"malformed"),
        (encode_packet(Connect(4, "plain"), 4), 400, b"WebSocket"),
        (b"\x16\x03\x01\x02\x00", 400, b"WebSocket"),
        (b"G" * MAX_REQUEST_BYTES, 431, str(MAX_REQUEST_BYTES).encode()),
    ],
)
def test_other_requests_are_answered_helpfully(data: bytes, status: int, word: bytes) -> None:
    found = answer(data, "/mqtt")
    assert found is not None
    assert not found.accepted
    assert found.data.startswith(b"HTTP/1.1 %d " % status)
    assert word in found.data


def test_an_incomplete_request_waits() -> None:
    whole = request()
    assert all(answer(whole[:size], "/mqtt") is None for size in range(len(whole)))


@pytest.mark.parametrize(
    ("origin", "origins", "accepted"),
    [
        ("https://dash.example", (), False),
        ("http://broker.example:8080", (), True),  # of the host that it connects to
        ("https://Broker.example:8080", (), True),
        ("http://broker.example:9001", (), False),
        ("http://evil.example/broker.example:8080", (), False),
        ("null", (), False),
        ("", (), False),
        ("https://dash.example", ("https://Dash.example",), True),
        ("https://dash.example", ("https://other.example",), False),
        ("null", ("*",), True),
        (None, (), True),  # no browser
    ],
)
def test_pages_of_the_same_host_and_of_named_origins_may_connect(
    origin: str | None, origins: tuple[str, ...], accepted: bool
) -> None:
    page = request(Host="broker.example:8080", **({} if origin is None else {"Origin": origin}))
    found = answer(page, "/mqtt", origins)
    assert found is not None
    assert found.accepted == accepted
    assert accepted or found.data.startswith(b"HTTP/1.1 403 ")


def test_a_page_without_a_host_to_compare_with_may_not_connect() -> None:
    found = answer(request(Origin="://", Host=""), "/mqtt")
    assert found is not None
    assert not found.accepted


# On a running broker


@pytest.fixture
def running() -> Iterator[RunningBroker]:
    with RunningBroker() as broker, opened(broker, Listener("127.0.0.1", 0, "ws")) as listening:
        broker.port = listening.addresses()[0].port
        yield broker


def client(running: RunningBroker) -> ClientConnection:
    return connect(f"ws://127.0.0.1:{running.port}/mqtt", subprotocols=["mqtt"], compression=None, max_size=None)  # type: ignore[list-item]


def decode_packet(data: bytes, version: int) -> Packet:
    found = read_fixed_header(data, version)
    assert found is not None
    return decode(data[0], data[found[2] :], version, from_client=False)


def receive(peer: ClientConnection) -> bytes:
    data = peer.recv(timeout=20)
    assert isinstance(data, bytes)  # [MQTT-6.0.0-1]
    return data


def open_session(peer: ClientConnection, client_id: str = "c") -> None:
    peer.send(encode_packet(Connect(4, client_id), 4))
    assert isinstance(decode_packet(receive(peer), 4), Connack)


def test_packets_may_span_frames_and_share_them(running: RunningBroker) -> None:
    with client(running) as peer:
        assert peer.subprotocol == "mqtt"
        for byte in encode_packet(Connect(4, "c"), 4):
            peer.send(bytes((byte,)))
        assert isinstance(decode_packet(receive(peer), 4), Connack)
        ping = encode_packet(Pingreq(), 4)
        peer.send(ping + ping[:1])  # [MQTT-6.0.0-2]
        peer.send(ping[1:])
        got = receive(peer)
        while len(got) < 4:
            got += receive(peer)
        assert got == 2 * encode_packet(Pingresp(), 4)


def test_a_large_message_comes_back_whole(running: RunningBroker) -> None:
    payload = os.urandom(300_000)
    with client(running) as peer:
        open_session(peer)
        peer.send(encode_packet(Subscribe(1, (Subscription("t", 0),)), 4))
        assert isinstance(decode_packet(receive(peer), 4), Suback)
        whole = encode_packet(Publish("t", payload), 4)
        peer.send([whole[:70_000], whole[70_000:]])  # two fragments of one message
        packet = decode_packet(receive(peer), 4)
        assert isinstance(packet, Publish)
        assert packet.payload == payload


def test_a_websocket_ping_is_answered(running: RunningBroker) -> None:
    with client(running) as peer:
        assert peer.ping(b"there?").wait(20)


def test_the_client_closes_in_order(running: RunningBroker) -> None:
    peer = client(running)
    open_session(peer)
    peer.close(1000)
    assert peer.protocol.close_rcvd is not None
    assert peer.protocol.close_rcvd.code == 1000
    eventually(lambda: not running.inside.connections, "the session has no connection")


def test_the_broker_closes_in_order(running: RunningBroker) -> None:
    with client(running) as peer:
        open_session(peer)
        running.call(lambda: running.inside.close("c", Reason.ADMINISTRATIVE_ACTION, "sent home"))
        with pytest.raises(ConnectionClosed):
            peer.recv(timeout=20)
        assert peer.protocol.close_rcvd is not None
        assert (peer.protocol.close_rcvd.code, peer.protocol.close_rcvd.reason) == (1000, "sent home")
    eventually(lambda: not running.inside.connections, "the connection is gone")


def test_a_text_frame_ends_the_connection(running: RunningBroker) -> None:
    with client(running) as peer:
        open_session(peer)
        peer.send("text")
        with pytest.raises(ConnectionClosed):
            peer.recv(timeout=20)
        assert peer.protocol.close_rcvd is not None
        assert peer.protocol.close_rcvd.code == 1003
    assert running.broker.metrics.protocol_errors == 1


def test_a_peer_that_does_not_answer_the_close_is_cut_off(
    running: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websocket, "CLOSE_WAIT_S", 0.01)
    with socket.create_connection(("127.0.0.1", running.port), 20) as peer:
        peer.sendall(request() + frame(encode_packet(Connect(4, "c"), 4)))
        eventually(lambda: running.inside.connections, "the client is connected")
        running.call(lambda: running.inside.close("c", Reason.ADMINISTRATIVE_ACTION, "sent home"))
        eventually(lambda: not running.inside.connections, "the connection is gone")


def test_bytes_behind_the_handshake_are_taken(running: RunningBroker) -> None:
    with socket.create_connection(("127.0.0.1", running.port), 20) as peer:
        peer.sendall(request() + frame(encode_packet(Connect(4, "c"), 4)))
        got = b""
        while b"\r\n\r\n" not in got or len(got.partition(b"\r\n\r\n")[2]) < 6:
            got += peer.recv(4096)
        assert got.partition(b"\r\n\r\n")[2] == b"\x82\x04\x20\x02\x00\x00"


def test_a_browser_is_told_what_this_is(running: RunningBroker) -> None:
    assert talk(running.port, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").startswith(b"HTTP/1.1 426 ")


def test_a_refused_connection_gets_an_http_answer() -> None:
    with (
        RunningBroker(limits=Limits(connections=1)) as broker,
        opened(broker, Listener("127.0.0.1", 0, "ws")) as listening,
    ):
        broker.port = listening.addresses()[0].port
        with client(broker) as peer:
            open_session(peer)
            assert talk(broker.port, b"").startswith(b"HTTP/1.1 503 ")


def test_an_unfinished_handshake_times_out() -> None:
    with (
        RunningBroker(limits=Limits(connect_timeout_s=0.01)) as broker,
        opened(broker, Listener("127.0.0.1", 0, "ws")) as listening,
    ):
        assert talk(listening.addresses()[0].port, b"GET /mq").startswith(b"HTTP/1.1 503 ")
        assert broker.broker.metrics.connect_timeouts == 1


@pytest.mark.parametrize("path", ["/mqtt", "/mqtt/", "/", "/?token=1"])
def test_paths_that_clients_use_are_taken(path: str) -> None:
    found = answer(request(path), "/mqtt")
    assert found is not None
    assert found.accepted


def test_a_refused_path_is_told_to_the_operator(caplog: pytest.LogCaptureFixture) -> None:
    with RunningBroker() as broker, opened(broker, Listener("127.0.0.1", 0, "ws")) as listening:
        assert talk(listening.addresses()[0].port, request("/ws")).startswith(b"HTTP/1.1 404 ")
    (record,) = [record for record in caplog.records if "websocket_refused" in record.getMessage()]
    assert record.levelname == "WARNING"
    assert "MQTT over WebSocket is at /mqtt" in record.getMessage()


def test_the_path_is_a_setting() -> None:
    with RunningBroker() as broker, opened(broker, Listener("127.0.0.1", 0, "ws", path="/ws")) as listening:
        (address,) = listening.addresses()
        assert str(address) == f"ws://127.0.0.1:{address.port}/ws"
        assert talk(address.port, request("/ws?x=1"), 12) == b"HTTP/1.1 101"


def talk(port: int, data: bytes, enough: int = 1 << 20) -> bytes:
    """Send, and read until the end or until there is enough."""
    got = b""
    with socket.create_connection(("127.0.0.1", port), 20) as peer:
        if data:
            peer.sendall(data)
        while len(got) < enough and (more := peer.recv(min(4096, enough - len(got)))):
            got += more
    return got
