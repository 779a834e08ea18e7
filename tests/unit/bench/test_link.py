"""A link over a real socket pair: deliveries in any pieces are checked and acknowledged, messages go out."""

import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from tests.load_kernels import NAMING, TWINS, checker, names_of, packets, sender

from everlog.bench.load.link import CONTROL, GONE
from everlog.mqtt import Pingresp


@pytest.fixture(params=TWINS, ids=names_of)
def wire(request: pytest.FixtureRequest) -> Iterator[SimpleNamespace]:
    """A twin, a link, its peer's socket and the tally."""
    twin: Any = request.param
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        base = twin.base
        table = base.TopicTable()
        table.intern(NAMING.topic(0, 0).encode())
        decoder = base.Decoder(base.MessageColumns(8), table, version=4, from_client=False)
        tally = twin.figures.Tally()
        link = twin.link.Link(ours.fileno(), decoder, bytearray(1000), tally)
        yield SimpleNamespace(twin=twin, link=link, theirs=theirs, tally=tally)


def test_deliveries_cut_anywhere_are_checked_and_acknowledged(wire: SimpleNamespace) -> None:
    wire.link.checker = checker(wire.twin, wire.tally, qos=1)
    data = b"".join(packets(wire.twin, 40, qos=1)) + b"\xd0\x00"
    for start in range(0, len(data), 97):
        wire.theirs.sendall(data[start : start + 97])
        wire.link.serve(True)
    assert (wire.tally.distinct, wire.tally.foreign, wire.tally.duplicates) == (40, 0, 0)
    assert wire.theirs.recv(4096) == b"".join(bytes((0x40, 2, 0, number)) for number in range(1, 41))
    assert [type(packet) for packet in wire.link.control] == [Pingresp]


def test_qos_2_handshake_is_answered(wire: SimpleNamespace) -> None:
    wire.link.checker = checker(wire.twin, wire.tally, qos=2)
    wire.theirs.sendall(packets(wire.twin, 1, qos=2)[0])
    wire.link.serve(True)
    assert wire.theirs.recv(100) == b"\x50\x02\x00\x01"
    wire.theirs.sendall(b"\x62\x02\x00\x01")
    wire.link.serve(True)
    assert wire.theirs.recv(100) == b"\x70\x02\x00\x01"
    assert wire.tally.distinct == 1


def test_window_goes_out_once_open_and_again_when_acked(wire: SimpleNamespace) -> None:
    wire.link.sender = made = sender(wire.twin, wire.tally, qos=1, window=3)
    assert wire.link.write() == 0
    assert wire.tally.sent == 0  # no CONNACK yet
    wire.link.open = True
    assert wire.link.write() == 0
    assert len(wire.theirs.recv(4096)) == 3 * made.packet_bytes
    wire.theirs.sendall(b"\x40\x02\x00\x01\x40\x02\x00\x02")
    assert wire.link.serve(True) == 0
    assert len(wire.theirs.recv(4096)) == 2 * made.packet_bytes


def test_peer_that_reads_slowly_costs_bounded_memory(wire: SimpleNamespace) -> None:
    wire.link.sender = made = sender(wire.twin, wire.tally)
    wire.link.open = True
    data = bytearray()
    while len(data) < 3_000_000:
        wire.link.write()
        data += wire.theirs.recv(50_000)
    assert len(wire.link.out) < 400_000
    assert wire.tally.sent * made.packet_bytes - len(data) < 1_000_000  # the rest is on its way
    numbers = [data[i + 32] for i in range(0, 200 * made.packet_bytes, made.packet_bytes)]
    assert numbers == list(range(200))  # the sequence in the stamp


def test_slow_acker_holds_its_acks_back(wire: SimpleNamespace) -> None:
    wire.link.checker = checker(wire.twin, wire.tally, qos=1)
    wire.link.slow = True
    wire.theirs.sendall(b"".join(packets(wire.twin, 2, qos=1)))
    wire.link.serve(True)
    wire.link.release(4)
    assert wire.theirs.recv(100) == b"\x40\x02\x00\x01"


def test_end_of_the_connection_is_told(wire: SimpleNamespace) -> None:
    wire.theirs.sendall(b"\xd0\x00")
    assert wire.link.serve(True) == CONTROL
    wire.link.control = []
    wire.theirs.close()
    assert wire.link.serve(True) == GONE
