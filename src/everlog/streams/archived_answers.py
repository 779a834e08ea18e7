"""Answers that wait until what they tell of is in the bucket."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from everlog.base import EverlogError
from everlog.streams.refusal import Refused
from everlog.streams.replies import Answer, Reply
from everlog.streams.values import ErrorCode, Level

if TYPE_CHECKING:
    from everlog.streams.state_shard import StateShard


class ArchivedAnswers:
    """Who waits for the bucket; used by the shard's thread."""

    def __init__(self, shard: "StateShard") -> None:
        self._shard = shard
        self._waiting: dict[int, Callable[[Answer], None]] = {}
        self._next = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def check(self) -> None:
        """Refuse a write that can't be archived, or for which too many others wait already."""
        if self._shard.archive is None:
            raise Refused(ErrorCode.BAD_REQUEST, "there is no bucket to archive to", hint="use the level fsync")
        if len(self._waiting) >= self._shard.settings.waiting:
            raise Refused(ErrorCode.BUSY, "too many writes wait for the bucket", hint="try again later, or use fsync")

    def add(self, position: int, reply: Reply, answer: Callable[[Answer], None]) -> None:
        """Answer when everything up to a position, which is committed, is in the bucket."""
        archive = self._shard.archive
        assert archive is not None
        number = self._next = self._next + 1
        self._waiting[number] = answer
        told = Reply(reply.epoch, reply.position, Level.ARCHIVED, reply.result, reply.is_last)
        archive.want(position + 1, lambda end: self._shard.post(lambda: self._answer(number, told)))

    def _answer(self, number: int, reply: Reply) -> None:
        answer = self._waiting.pop(number, None)
        if answer is not None:
            answer(reply)

    def close(self, failure: EverlogError) -> None:
        """Tell everybody who waits that it will not be told."""
        waiting, self._waiting = list(self._waiting.values()), {}
        for answer in waiting:
            answer(self._shard.failure_of(failure))
