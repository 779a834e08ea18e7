"""A state shard in memory that knows a few requests, for tests of what stands before it: bus, protocol, client."""

from collections.abc import Callable, Iterator
from typing import Any

from everlog.base import EverlogError
from everlog.persist import Begin
from everlog.streams import (
    Answer,
    Call,
    CaughtUp,
    ErrorCode,
    Failure,
    FeedBootstrap,
    FeedEvent,
    FeedEvents,
    FeedReset,
    FeedResume,
    Get,
    GetAll,
    Level,
    Messages,
    MessageSet,
    Reply,
    Set,
    StoredMessage,
    Written,
)


class MemoryShard:
    """Messages by stream, and all events; `answer` is called in `turn`, as after a commit."""

    def __init__(self, epoch: int = 1) -> None:
        self.epoch = epoch
        self.streams: dict[str, list[StoredMessage]] = {}
        self.events: dict[str, list[FeedEvent]] = {}
        self.ids: dict[str, Written] = {}
        self.handled: list[Call] = []
        self.turns = 0
        self.series_closed = 0
        self.horizon = -1
        self._end = 0
        self._due: list[tuple[Callable[[Answer], None], Answer]] = []
        self._new: list[FeedEvent] = []
        self._followed: dict[str, Any] = {}
        self._feed: Callable[[list[FeedEvent]], None] | None = None

    def handle(self, call: Call, answer: Callable[[Answer], None]) -> None:
        self.handled.append(call)
        request = call.request
        if isinstance(request, Set):
            self._due.append((answer, self._reply(self._set(request))))
        elif isinstance(request, Get):
            found = [one for one in self.streams.get(request.stream, []) if one.seq == request.seq]
            answer(self._reply(Messages(found)) if found else Failure(ErrorCode.NOT_FOUND, "no such message"))
        else:
            raise NotImplementedError(request)

    plain = None

    def answer_plain(self, prefix: bytes, send: object) -> None:
        pass

    def handle_series(self, call: Call, answer: Callable[[Iterator[Answer] | Answer], None]) -> None:
        self.handled.append(call)
        answer(self._series(call))

    def turn(self) -> None:
        self.turns += 1
        due, self._due = self._due, []
        for answer, reply in due:
            answer(reply)
        new, self._new = [one for one in self._new if one.stream in self._followed], []
        if new and self._feed is not None:
            self._feed(new)

    def tick(self) -> None:
        pass

    @property
    def is_idle(self) -> bool:
        return not self._due

    @property
    def unfiled(self) -> tuple[int, int]:
        return 0, 0

    def post_failure(self, error: EverlogError) -> None:
        due, self._due = self._due, []
        for answer, _ in due:
            answer(Failure(ErrorCode.UNAVAILABLE, error.message))

    def follow(self, followed: dict[str, Any], feed: Callable[[list[FeedEvent]], None] | None) -> None:
        self._followed, self._feed = followed, feed

    def close(self) -> None:
        self.turn()

    def _set(self, request: Set) -> Written:
        known = self.ids.get(request.message_id or "")
        if known is not None:
            return known
        kept = self.streams.setdefault(request.stream, [])
        events = self.events.setdefault(request.stream, [])
        position, self._end = self._end, self._end + 1
        message = StoredMessage(len(kept) + 1, 1, request.message.value, request.message.headers, position=position)
        kept.append(message)
        previous = events[-1].position if events else -1
        events.append(FeedEvent(request.stream, self.epoch, position, previous, [MessageSet(message)]))
        self._new.append(events[-1])
        done = Written(message.seq, 1, position, previous)
        self.ids[request.message_id or f"none {position}"] = done
        return done

    def _series(self, call: Call) -> Iterator[Answer]:
        request = call.request
        assert isinstance(request, GetAll | FeedBootstrap | FeedResume)
        kept = list(self.streams.get(request.stream, []))
        events = list(self.events.get(request.stream, []))
        try:
            if isinstance(request, GetAll):
                wanted = [one for one in kept if one.seq >= request.start_seq][: request.limit]
                for at in range(0, len(wanted), 10):
                    yield self._reply(Messages(wanted[at : at + 10]), is_last=False)
                yield self._reply(Messages([]))
                return
            if isinstance(request, FeedResume) and request.epoch == self.epoch and request.position >= self.horizon:
                missed = [one for one in events if one.position > request.position]
                for at in range(0, len(missed), 10):
                    yield self._reply(FeedEvents(missed[at : at + 10]), is_last=False)
            else:
                if isinstance(request, FeedResume):
                    yield self._reply(FeedReset("horizon"), is_last=False)
                for at in range(0, len(kept), 10):
                    yield self._reply(Messages(kept[at : at + 10]), is_last=False)
            yield self._reply(CaughtUp(events[-1].position if events else -1, len(kept)))
        finally:
            self.series_closed += 1

    def _reply(self, result: object, is_last: bool = True) -> Reply:
        return Reply(self.epoch, self._end - 1, Level.FSYNC, result, is_last)  # type: ignore[arg-type]


class MemoryShards:
    """Opens shards in memory; they outlive the server."""

    def __init__(self, shards: int = 1) -> None:
        self.shards = shards
        self.opened: dict[int, MemoryShard] = {}

    def open(self, shard: int) -> Begin:
        return lambda post, failed: self.opened.setdefault(shard, MemoryShard())
