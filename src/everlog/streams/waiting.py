"""Records that were decided and wait to be as safe as their callers asked for."""

from collections.abc import Callable

from everlog.streams.effects import Record
from everlog.streams.replies import Answer, Result
from everlog.streams.stream_state import StreamState
from everlog.streams.values import Level


class Waiting:
    """A record that was decided, and who waits for it."""

    __slots__ = ("answer", "before", "level", "position", "record", "result", "state")

    def __init__(
        self,
        position: int,
        state: StreamState,
        record: Record,
        level: Level,
        answer: Callable[[Answer], None] | None,
        result: Result | None,
        before: tuple[int, int] | None,
    ) -> None:
        self.position = position
        self.state = state
        self.record = record
        self.level = level
        self.answer = answer
        self.result = result  # None for what a write is answered
        self.before = before  # the stream's (epoch, last seq) before it, if followers are told
