"""Wires and their poller on real sockets: what peers get, what protocols are told, and when."""

import asyncio
import contextlib
import errno
import os
import select
import socket
import struct
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from tests.twins import TWINS, Twin

pytestmark = pytest.mark.skipif(not hasattr(select, "epoll"), reason="there is no poller without epoll")
FOR_EVER_NS = 1 << 60
BIG = bytes(range(256)) * 8192  # 2 MiB: more than a socket takes at once


@pytest.fixture(params=TWINS, ids=repr)
def twin(request: pytest.FixtureRequest) -> Twin:
    found: Twin = request.param
    return found


class Side:
    """A protocol that notes what it is told."""

    def __init__(self, twin: Twin) -> None:
        side = self

        class Reader(twin.Receiver):  # type: ignore[misc, name-defined]
            def receive_from(self, fd: int) -> int:
                return side.read(fd)

        self.reader = Reader()
        self.wire: Any = None
        self.data = b""
        self.events: list[str] = []
        self.errors: list[Any] = []
        self.reads = 0
        self.on_data: Callable[[], None] = lambda: None
        self.on_lost: Callable[[], None] = lambda: None
        self._depth = 0

    def read(self, fd: int) -> int:
        self.reads += 1
        try:
            found = os.read(fd, 65_536)
        except OSError as error:
            return -(error.errno or errno.EIO)
        if found:
            self._depth += 1
            self.data += found
            try:
                self.on_data()
            finally:
                self._depth -= 1
        return len(found)

    def connection_made(self, wire: Any) -> None:
        self.wire = wire
        self.events.append("made")

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")

    def connection_lost(self, error: Exception | None) -> None:
        assert self._depth == 0, "within a read"
        self.events.append("lost")
        self.errors.append(error)
        self.on_lost()


class Stage:
    """A poller of the running loop, and pairs of a side and its peer."""

    def __init__(self, twin: Twin) -> None:
        self.twin = twin
        self.loop = asyncio.get_running_loop()
        self.poller = twin.Poller(self.loop)
        self.poller.turn_ns = FOR_EVER_NS
        self.failures: list[dict[str, Any]] = []
        self.loop.set_exception_handler(lambda _, context: self.failures.append(context))
        self._peers = contextlib.ExitStack()

    def pair(self) -> tuple[Side, socket.socket]:
        ours, peer = socket.socketpair()
        self._peers.enter_context(peer)
        ours.setblocking(False)
        peer.setblocking(False)
        side = Side(self.twin)
        self.poller.add(ours.detach(), None, side)
        return side, peer

    def port(self, short: Callable[[], None] = lambda: None) -> tuple[Any, list[Side], int]:
        listening = socket.create_server(("127.0.0.1", 0), backlog=4096)
        listening.setblocking(False)
        sides: list[Side] = []

        def make() -> Side:
            sides.append(Side(self.twin))
            return sides[-1]

        port = self.twin.Port(listening, make, short)
        self.poller.listen(port)
        self._peers.callback(self.poller.deafen, port)
        return port, sides, listening.getsockname()[1]

    def dial(self, port: int) -> socket.socket:
        peer = self._peers.enter_context(socket.create_connection(("127.0.0.1", port)))
        peer.setblocking(False)
        return peer

    def close(self) -> None:
        self.poller.close()
        self._peers.close()


@pytest.fixture
async def stage(twin: Twin) -> AsyncIterator[Stage]:
    found = Stage(twin)
    yield found
    found.close()
    assert found.failures == []


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - turns of the loop are what is waited for
            await asyncio.sleep(0)


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def taken(peer: socket.socket, size: int) -> bytes:
    """Return so many bytes that a peer reads."""
    found = b""

    def has_all() -> bool:
        nonlocal found
        with contextlib.suppress(BlockingIOError):
            found += peer.recv(size - len(found))
        return len(found) == size

    await until(has_all)
    return found


async def test_bytes_come_and_go(stage: Stage) -> None:
    side, peer = stage.pair()
    peer.send(b"hello")
    await until(lambda: side.data == b"hello")
    side.wire.write(b"wor")
    side.wire.write(b"ld")
    assert side.wire.get_write_buffer_size() == 5, "it leaves at the end of the turn"
    assert await taken(peer, 5) == b"world"
    assert side.wire.get_write_buffer_size() == 0


