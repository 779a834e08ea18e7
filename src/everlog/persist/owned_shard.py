"""A state shard that a server owns: opened when it is first used; what comes meanwhile waits."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any

from everlog.base import EverlogError, Fenced, StorageError, Unavailable, UsageError
from everlog.bus import LAST, FrameKind, encode_frame
from everlog.persist.ports import Failed, Post, ShardOpener
from everlog.persist.rights import SERIES
from everlog.streams import Asked, Call, ErrorCode, Failure, FeedEvent, PlainRequests, Shard

_WAITING = 10_000  # requests that wait for the shard to open; beyond it they are answered BUSY
_RETRY_S = 1.0  # after a failed opening
_ANSWER = encode_frame(FrameKind.REPLY, 0, 0, LAST)[:8]  # what answers to plain requests begin with
_SETTLE_S = 10.0  # for what is under way when the shard is closed
_SETTLE_STEP_S = 0.005
_log = logging.getLogger("everlog.persist")

AnswerTo = Callable[[Any], None]  # takes an answer or, of a request that has a series of them, an iterator of answers


class OwnedShard:
    """A shard, open or not. `touched` calls are gathered by the server, which ends each turn with one commit.

    Without `lost`, a shard that fails is opened again by the next request, unless another owner has it. With it, the
    shard is opened at once and `lost` is told of any failure: who asked for the shard decides what comes next.
    """

    def __init__(
        self,
        number: int,
        opener: ShardOpener,
        threads: Executor,
        post: Post,
        followed: dict[str, float],
        feed: Callable[[int, list[FeedEvent]], None],
        answered: Callable[[list[Asked]], None],
        refusal: Callable[[int], Failure],
        lost: Callable[[int], None] | None = None,
    ) -> None:
        self.number = number
        self._opener = opener
        self._threads = threads
        self._post = post
        self._followed = followed
        self._feed = partial(feed, number)
        self._answered = answered
        self._refusal = refusal  # of what is asked of a shard that is another owner's
        self._lost = lost
        self._shard: Shard | None = None
        self._opening: asyncio.Task[None] | None = None
        self._closing: Future[None] | None = None  # of a shard that failed
        self._failures: list[EverlogError] = []  # of the shard that is being opened
        self._waiting: list[tuple[Call, AnswerTo]] = []
        self._not_before = 0.0
        self.is_closed = False
        if lost is not None:
            self._begin_opening()

    @property
    def is_open(self) -> bool:
        """Whether it was used."""
        return self._shard is not None

    @property
    def unfiled(self) -> tuple[int, int]:
        """How many records wait for the files of their streams, and their bytes."""
        return (0, 0) if self._shard is None else self._shard.unfiled

    @property
    def plain(self) -> PlainRequests | None:
        """Who decides plain requests, if the shard is open."""
        return None if self._shard is None else self._shard.plain

    def handle(self, call: Call, answer: AnswerTo) -> None:
        """Hand a request to the shard, now or when it is open."""
        if self._shard is not None:
            self._dispatch(self._shard, call, answer)
        elif self.is_closed:
            answer(self._refusal(self.number))
        elif len(self._waiting) >= _WAITING:
            answer(Failure(ErrorCode.BUSY, "the shard is being opened, and too much waits for it"))
        else:
            self._waiting.append((call, answer))
            if self._opening is None and asyncio.get_running_loop().time() < self._not_before:
                self._give_up(StorageError("the shard can't be opened", hint="the server's log says why"))
            elif self._opening is None:
                self._begin_opening()

    def turn(self) -> None:
        """End a turn: one commit for all that was handled."""
        if self._shard is not None:
            self._shard.turn()

    def tick(self) -> None:
        """Do what time demands."""
        if self._shard is not None:
            self._shard.tick()

    async def close(self) -> None:
        """Take no more, let what is under way be committed and answered, and close the shard."""
        self.is_closed = True
        if self._opening is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await self._opening
        shard, self._shard = self._shard, None
        if shard is None:
            await self._closed()
            return
        shard.turn()
        loop = asyncio.get_running_loop()
        if not await self._settled(shard, loop.time() + _SETTLE_S):
            shard.post_failure(Unavailable("the shard was closed before it was written", hint="ask again"))
            await self._settled(shard, loop.time() + _SETTLE_S)
        await loop.run_in_executor(self._threads, shard.close)

    async def _settled(self, shard: Shard, deadline: float) -> bool:
        """Wait until nobody waits for a commit of a shard any more, or a time is over."""
        loop = asyncio.get_running_loop()
        while not shard.is_idle and loop.time() < deadline:  # noqa: ASYNC110 - a commit is reported to callers only
            await asyncio.sleep(_SETTLE_STEP_S)
        return shard.is_idle

    def _failed(self, error: EverlogError) -> None:
        """Let go of a shard that can't go on."""
        shard, self._shard = self._shard, None
        _log.error("shard %d ends: %s", self.number, error)
        self._not_before = asyncio.get_running_loop().time() + _RETRY_S
        if shard is None:
            self._failures.append(error)
        else:
            self._closing = self._threads.submit(_close, shard)
        self._is_lost(error)

    async def _closed(self) -> None:
        """Wait until a shard that failed is closed."""
        if self._closing is not None:
            await asyncio.wrap_future(self._closing)

    def _is_lost(self, error: Exception) -> None:
        if self._lost is not None:
            if not self.is_closed:
                self.is_closed = True
                self._lost(self.number)
        elif isinstance(error, Fenced):
            self.is_closed = True

    def _begin_opening(self) -> None:
        self._opening = asyncio.get_running_loop().create_task(self._open())

    async def _open(self) -> None:
        loop = asyncio.get_running_loop()
        await self._closed()
        self._failures.clear()
        try:
            shard = await loop.run_in_executor(self._threads, self._make)
            if self._failures:
                self._closing = self._threads.submit(_close, shard)
                raise self._failures[0]
        except (EverlogError, OSError) as error:
            self._not_before = loop.time() + _RETRY_S
            _log.error("shard %d can't be opened: %s", self.number, error)
            self._opening = None
            self._give_up(error)
            self._is_lost(error)
            return
        self._shard, self._opening = shard, None
        shard.follow(self._followed, self._feed)
        shard.answer_plain(_ANSWER, self._answered)
        waiting, self._waiting = self._waiting, []
        for call, answer in waiting:
            self._dispatch(shard, call, answer)
        shard.turn()

    def _make(self) -> Shard:
        """Open the shard, on another thread."""
        failed: Failed = lambda error: self._post(partial(self._failed, error))  # noqa: E731
        return self._opener.open(self.number)(self._post, failed)

    def _give_up(self, error: Exception) -> None:
        waiting, self._waiting = self._waiting, []
        what, hint = (error.message, error.hint) if isinstance(error, EverlogError) else (str(error), "")
        for _, answer in waiting:
            answer(Failure(ErrorCode.UNAVAILABLE, f"the shard can't be opened: {what}", hint))

    def _dispatch(self, shard: Shard, call: Call, answer: AnswerTo) -> None:
        try:
            if type(call.request) in SERIES:
                shard.handle_series(call, answer)
            else:
                shard.handle(call, answer)
        except UsageError as error:
            answer(Failure(ErrorCode.BAD_REQUEST, error.message, error.hint))
        except EverlogError as error:
            answer(Failure(ErrorCode.STORAGE, error.message, error.hint))
        except Exception:  # noqa: BLE001 - one request must not end the others
            _log.exception("a request failed")
            answer(Failure(ErrorCode.STORAGE, "the server failed", "its log says why"))


def _close(shard: Shard) -> None:
    """Close a shard that failed, on another thread; it has answered everybody."""
    try:
        shard.close()
    except EverlogError as error:
        _log.warning("a shard that failed can't be closed: %s", error)
