"""Requests over a bus: each is sent again, with the same id, until it is answered or its time is over.

The highest (epoch, position) that any reply of a shard had goes with every further request to it, and replies of an
earlier epoch are passed over, so that what a client sees never goes back. A server that is not the shard's owner, or
not any more, says so; then the same is asked again soon, on the shard's subject, where its owner listens.
"""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncGenerator, Callable
from random import random

import msgspec

from everlog.base import EverlogError, UsageError
from everlog.bus import (
    AGAIN,
    HELLO,
    LAST,
    READ,
    Assembly,
    BadFrame,
    Bus,
    Delivery,
    Frame,
    FrameKind,
    Welcome,
    decode_frame,
    encode_frame,
    request_subject,
    shard_of_name,
    split_frame,
)
from everlog.client.errors import closed_meanwhile, error_of, not_open, timed_out
from everlog.streams import RETRIED, Answer, AnyRequest, Call, Failure, Reply

TIMEOUT_S = 10.0
WINDOW = 8  # replies of a series that are on their way
_FIRST_S, _LONGEST_S = 0.25, 2.0  # before a request is sent again
_SOON_S = 0.02  # before one is sent again that a server could not do just now
_GREETING_S = 0.3  # in which all servers answer a greeting
_UNKNOWN_SERIES = 0xFFFF_FFFF


class SeriesLost(EverlogError):
    """A server knows nothing any more of a series: whoever wants the rest asks anew."""


class _Waiting:
    """A request without an answer."""

    __slots__ = ("attempts", "data", "deadline", "failure", "future", "last_s", "shard", "subject", "timer")

    def __init__(self, shard: int, subject: str, data: bytes, deadline: float, future: "asyncio.Future[Reply]") -> None:
        self.shard = shard
        self.subject = subject
        self.data = data
        self.deadline = deadline
        self.future = future
        self.timer: asyncio.TimerHandle | None = None
        self.failure: Failure | None = None  # that passes by itself, so far
        self.attempts = 0
        self.last_s = 0.0


class _Replies:
    """The replies of a series that have come."""

    def __init__(self) -> None:
        self.frames: dict[int, Frame] = {}
        self.news = asyncio.Event()
        self.is_lost = False