async def test_a_peer_that_does_not_read_gets_all_in_order_later(stage: Stage) -> None:
    side, peer = stage.pair()
    side.wire.set_write_buffer_limits(100_000)
    side.wire.write(b"first")
    side.wire.write(BIG)
    assert side.events == ["made", "pause"]
    await turns()
    side.wire.write(b"last")
    waiting = side.wire.get_write_buffer_size()
    await turns()
    assert side.wire.get_write_buffer_size() == waiting > 100_000
    assert await taken(peer, 5 + len(BIG) + 4) == b"first" + BIG + b"last"
    await until(lambda: side.events == ["made", "pause", "resume"])
    assert side.wire.get_write_buffer_size() == 0


async def test_many_small_writes_leave_in_order(stage: Stage) -> None:
    side, peer = stage.pair()
    whole = b"".join(b"%d," % n for n in range(20_000))
    for n in range(20_000):
        side.wire.write(b"%d," % n)
    assert await taken(peer, len(whole)) == whole


async def test_large_parts_leave_at_once_and_behind_what_was_written(stage: Stage) -> None:
    side, peer = stage.pair()
    side.wire.write(b"a")
    assert side.wire.send_parts([b"b", memoryview(b"xcx")[1:2]]) == 2
    assert await taken(peer, 3) == b"abc"
    side.wire.write(BIG)
    assert side.wire.send_parts([b"no"]) == 0, "something waits"


async def test_what_was_written_before_the_close_still_leaves(stage: Stage) -> None:
    side, peer = stage.pair()
    side.wire.write(BIG)
    side.wire.close()
    side.wire.write(b"dropped")
    assert side.wire.is_closing()
    peer.send(b"not read any more")
    await turns()
    assert side.events == ["made", "pause"]
    assert await taken(peer, len(BIG)) == BIG
    await until(lambda: side.events[-1] == "lost")
    assert side.data == b""
    assert side.errors == [None]
    with contextlib.suppress(ConnectionResetError):  # it has sent what nobody read
        assert peer.recv(1) == b""


async def test_an_aborted_wire_sends_nothing_more(stage: Stage) -> None:
    side, _ = stage.pair()
    side.wire.write(BIG)
    side.wire.abort()
    assert side.events == ["made", "pause"], "told at the end of the turn"
    await until(lambda: "lost" in side.events)
    side.wire.write(b"x")
    side.wire.close()
    side.wire.abort()
    await turns()
    assert side.events.count("lost") == 1


async def test_the_end_of_a_peer_closes_when_all_is_sent(stage: Stage) -> None:
    side, peer = stage.pair()
    side.wire.write(BIG)
    peer.send(b"bye")
    peer.shutdown(socket.SHUT_WR)
    await until(lambda: side.data == b"bye")
    assert await taken(peer, len(BIG)) == BIG
    await until(lambda: side.events[-1] == "lost")
    assert side.errors == [None]


async def test_a_reset_ends_the_connection_with_its_error(stage: Stage) -> None:
    _, sides, number = stage.port()
    peer = stage.dial(number)
    await until(lambda: sides)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()
    await until(lambda: "lost" in sides[0].events)
    assert sides[0].errors[0].errno == errno.ECONNRESET


async def test_a_write_to_a_peer_that_is_gone_ends_the_connection(stage: Stage) -> None:
    side, peer = stage.pair()
    side.wire.pause_reading()
    peer.close()
    side.wire.write(b"x")
    await until(lambda: "lost" in side.events)
    assert side.errors[0].errno == errno.EPIPE


async def test_nothing_is_read_while_reading_is_paused(stage: Stage) -> None:
    side, peer = stage.pair()
    side.wire.pause_reading()
    peer.send(b"1")
    await turns(20)
    assert side.data == b""
    side.wire.resume_reading()
    await until(lambda: side.data == b"1")
    side.wire.pause_reading()
    side.wire.resume_reading()
    peer.send(b"2")
    await until(lambda: side.data == b"12")


async def test_a_peer_that_ends_while_reading_is_paused_is_heard_afterwards(stage: Stage) -> None:
    side, peer = stage.pair()
    side.wire.pause_reading()
    peer.send(b"last words")
    peer.close()
    before = side.reads
    await turns(20)
    assert side.reads == before
    assert side.events == ["made"]
    side.wire.resume_reading()
    await until(lambda: "lost" in side.events)
    assert side.data == b"last words"


