"""Forks: a copy of a stream or key-value store, as of one position, under a new name.

The source's file is copied first. Its rows become records of the new stream, one after the other as they are committed;
the new stream is hidden until the last one, so nobody ever sees half a copy. One that was not finished is removed when
the shard is opened again.
"""

import os
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from everlog.base import EverlogError
from everlog.streams import requests
from everlog.streams.effects import DropAll, Effect, Part, PutKey, PutMessage, Record, SetConfig
from everlog.streams.fresh import size_of
from everlog.streams.names import check_name
from everlog.streams.refusal import Refused
from everlog.streams.replies import Answer
from everlog.streams.row_messages import message_of
from everlog.streams.stored_rows import ENTRIES, MESSAGES, entry_of
from everlog.streams.stream_file import StreamFile
from everlog.streams.stream_state import StreamState
from everlog.streams.values import ErrorCode, Kind, Level

if TYPE_CHECKING:
    from everlog.streams.state_shard import StateShard
    from everlog.streams.writes import Writes

CHUNK_BYTES = 256 << 10
_ROWS = 64
_MOST_BYTES = 1 << 62

Reach = Callable[[Answer], None]
Step = tuple[list[Effect], int, int]  # effects, how many messages they add, and bytes


class Forks:
    """The copies that are being made."""

    def __init__(self, shard: "StateShard", writes: "Writes") -> None:
        self._shard = shard
        self._writes = writes
        self._under_way: list[Iterator[Step]] = []

    def handle(self, request: requests.Fork, answer: Reach) -> None:
        """Copy a stream to a new name."""
        shard = self._shard
        source = shard.existing(request.stream)
        check_name(request.target)
        known = shard.views.find(request.target)
        if known is not None and not known.is_removed:
            raise _exists(request.target)
        shard.when_settled(source, partial(self._begin, source, request, answer), answer)

    def _begin(self, source: StreamState, request: requests.Fork, answer: Reach) -> None:
        """Copy the source's file, and hide the new stream until it is whole."""
        shard = self._shard
        steps = self._steps(source, source.last_seq)
        self._under_way.append(steps)
        first = next(steps)  # the source is copied now
        target = shard.views.find(request.target) or StreamState(request.target, source.kind)
        if not target.is_removed and target.born >= 0:
            raise _exists(request.target)
        target.kind = source.kind
        facts = (source.config, source.last_seq)
        begun: list[Effect] = [SetConfig(source.kind, source.config, is_hidden=True), *first[0]]
        self._go(target, (begun, *first[1:]), steps, facts, request, answer)

    def _go(self, target: StreamState, step: Step, steps: Iterator[Step], facts: tuple[object, int],
            request: requests.Fork, answer: Reach) -> None:  # fmt: skip
        """Append a step, and the next one when it is committed; the last shows the stream."""
        following = next(steps, None)
        effects, messages, size = step
        if following is None:
            self._under_way.remove(steps)
            effects = [*effects, SetConfig(target.kind, facts[0])]  # type: ignore[arg-type]
            record = self._record(target, effects, messages, size, facts[1])
            self._writes.take(target, record, request.level, answer)
            return
        record = self._record(target, effects, messages, size, facts[1])
        on = partial(self._on, target, following, steps, facts, request, answer)
        self._writes.take(target, record, Level.FSYNC, on)

    def _on(self, target: StreamState, step: Step, steps: Iterator[Step], facts: tuple[object, int],
            request: requests.Fork, answer: Reach, reply: Answer) -> None:  # fmt: skip
        if not hasattr(reply, "result"):
            answer(reply)
            return
        try:
            self._go(target, step, steps, facts, request, answer)
        except EverlogError as error:
            answer(self._shard.failure_of(error))
        self._shard.post(self._shard.turn)

    def _record(self, target: StreamState, effects: list[Effect], messages: int, size: int, last_seq: int) -> Record:
        before = self._writes.record(target, [])
        total = (target.messages + messages, target.bytes + size)
        facts = (before.epoch, before.previous, before.time_us, last_seq, *total)
        return Record(*facts, effects, None, last_seq, total[0])

    def _steps(self, source: StreamState, last_seq: int) -> Iterator[Step]:
        """Yield the rows of a stream as effects, a chunk at a time; the first one comes after the file was copied."""
        shard = self._shard
        with tempfile.TemporaryDirectory(dir=shard.scratch, prefix="fork-") as directory:
            path = os.path.join(directory, "copy.db")
            shard.copy_to(source, path)
            file = StreamFile(path, source.name, source.born, source.kind, create=False)
            try:
                yield from self._copied(file, source.kind)
            finally:
                file.close()

    def _copied(self, file: StreamFile, kind: Kind) -> Iterator[Step]:
        effects: list[Effect] = []
        messages = size = pending = 0
        for one in self._rows(file, kind):
            value, upload = one.value, None
            if value is not None and len(value) > CHUNK_BYTES:
                upload = f"fork-{one.position}"
                for part, at in enumerate(range(0, len(value), CHUNK_BYTES)):
                    yield [*effects, Part(upload, part, value[at : at + CHUNK_BYTES])], messages, size
                    effects, messages, size, pending = [], 0, 0, 0
            facts = (one.headers, one.timestamp, one.expires_us, upload, one.size if upload else 0, one.time_us)
            kept = None if upload else value
            if kind is Kind.STREAM:
                effects.append(PutMessage(one.seq, kept, *facts))
            else:
                effects.append(PutKey(one.key, one.revision, kept, *facts))
            messages, size = messages + 1, size + size_of(effects[-1])  # type: ignore[arg-type]
            pending += len(kept or b"") + 64
            if pending >= CHUNK_BYTES:
                yield effects, messages, size
                effects, messages, size, pending = [], 0, 0, 0
        yield effects, messages, size

    def _rows(self, file: StreamFile, kind: Kind) -> Iterator[Any]:
        """Yield the messages or entries of a file, whole, a few at a time."""
        after = 0
        table, query, make = (
            ("messages", MESSAGES, message_of) if kind is Kind.STREAM else ("entries", ENTRIES, entry_of)
        )
        while rows := file.rows(f"SELECT rowid FROM {table} WHERE rowid > ? ORDER BY rowid LIMIT {_ROWS}", (after,)):
            for (after,) in rows:
                yield make(file.rows(f"{query} WHERE rowid = ?2", (_MOST_BYTES, after))[0])

    def close(self) -> None:
        """Let go of the copies that are under way."""
        for steps in self._under_way:
            steps.close()  # type: ignore[attr-defined]
        self._under_way.clear()

    def remove_unfinished(self) -> None:
        """Remove the copies that an earlier owner did not finish."""
        shard = self._shard
        for name in shard.views.hidden():
            state = shard.views.find(name)
            if state is not None and state.is_hidden:
                facts = (shard.epoch, state.position, shard.now(), 0, 0, 0)
                shard.decided(state, Record(*facts, [DropAll(is_removed=True)]), Level.FSYNC, None)


def _exists(name: str) -> Refused:
    return Refused(ErrorCode.EXISTS, f"{name} exists", hint="choose another name")
