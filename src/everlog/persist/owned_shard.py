"""A state shard that a server owns: opened when it is first used; what comes meanwhile waits."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from everlog.base import EverlogError, Fenced, StorageError, UsageError
from everlog.bus import LAST, FrameKind, encode_frame
from everlog.persist.ports import Post, ShardOpener
from everlog.persist.rights import SERIES
from everlog.streams import Call, ErrorCode, Failure, FeedEvent, PlainRequests, Shard, Waiting

_WAITING = 10_000  # requests that wait for the shard to open; beyond it they are answered BUSY
_RETRY_S = 1.0  # after a failed opening
_ANSWER = encode_frame(FrameKind.REPLY, 0, 0, LAST)[:8]  # what answers to plain requests begin with
_log = logging.getLogger("everlog.persist")

AnswerTo = Callable[[Any], None]  # takes an answer or, of a request that has a series of them, an iterator of answers


class OwnedShard:
    """A shard, open or not. `touched` calls are gathered by the server, which ends each turn with one commit."""

    def __init__(
        self,
        number: int,
        opener: ShardOpener,
        post: Post,
        wants: Callable[[str], bool],
        feed: Callable[[int, list[FeedEvent]], None],
        answered: Callable[[list[Waiting]], None],
    ) -> None:
        self.number = number
        self._opener = opener
        self._post = post
        self._wants = wants
        self._feed = partial(feed, number)
        self._answered = answered
        self._shard: Shard | None = None
        self._opening: asyncio.Task[None] | None = None
        self._waiting: list[tuple[Call, AnswerTo]] = []
        self._not_before = 0.0
        self.is_closed = False

    @property
    def is_open(self) -> bool:
        """Whether it was used."""
        return self._shard is not None

    @property
    def plain(self) -> PlainRequests | None:
        """Who decides plain requests, if the shard is open."""
        return None if self._shard is None else self._shard.plain

    def handle(self, call: Call, answer: AnswerTo) -> None:
        """Hand a request to the shard, now or when it is open."""
        if self._shard is not None:
            self._dispatch(self._shard, call, answer)
        elif self.is_closed:
            answer(Failure(ErrorCode.NOT_OWNER, "the shard was handed over"))
        elif len(self._waiting) >= _WAITING:
            answer(Failure(ErrorCode.BUSY, "the shard is being opened, and too much waits for it"))
        else:
            self._waiting.append((call, answer))
            loop = asyncio.get_running_loop()
            if self._opening is None and loop.time() < self._not_before:
                self._give_up(StorageError("the shard can't be opened", hint="the server's log says why"))
            elif self._opening is None:
                self._opening = loop.create_task(self._open())

    def turn(self) -> None:
        """End a turn: one commit for all that was handled."""
        if self._shard is not None:
            self._shard.turn()

    def tick(self) -> None:
        """Do what time demands."""
        if self._shard is not None:
            self._shard.tick()

    async def close(self) -> None:
        """Finish what is under way, and take no more."""
        self.is_closed = True
        if self._opening is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await self._opening
        shard, self._shard = self._shard, None
        if shard is not None:
            shard.close()

    def _failed(self, error: EverlogError) -> None:
        """Let go of a shard that can't go on: the next request opens it again, unless another owner has it."""
        shard, self._shard = self._shard, None
        _log.error("shard %d ends: %s", self.number, error)
        self._not_before = asyncio.get_running_loop().time() + _RETRY_S
        if shard is not None:
            with contextlib.suppress(EverlogError):
                shard.close()
        if isinstance(error, Fenced):
            self.is_closed = True

    async def _open(self) -> None:
        try:
            begin = await asyncio.to_thread(self._opener.open, self.number)
            shard = begin(self._post, self._failed)
        except (EverlogError, OSError) as error:
            self._not_before = asyncio.get_running_loop().time() + _RETRY_S
            _log.error("shard %d can't be opened: %s", self.number, error)
            self._opening = None
            self._give_up(error)
            return
        self._shard, self._opening = shard, None
        shard.follow(self._wants, self._feed)
        shard.answer_plain(_ANSWER, self._answered)
        waiting, self._waiting = self._waiting, []
        for call, answer in waiting:
            self._dispatch(shard, call, answer)
        shard.turn()

    def _give_up(self, error: Exception) -> None:
        waiting, self._waiting = self._waiting, []
        hint = error.hint if isinstance(error, EverlogError) else ""
        for _, answer in waiting:
            answer(Failure(ErrorCode.UNAVAILABLE, f"the shard can't be opened: {error}", hint))

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