async def test_the_poller_rests_when_a_paused_peer_has_reset(stage: Stage) -> None:
    _, sides, number = stage.port()
    peer = stage.dial(number)
    await until(lambda: sides)
    sides[0].wire.pause_reading()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()
    await turns(20)
    assert pollers_awake() == []
    sides[0].wire.resume_reading()
    await until(lambda: "lost" in sides[0].events)


async def test_reading_goes_on_while_the_peer_does_not_read(stage: Stage) -> None:
    side, peer = stage.pair()
    side.wire.write(BIG)
    await turns()
    peer.send(b"still here")
    await until(lambda: side.data == b"still here")


async def test_close_within_a_read_tells_the_protocol_afterwards(stage: Stage) -> None:
    side, peer = stage.pair()
    side.on_data = lambda: side.wire.close()
    peer.send(b"x")
    await until(lambda: "lost" in side.events)


async def test_a_write_within_a_read_leaves_in_the_same_turn(stage: Stage) -> None:
    side, peer = stage.pair()
    side.on_data = lambda: side.wire.write(b"answer")
    peer.send(b"x")
    stage.poller.turn()
    assert peer.recv(100) == b"answer"


async def test_a_write_to_another_within_connection_lost_leaves(stage: Stage) -> None:
    side, _ = stage.pair()
    other, peer = stage.pair()
    side.on_lost = lambda: other.wire.write(b"will")
    side.wire.abort()
    assert await taken(peer, 4) == b"will"


async def test_an_end_within_connection_lost_is_told_too(stage: Stage) -> None:
    side, _ = stage.pair()
    other, _ = stage.pair()
    side.on_lost = lambda: other.wire.close()
    side.wire.abort()
    await until(lambda: "lost" in other.events)


async def test_all_that_a_resumed_protocol_writes_leaves(stage: Stage) -> None:
    side, peer = stage.pair()
    side.wire.set_write_buffer_limits(10_000)
    more = [BIG, BIG[::-1]]

    def resume() -> None:
        if more:
            side.wire.write(more.pop())

    side.resume_writing = resume  # type: ignore[method-assign]
    side.wire.write(b"x" * 1_000_000)
    assert await taken(peer, 1_000_000 + 2 * len(BIG)) == b"x" * 1_000_000 + BIG[::-1] + BIG


async def test_a_protocol_that_fails_is_reported_and_its_wire_ended(stage: Stage) -> None:
    side, peer = stage.pair()
    other, other_peer = stage.pair()

    def fail() -> None:
        raise ValueError("broken")

    side.on_data = fail
    peer.send(b"x")
    await until(lambda: "lost" in side.events)
    assert isinstance(stage.failures.pop()["exception"], ValueError)
    other_peer.send(b"y")
    await until(lambda: other.data == b"y")


async def test_thousands_connect_write_and_end(stage: Stage) -> None:
    _, sides, number = stage.port()
    for start in range(0, 3000, 300):
        peers = [stage.dial(number) for _ in range(300)]
        for k, peer in enumerate(peers):
            peer.send(b"%d" % (start + k))
        await until(lambda: len(sides) == start + 300 and all(side.data for side in sides))  # noqa: B023
        for side in sides[start:]:
            side.wire.write(side.data)
        for k, peer in enumerate(peers):
            answer = b"%d" % (start + k)
            assert await taken(peer, len(answer)) == answer
            peer.close()
        await until(lambda: all("lost" in side.events for side in sides))
    assert sorted(int(side.data) for side in sides) == list(range(3000))


async def test_the_peers_address_is_known(stage: Stage) -> None:
    _, sides, number = stage.port()
    peer = stage.dial(number)
    await until(lambda: sides)
    wire = sides[0].wire
    assert wire.get_extra_info("peername") == peer.getsockname()
    looked_at = wire.get_extra_info("socket")
    assert looked_at.fileno() == wire.fd
    assert looked_at.getsockname() == peer.getpeername()
    del looked_at
    assert os.fstat(wire.fd)
    assert wire.get_extra_info("sslcontext", 7) == 7
    wire.confirm_receipt()


