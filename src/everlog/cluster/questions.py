"""Questions to other brokers and their answers, over links that may get lost in between.

Limits: `MOST_ASKED` questions wait for one peer, more fail at once; `MOST_ANSWERED` questions of one peer are answered
at a time, more are refused.
"""

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Protocol

import msgspec

from everlog.base import EverlogError, Unavailable
from everlog.cluster.link_frames import BadFrame, LinkFrame
from everlog.cluster.ports import Answerer, LinkKind

MOST_ASKED = 10_000
MOST_ANSWERED = 10_000


class Send(Protocol):
    """Says something to a peer; False if there is no link."""

    def __call__(self, incarnation: int, kind: int, number: int, body: bytes) -> bool: ...


class Reply(msgspec.Struct, frozen=True, array_like=True):
    """An answer, or why there is none."""

    body: bytes = b""
    error: str = ""
    hint: str = ""


class Questions:
    """Both sides of questions; owned by the event loop's thread."""

    def __init__(self, send: Send) -> None:
        self.answerers: dict[int, Answerer] = {}
        self._send = send
        self._next = 0
        self._waiting: dict[int, dict[int, asyncio.Future[bytes]]] = {}  # by peer and number
        self._answering: dict[int, set[asyncio.Task[None]]] = {}  # by peer

    async def ask(self, incarnation: int, kind: LinkKind, body: bytes) -> bytes:
        """Return the answer of a peer; raise Unavailable if none comes."""
        waiting = self._waiting.setdefault(incarnation, {})
        if len(waiting) >= MOST_ASKED:
            raise Unavailable(f"incarnation {incarnation} was asked too much at once")
        self._next += 1
        number = self._next
        if not self._send(incarnation, LinkKind.ASK, number, bytes((kind,)) + body):
            raise _no_link(incarnation)
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        waiting[number] = answer
        try:
            return await answer
        finally:
            waiting.pop(number, None)

    def received(self, incarnation: int, frame: LinkFrame) -> None:
        """Take a question or an answer of a peer."""
        if frame.kind == LinkKind.REPLY:
            answer = self._waiting.get(incarnation, {}).get(frame.number)
            if answer is not None and not answer.done():
                _settle(answer, frame.body)
            return
        if not frame.body:
            raise BadFrame("a question without a kind")
        answering = self._answering.setdefault(incarnation, set())
        if len(answering) >= MOST_ANSWERED:
            self._reply(incarnation, frame.number, Reply(error="too many questions at once", hint="ask again"))
            return
        call = self.answerers.get(frame.body[0])
        if call is None:
            self._reply(incarnation, frame.number, Reply(error=f"questions of kind {frame.body[0]} are not known here"))
            return
        self._begin(incarnation, self._answer(call, incarnation, frame))

    def told(self, incarnation: int, frame: LinkFrame) -> None:
        """Hand on what a peer tells; nothing if nobody is interested, or too much is under way."""
        call = self.answerers.get(frame.kind)
        if call is not None and len(self._answering.get(incarnation, ())) < MOST_ANSWERED:
            self._begin(incarnation, self._hear(call, incarnation, frame.body))

    def _begin(self, incarnation: int, answer: Coroutine[None, None, None]) -> None:
        answering = self._answering.setdefault(incarnation, set())
        task = asyncio.get_running_loop().create_task(answer)
        answering.add(task)
        task.add_done_callback(answering.discard)

    async def _hear(self, call: Answerer, incarnation: int, body: bytes) -> None:
        with contextlib.suppress(EverlogError):
            await call(incarnation, body)

    async def _answer(self, call: Answerer, incarnation: int, frame: LinkFrame) -> None:
        try:
            reply = Reply(await call(incarnation, frame.body[1:]))
        except EverlogError as error:
            reply = Reply(error=error.message or type(error).__name__, hint=error.hint)
        except Exception as error:  # noqa: BLE001 - the asker must not wait for ever
            reply = Reply(error=f"the question met an error: {error!r}")
        self._reply(incarnation, frame.number, reply)

    def _reply(self, incarnation: int, number: int, reply: Reply) -> None:
        self._send(incarnation, LinkKind.REPLY, number, msgspec.msgpack.encode(reply))

    def lost(self, incarnation: int) -> None:
        """End the questions to a peer whose link was lost."""
        for answer in self._waiting.pop(incarnation, {}).values():
            if not answer.done():
                answer.set_exception(_no_link(incarnation))

    async def close(self) -> None:
        """End everything."""
        for incarnation in list(self._waiting):
            self.lost(incarnation)
        tasks = [task for answering in self._answering.values() for task in answering]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _settle(answer: "asyncio.Future[bytes]", body: bytes) -> None:
    try:
        reply = msgspec.msgpack.decode(body, type=Reply)
    except msgspec.MsgspecError as error:
        raise BadFrame(f"an answer can't be read: {error}") from error
    if reply.error:
        answer.set_exception(Unavailable(reply.error, hint=reply.hint))
    else:
        answer.set_result(reply.body)


def _no_link(incarnation: int) -> Unavailable:
    return Unavailable(f"there is no link to incarnation {incarnation}", hint="it may be back soon, or be dead")
