"""A persist server that is stopped in the midst of a commit, replaced, and goes on: what it says then must be true.

Clients of ours pass over what an earlier epoch says, so they would hide a server that ignores its fence. Here somebody
else listens: one who asks once, never again, and takes every answer at its word.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from tests.crash.test_persist_servers import SHARDS, STREAMS, servers, shared_by, working
from tests.nats_servers import needs_nats
from tests.persist_process import loading_first

from everlog.bench.load.slow_sync import slow_syncs
from everlog.bus import (
    HELLO,
    WRITE,
    Delivery,
    FrameKind,
    Welcome,
    decode_frame,
    encode_frame,
    make_bus,
    request_subject,
)
from everlog.streams import Answer, Call, Message, Reply, Set, Written

pytestmark = [needs_nats, pytest.mark.slow]

ASKED = 20
PATIENCE_S = 60.0
VALUE = b"believed %d"

# A server that takes the object of the owner after it for its own.
NO_FENCE = """
from everlog.base import Fenced
from everlog.tiering.journal_writer import JournalWriter

really = JournalWriter.write

def write(self, records):
    try:
        return really(self, records)
    except Fenced:
        header, data = self._pending
        self._pending = None
        self.reader.see(header, data)
        return header.end

JournalWriter.write = write
"""


class Believer:
    """Asks for appends to a stream, each once, and notes what it is told."""

    def __init__(self, url: str) -> None:
        self.answers: dict[int, Answer] = {}
        self._bus = make_bus(url)
        self._news = asyncio.Event()
        self._greeted: set[str] = set()

    async def open(self) -> None:
        await self._bus.open()
        await self._bus.subscribe(f"{self._bus.inbox}/#", self._take)

    async def close(self) -> None:
        await self._bus.close()

    def ask(self, stream: str, number: int) -> None:
        body = msgspec.msgpack.encode(Call(Set(stream, Message(VALUE % number))))
        subject = request_subject(STREAMS.index(stream), WRITE, stream)
        self._bus.publish(subject, encode_frame(FrameKind.REQUEST, number, 1, 0, body), f"{self._bus.inbox}/r")

    async def until_heard(self, server: str) -> None:
        """Wait until a server has taken all that it was asked: what it is sent on one connection comes in order."""
        self._bus.publish(HELLO, encode_frame(FrameKind.HELLO, 1), f"{self._bus.inbox}/r")
        await self._until(lambda: server in self._greeted)

    async def until_told(self, count: int) -> None:
        await self._until(lambda: len(self.answers) >= count)

    async def _until(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not true():
                self._news.clear()
                await self._news.wait()

    def _take(self, deliveries: list[Delivery]) -> None:
        for one in deliveries:
            frame = decode_frame(one.payload)
            if frame.kind is FrameKind.WELCOME:
                self._greeted.add(msgspec.msgpack.decode(frame.body, type=Welcome).server)
            else:
                self.answers[frame.id] = msgspec.msgpack.decode(frame.body, type=Answer)
            self._news.set()


async def lies_of_a_replaced_server(directory: Path, mutant: str = "") -> list[str]:
    """Stop a server amidst its commit, replace it, let it go on; return what it said that is not true."""
    stall: dict[str, Path] = {}
    with servers(directory, names="", patience="5s") as made:
        for name in "ab":
            library = directory / f"{name}-library"
            library.mkdir()
            variables = slow_syncs(library, directory / "shared", 0)
            if mutant:
                (library / "sitecustomize.py").write_text(mutant)
                variables["PYTHONPATH"] = loading_first(library)
            made.make(name, variables=variables)
            stall[name] = library / "syncs-stall"
        async with working(made) as world:
            owner = next(one for one in await world.servers(shared_by(2)) if 0 in one.owned)
            victim, stalls = made.of(owner), stall[owner.server]
            believer = Believer(made.nats.url)
            await believer.open()
            stalls.touch()
            async with asyncio.timeout(PATIENCE_S):
                while not stalls.with_suffix(".now").exists():  # noqa: ASYNC110 - another process makes it
                    await asyncio.sleep(0.005)
            for number in range(ASKED):
                believer.ask(STREAMS[0], number)
            await believer.until_heard(owner.server)
            victim.sleep()
            assert not believer.answers, "nothing can be committed now, and nothing was refused"
            await world.servers(lambda found: any(one.owned == list(range(SHARDS)) for one in found))
            await world.until_acked(5)
            stalls.unlink()
            victim.wake()
            await believer.until_told(ASKED)
            await believer.close()
            found = [message async for message in world.reader.stream(STREAMS[0]).get_all()]
            await world.servers(shared_by(2))
            if not mutant:
                await world.check()
    have = {(message.seq, message.position): message.value for message in found}
    told = {number: answer for number, answer in believer.answers.items() if isinstance(answer, Reply)}
    return [
        f"write {number} is not where epoch {answer.epoch} said"
        for number, answer in told.items()
        if isinstance(answer.result, Written)
        and have.get((answer.result.seq, answer.result.position)) != VALUE % number
    ]


async def test_a_server_stopped_amidst_a_commit_and_replaced_acknowledges_nothing(tmp_path: Path) -> None:
    assert await lies_of_a_replaced_server(tmp_path) == []


@pytest.mark.soak
async def test_a_server_that_ignores_its_fence_is_found_out(tmp_path: Path) -> None:
    assert await lies_of_a_replaced_server(tmp_path, NO_FENCE) != []