async def test_without_files_connections_wait_and_the_poller_rests(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    import resource

    monkeypatch.setattr(f"{stage.twin.Poller.__module__}._SHORT_S", 0.05, raising=False)
    shorts: list[int] = []
    port, sides, number = stage.port(lambda: shorts.append(1))
    peers = [socket.socket() for _ in range(20)]
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = max(int(name) for name in os.listdir("/proc/self/fd")) + 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, limits[1]))
    filling: list[int] = []
    try:
        with contextlib.suppress(OSError):
            while True:
                filling.append(os.dup(0))
        for peer in peers:
            peer.connect(("127.0.0.1", number))
        await until(lambda: shorts)
        await turns(50)
        assert len(shorts) <= 2, "it is tried again after a while only"
        assert not sides
    finally:
        for one in filling:
            os.close(one)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    await until(lambda: len(sides) == 20)
    for peer in peers:
        peer.close()
    stage.poller.deafen(port)


async def test_a_port_that_is_closed_takes_nobody(stage: Stage) -> None:
    port, sides, number = stage.port()
    peer = stage.dial(number)
    await until(lambda: sides)
    stage.poller.deafen(port)
    stage.poller.deafen(port)
    with pytest.raises(ConnectionRefusedError):
        stage.dial(number)
    peer.send(b"x")
    await until(lambda: sides[0].data == b"x")


async def test_a_turn_ends_while_there_is_more_to_read(stage: Stage) -> None:
    stage.poller.turn_ns = 1_000_000
    pairs = [stage.pair() for _ in range(200)]
    for side, peer in pairs:
        side.on_data = lambda: [None for _ in range(20_000)] and None  # a while
        peer.send(b"x")
    stage.poller.turn()
    done = sum(1 for side, _ in pairs if side.data)
    assert 0 < done < 200
    await until(lambda: all(side.data == b"x" for side, _ in pairs))


async def test_a_closed_poller_has_told_everybody(stage: Stage) -> None:
    side, peer = stage.pair()
    stage.poller.close()
    assert side.events == ["made", "lost"]
    assert peer.recv(1) == b""


async def test_what_is_asked_for_in_a_read_is_called_when_all_have_been_read(stage: Stage) -> None:
    pairs = [stage.pair() for _ in range(20)]
    seen: list[int] = []

    def ask() -> None:
        if not seen:
            seen.append(0)
            assert stage.poller.at_end(lambda: seen.append(sum(len(side.data) for side, _ in pairs)))

    for side, peer in pairs:
        side.on_data = ask
        peer.send(b"x")
    stage.poller.turn()
    assert seen == [0, 20]
    assert not stage.poller.at_end(ask), "no turn reads now"


async def test_what_comes_while_many_are_read_belongs_to_the_turn(stage: Stage) -> None:
    pairs = [stage.pair() for _ in range(20)]
    late, late_peer = stage.pair()
    for side, peer in pairs:
        side.on_data = lambda: late_peer.send(b"y") and None
        peer.send(b"x")
    stage.poller.turn()
    assert late.data == b"y" * 20


async def test_a_call_that_fails_at_the_end_is_reported_and_the_turn_ends(stage: Stage) -> None:
    side, peer = stage.pair()

    def fail() -> None:
        raise ValueError("broken")

    def answer() -> None:
        stage.poller.at_end(fail)
        side.wire.write(b"answer")

    side.on_data = answer
    peer.send(b"x")
    stage.poller.turn()
    assert peer.recv(100) == b"answer"
    assert isinstance(stage.failures.pop()["exception"], ValueError)


async def test_the_end_of_a_turn_is_called_once_however_often_it_is_asked_for(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Callable[[], None]] = []
    pairs = [stage.pair() for _ in range(400)]
    for side, peer in pairs:
        side.on_lost = lambda: [None for _ in range(20_000)] and None  # a while
        peer.close()
    with monkeypatch.context() as patch:
        patch.setattr(stage.loop, "call_soon", asked.append)
        for _ in range(5):
            stage.poller.turn()
        assert len(asked) == 1
        while asked:
            asked.pop()()
            assert len(asked) <= 1
    assert all("lost" in side.events for side, _ in pairs)


async def test_the_poller_rests_while_what_has_come_waits(stage: Stage) -> None:
    side, peer = stage.pair()
    side.wire.pause_reading()
    peer.send(b"x")
    await turns(20)
    assert pollers_awake() == []


def pollers_awake() -> list[int]:
    """Return which pollers of this process would be called now."""
    with contextlib.closing(select.epoll()) as looked:
        for number in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                if "eventpoll" in os.readlink(f"/proc/self/fd/{number}") and int(number) != looked.fileno():
                    looked.register(int(number), select.EPOLLIN)
        return [fd for fd, _ in looked.poll(0)]