class Requester:
    """A client's end of all its requests, on one event loop."""

    def __init__(self, bus: Bus, timeout_s: float = TIMEOUT_S, chance: Callable[[], float] = random) -> None:
        self.bus = bus
        self.timeout_s = timeout_s
        self.shards = 0
        self._chance = chance
        self._reply_to = f"{bus.inbox}/r"
        self._waiting: dict[int, _Waiting] = {}
        self._series: dict[int, _Replies] = {}
        self._greetings: dict[int, list[Welcome]] = {}
        self._greeted = asyncio.Event()
        self._seen: dict[int, tuple[int, int]] = {}
        self._last_id = secrets.randbits(48)
        self._assembly = Assembly()
        self._encode = msgspec.msgpack.Encoder().encode
        self._answer = msgspec.msgpack.Decoder(Answer).decode
        self._welcome = msgspec.msgpack.Decoder(Welcome).decode
        self._loop: asyncio.AbstractEventLoop
        self._told_of_end: set[Callable[[], None]] = set()

    async def open(self) -> None:
        """Open the bus and find out how many shards there are."""
        self._loop = asyncio.get_running_loop()
        await self.bus.open()
        try:
            self.bus.watch(self._bus_changed)
            await self.bus.subscribe(f"{self.bus.inbox}/#", self._take)
            async with asyncio.timeout(self.timeout_s):
                while not self.shards:
                    await self.greet()
        except TimeoutError:
            await self.bus.close()
            raise timed_out("asking for a persist server", self.timeout_s) from None
        except BaseException:
            await self.bus.close()
            raise

    async def close(self) -> None:
        """Leave the bus; whoever waits for an answer is told so."""
        self.shards = 0
        for waiting in self._waiting.values():
            if not waiting.future.done():
                waiting.future.set_exception(closed_meanwhile(waiting.subject))
        for replies in self._series.values():
            replies.news.set()
        for tell in list(self._told_of_end):
            tell()
        await self.bus.close()

    def at_close(self, tell: Callable[[], None]) -> Callable[[], None]:
        """Have somebody told when the client is closed; return what ends that."""
        self._told_of_end.add(tell)
        return lambda: self._told_of_end.discard(tell)

    async def greet(self, wait_s: float = _GREETING_S, all: bool = False) -> list[Welcome]:
        """Return who answers a greeting: the first that does, or all within a time."""
        id = self._next_id()
        answers = self._greetings[id] = []
        try:
            deadline = self._loop.time() + wait_s
            self.bus.publish(HELLO, encode_frame(FrameKind.HELLO, id), self._reply_to)
            while (left_s := deadline - self._loop.time()) > 0 and (all or not answers):
                self._greeted.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(left_s):
                        await self._greeted.wait()
        finally:
            del self._greetings[id]
        if answers:
            self.shards = answers[0].shards
        return answers

    def shard_of(self, name: str) -> int:
        """Return the state shard of a name; raises UsageError unless the client is open."""
        if not self.shards:
            raise not_open()
        return shard_of_name(name, self.shards)

    # One reply

    def seen(self, name: str) -> int:
        """Return the highest position that any reply of a name's shard had, -1 if there was none."""
        return self._seen.get(self.shard_of(name), (0, -1))[1]

    async def call(
        self, request: AnyRequest, right: str, timeout_s: float | None = None, first_seen: int | None = None
    ) -> Reply:
        """Return the reply to a request; raises a PersistError if it is not done, or not answered in time.

        `first_seen` is for a retry of a write that an earlier process may have sent: what that one had seen then.
        """
        timeout_s = self.timeout_s if timeout_s is None else timeout_s
        shard = self.shard_of(request.stream)
        if self.bus.is_congested:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self.bus.drained()
        id = self._next_id()
        body = self._body(Call(request, *self._seen.get(shard, (0, -1)), first_seen))
        data = encode_frame(FrameKind.REQUEST, id, 1, 0, body)
        waiting = _Waiting(
            shard,
            request_subject(shard, right, request.stream),
            data,
            self._loop.time() + timeout_s,
            self._loop.create_future(),
        )
        self._waiting[id] = waiting
        try:
            self._send(waiting, timeout_s)
            reply = await waiting.future
        finally:
            del self._waiting[id]
            if waiting.timer is not None:
                waiting.timer.cancel()
        self._saw(shard, reply)
        return reply

    def _send(self, waiting: _Waiting, timeout_s: float) -> None:
        """Send a request, and again after a while."""
        left_s = waiting.deadline - self._loop.time()
        if left_s <= 0:
            if not waiting.future.done():
                failure = waiting.failure
                waiting.future.set_exception(
                    timed_out(waiting.subject, timeout_s) if failure is None else error_of(failure)
                )
            return
        self._publish(waiting.subject, waiting.data)
        wait_s = min(_FIRST_S * 2**waiting.attempts, _LONGEST_S) * (1 - self._chance() / 4)
        waiting.attempts = min(waiting.attempts + 1, 10)
        waiting.timer = self._loop.call_later(min(wait_s, left_s), self._send, waiting, timeout_s)

    def _publish(self, subject: str, data: bytes) -> None:
        if len(data) <= self.bus.max_payload:
            self.bus.publish(subject, data, self._reply_to)
            return
        for part in split_frame(data, self.bus.max_payload):
            self.bus.publish(subject, part, self._reply_to)

    def _bus_changed(self, is_open: bool) -> None:
        """Send everything again that waits, a little apart from others who do the same."""
        if is_open:
            for waiting in self._waiting.values():
                if waiting.timer is not None:
                    waiting.timer.cancel()
                waiting.timer = self._loop.call_later(self._chance() * _SOON_S, self._send, waiting, self.timeout_s)
            for replies in self._series.values():
                replies.news.set()

    # A series of replies

    async def series(self, request: AnyRequest, timeout_s: float | None = None) -> AsyncGenerator[Reply, None]:
        """Yield the replies to a request that has many, in order; credit flows as they are taken.

        Raises SeriesLost if the server knows nothing of it any more, such as after a restart.
        """
        timeout_s = self.timeout_s if timeout_s is None else timeout_s
        shard = self.shard_of(request.stream)
        id = self._next_id()
        subject = request_subject(shard, READ, request.stream)
        body = self._body(Call(request, *self._seen.get(shard, (0, -1))))
        first = encode_frame(FrameKind.REQUEST, id, WINDOW, 0, body)
        replies = self._series[id] = _Replies()
        number, granted, epoch, is_over = 0, WINDOW, 0, False
        deadline, attempts = self._loop.time() + timeout_s, 0
        try:
            self._publish(subject, first)
            while not is_over:
                frame = replies.frames.pop(number, None)
                if frame is None:
                    await self._next_reply(replies, number, subject, id, first, timeout_s)
                    continue
                answer = self._answer(frame.body)
                if isinstance(answer, Failure):
                    if answer.code in RETRIED and not number and self._loop.time() < deadline:
                        attempts = min(attempts + 1, 10)
                        await asyncio.sleep(self._pause_s(attempts))
                        if not replies.frames:  # otherwise another server has answered
                            self._publish(subject, first)
                        continue
                    is_over = True
                    raise SeriesLost(answer.message) if number and answer.code in RETRIED else error_of(answer)
                if answer.epoch < self._seen.get(shard, (0, -1))[0]:
                    raise SeriesLost("an owner that was replaced goes on answering")
                if number and answer.epoch != epoch:
                    raise SeriesLost("another owner goes on answering, and its answers need not follow on these")
                epoch = answer.epoch
                number += 1
                is_over = bool(frame.flags & LAST)
                if granted - number < WINDOW // 2 or is_over:
                    granted = number + WINDOW
                    self._credit(subject, id, number, 0)
                self._saw(shard, answer)
                yield answer
        finally:
            del self._series[id]
            if not is_over:
                self.bus.publish(subject, encode_frame(FrameKind.CANCEL, id), self._reply_to)

    async def _next_reply(
        self, replies: _Replies, number: int, subject: str, id: int, first: bytes, timeout_s: float
    ) -> None:
        """Wait until the next reply is there; ask for it again from time to time."""
        deadline = self._loop.time() + timeout_s
        attempts = 0
        while number not in replies.frames:
            if not self.shards:
                raise not_open()
            if replies.is_lost:
                raise SeriesLost("the server knows nothing of the series any more")
            left_s = deadline - self._loop.time()
            if left_s <= 0:
                raise timed_out(subject, timeout_s)
            wait_s = min(_FIRST_S * 2**attempts, _LONGEST_S) * (1 - self._chance() / 4)
            replies.news.clear()
            try:
                async with asyncio.timeout(min(wait_s, left_s)):
                    await replies.news.wait()
            except TimeoutError:
                attempts = min(attempts + 1, 10)
                if number or replies.frames:
                    self._credit(subject, id, number, AGAIN)
                else:
                    self._publish(subject, first)

    def _credit(self, subject: str, id: int, number: int, again: int) -> None:
        self.bus.publish(subject, encode_frame(FrameKind.CREDIT, id, number, WINDOW | again), self._reply_to)

    # What arrives

    def _take(self, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            with contextlib.suppress(BadFrame):  # nothing of ours
                self._take_frame(delivery.subject, decode_frame(delivery.payload))

    def _take_frame(self, subject: str, frame: Frame) -> None:
        if frame.kind is FrameKind.REPLY:
            waiting = self._waiting.get(frame.id)
            if waiting is not None:
                self._answered(waiting, frame)
            elif frame.id in self._series:
                replies = self._series[frame.id]
                if frame.number == _UNKNOWN_SERIES:
                    replies.is_lost = True
                else:
                    replies.frames[frame.number] = frame
                replies.news.set()
        elif frame.kind is FrameKind.PART:
            if frame.id in self._waiting or frame.id in self._series:
                whole = self._assembly.add(subject, frame, self._loop.time())
                if whole is not None:
                    self._take_frame(subject, decode_frame(whole))
        elif frame.kind is FrameKind.WELCOME and frame.id in self._greetings:
            with contextlib.suppress(msgspec.DecodeError):
                self._greetings[frame.id].append(self._welcome(frame.body))
                self._greeted.set()

    def _answered(self, waiting: _Waiting, frame: Frame) -> None:
        if waiting.future.done():
            return
        try:
            answer = self._answer(frame.body)
        except msgspec.DecodeError as error:
            waiting.future.set_exception(BadFrame(f"a reply that can't be read: {error}"))
            return
        if isinstance(answer, Reply):
            if answer.epoch >= self._seen.get(waiting.shard, (0, -1))[0]:  # else of an owner that was replaced
                waiting.future.set_result(answer)
        elif answer.code in RETRIED:
            waiting.failure = answer
            if waiting.timer is not None:
                waiting.timer.cancel()
            waiting.timer = self._loop.call_later(self._pause_s(waiting.attempts), self._send, waiting, self.timeout_s)
        else:
            waiting.future.set_exception(error_of(answer))

    def _pause_s(self, attempts: int) -> float:
        """Return how long to wait before something is asked again that could not be done just now."""
        return min(_SOON_S * float(1 << attempts), _LONGEST_S) * (1 - self._chance() / 2)

    def _saw(self, shard: int, reply: Reply) -> None:
        seen = (reply.epoch, reply.position)
        if seen > self._seen.get(shard, (0, -1)):
            self._seen[shard] = seen

    def _body(self, call: Call) -> bytes:
        try:
            return self._encode(call)
        except (TypeError, OverflowError, UnicodeEncodeError) as error:
            hint = "text has no lone surrogates, numbers have 64 bits, headers are text"
            raise UsageError(f"the request can't be sent: {error}", hint=hint) from None

    def _next_id(self) -> int:
        self._last_id += 1
        return self._last_id
