"""The connections of the load generator for buses, on both twins: a socket pair is the server."""

import socket
from array import array
from collections.abc import Iterator
from typing import Any

import pytest
from tests.twins import TWINS, Twin

from everlog.bench.persist.questions import EverlogQuestions
from everlog.bench.persist.wires import Request, Wire
from everlog.bus import decode_frame
from everlog.mqtt import Publish, encode
from everlog.streams import Level

twins = pytest.mark.parametrize("twin", TWINS, ids=repr)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    mine, server = socket.socketpair()
    mine.setblocking(False)
    with mine, server:
        yield mine, server


def linked(twin: Twin, mine: socket.socket, is_mqtt: bool, budget: Any = None) -> Any:
    return twin.BusLink(mine.fileno(), is_mqtt, bytearray(4096), budget or twin.Budget(), twin.Histogram())


@twins
@pytest.mark.parametrize("scheme", ["nats", "mqtt"])
def test_requests_leave_as_the_window_allows_each_with_its_id(twin: Twin, scheme: str, pair: Any) -> None:
    request = EverlogQuestions().append(0, 3, Level.FSYNC, True).requests[0]
    data, *holes = Wire(f"{scheme}://127.0.0.1:1").render(request, "_INBOX/x/r")
    mine, server = pair
    link = linked(twin, mine, scheme == "mqtt")
    link.ask([data], bytearray(array("Q", holes)), b"good", 2, 40)
    assert link.write() == 0
    sent = server.recv(4096)
    assert len(sent) == 2 * len(data)
    assert link.in_flight == 2
    for number in (0, 1):
        payload = sent[number * len(data) + holes[0] - 8 :][: len(request.payload)]
        assert decode_frame(payload).id == 41 + number
        assert b"%016x" % (41 + number) in payload
    answers = [b"not so", b"very good"]
    if scheme == "nats":
        server.sendall(b"PING\r\n" + b"".join(b"MSG a 1 %d\r\n%b\r\n" % (len(one), one) for one in answers) + b"MSG a")
    else:
        server.sendall(b"".join(encode(Publish("a", one), 5) for one in answers) + b"\x30")
    link.stop()
    assert link.serve() == 0
    assert (link.done, link.refused, link.in_flight) == (1, 1, 0)
    if scheme == "nats":
        assert server.recv(100) == b"PONG\r\n"


@twins
def test_no_more_is_sent_than_the_budget_allows_and_deliveries_are_counted(twin: Twin, pair: Any) -> None:
    budget = twin.Budget(1)
    mine, server = pair
    link = linked(twin, mine, False, budget)
    data, *holes = Wire("nats://127.0.0.1:1").render(Request("a", b"x"), "r")
    link.ask([data], bytearray(array("Q", holes)), b"", 5, 0)
    link.write()
    assert server.recv(100) == data == b"PUB a r 1\r\nx\r\n"
    assert budget.left == 0
    server.sendall(b"MSG a 1 0\r\n\r\nMSG a 1 2\r\nhi\r\nMSG a 1 2\r\nhi\r\n")
    link.serve()
    assert (link.done, link.received) == (1, 2)
    link.count_events = True
    server.sendall(b"MSG f 2 20\r\n" + bytes(16) + b"\x93\1\1\1\r\n")
    link.serve()
    assert link.received == 5
    server.close()
    assert link.serve() == 1


@twins
def test_what_was_lost_is_asked_again(twin: Twin, pair: Any) -> None:
    mine, server = pair
    link = linked(twin, mine, False)
    link.ask([b"ask\r\n"], bytearray(16), b"good", 1, 0)
    assert link.write() == 0
    assert server.recv(100) == b"ask\r\n"
    assert link.write() == 0
    link.ask_again()
    assert link.write() == 0
    assert server.recv(100) == b"ask\r\n"
    server.sendall(b"MSG a 1 4\r\ngood\r\nMSG a 1 4\r\ngood\r\n")  # the first was late, not lost
    link.stop()
    assert link.serve() == 0
    assert (link.done, link.received, link.in_flight) == (1, 1, 0)
