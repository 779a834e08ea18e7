"""From a run of arriving PUBLISHes to the log, to the acks and to the subscribers, batch by batch.

A run is appended (what is kept) or gathered for this turn of the event loop (what is not). Answers leave when the
log says that their messages are committed: `Held` carries the positions, and nothing else releases it. Committed
batches, and the gathered ones, are split by audience in one pass and written to each live subscriber in one call.
Invariant: everything below `routed[shard]` has been handed to every live subscriber of that shard.
"""

from collections import deque
from collections.abc import Callable
from typing import TypeAlias

import cython

from everlog.broker.audience import Audiences
from everlog.broker.delivering import Delivering
from everlog.broker.persistence import Persistence
from everlog.broker.ports import Log, Sink
from everlog.broker.pulling import Pulling
from everlog.sessions import Session

if not cython.compiled:
    from everlog.base import NOT_KEPT, PublishRun, RecordBuilder, TopicTable
    from everlog.base.memory import pointer, u32s
    from everlog.broker.keep import Keep

_READ_BYTES = 4 << 20
_GATHERED_BYTES = 1 << 20  # gathered messages are routed at once beyond this
_GATHERED_TOPICS = 100_000  # the gathered batches' own names are forgotten beyond this
_GATHERED_NAME_BYTES = 8 << 20  # or beyond this

# Answers, and how many of them are PUBACKs, that wait until the shards have committed up to these offsets.
Held: TypeAlias = tuple[Sink, bytes, int, list[tuple[int, int]]]


class Router:
    """Owns the way of a message through the broker; one thread."""

    def __init__(
        self,
        log: Log,
        table: TopicTable,
        audiences: Audiences,
        keep: Keep,
        soon: Callable[[Callable[[], None]], object],
        now_us: Callable[[], int],
    ) -> None:
        self.log = log
        self.table = table
        self.keep = keep
        self.now_us = now_us
        self.routed = [shard.committed for shard in log.shards]
        self.delivering = Delivering(table, audiences, now_us)
        self.pulling = Pulling(log, self.delivering, self.routed, soon)
        self.held_bytes = 0
        self.max_unwritten_bytes = 64 << 20
        self.committing = False  # the router will look by itself: nobody need tell it of a commit
        self.behind = False  # more waits to be written than should
        self.messages_in = 0
        self.messages_kept = 0
        self._soon = soon
        self._shards = list(log.shards)
        self._held: deque[Held] = deque()
        self._gathered = RecordBuilder()
        self._gathered_offset = 0
        self._turn_asked = False
        self._now = 0  # the time of the turn that is asked for
        self._saving: Persistence | None = None
        self._saves = 0  # how often commits wait for packet ids to be stored
        self.ids_ahead = False  # QoS 2 messages were appended whose ids are to be stored before them

    # The way in

    def publish(
        self,
        run: PublishRun,
        sink: Sink | None = None,
        answers: bytes = b"",
        count: int = 0,
        publisher: Session | None = None,
        known: int = 0,
    ) -> list[tuple[int, int]]:
        """Take a run in; `answers`, `count` of them PUBACKs, go to `sink` when all that is kept is committed.

        For each shard that keeps some of it: its number, and the offset that it ends at now. A `publisher` must not
        get its own messages back. Of the run, `known` came before and may still wait for their commit.
        """
        self.messages_in += run.stop - run.start
        if not self._turn_asked:  # before anything can fail: the time is this turn's, and must not outlive it
            self._turn_asked = True
            self._now = self.now_us()
            self._soon(self._turn)
        positions: list[tuple[int, int]] = []
        if self.keep.extend():
            kept = self._keep(run, positions, publisher)
            self.messages_kept += kept
            if kept < run.stop - run.start:
                self._gather(run, self.keep.routes, publisher)
        else:
            self._gather(run, None, publisher)
        if sink is not None and answers:
            awaited = positions
            if known:
                awaited = [
                    (number, shard.end) for number, shard in enumerate(self._shards) if shard.end > shard.committed
                ]
            if awaited or sink.held:  # [MQTT-4.6.0-2] answers of one client leave in the order of its PUBLISHes
                self._held.append((sink, answers, count, awaited))
                self.held_bytes += len(answers)
                sink.held += 1
            else:
                sink.answer(answers, count)
        return positions

    def _keep(self, run: PublishRun, positions: list[tuple[int, int]], publisher: Session | None) -> int:
        """Append what is kept of a run; how many that is."""
        routes = self.keep.routes
        first, last = 0, len(self._shards)
        if run.stop - run.start == 1:  # one message is in one shard: the others need not look for it
            topic = u32s(run.columns.topics)[run.start]
            first = pointer(routes)[4 * topic + (pointer(run.columns.flags)[run.start] >> 1 & 3)]
            if first == NOT_KEPT:
                return 0
            last = first + 1
        kept = 0
        for number in range(first, last):
            shard = self._shards[number]
            taken = shard.append(run.columns, run.start, run.stop, self._now, self.table, routes, number)
            if taken:
                kept += taken
                end = shard.end
                positions.append((number, end))
                if publisher is not None:
                    floor = publisher.lag.get(number, self.routed[number])
                    publisher.published(number, end - taken, end, floor)
        return kept

    def _gather(self, run: PublishRun, routes: bytearray | None, publisher: Session | None) -> int:
        """Take what is not kept of a run; with this turn's end, or before, it is routed."""
        builder = self._gathered
        taken = builder.append(run.columns, run.start, run.stop, self._now, self.table, routes, NOT_KEPT)
        if publisher is not None and taken:
            end = self._gathered_offset + len(builder)
            publisher.published(NOT_KEPT, end - taken, end, self._gathered_offset)
        if builder.size > _GATHERED_BYTES:
            self._route_gathered()
        return 0

    def _turn(self) -> None:
        """Once in each turn of the event loop: commit what was appended, route what was gathered."""
        self._turn_asked = False
        self.behind = self.is_behind()
        if self.ids_ahead and self._saving is not None:
            self.ids_ahead = False
            self._saves += 1
            self._saving.when_durable(self._ids_saved)
        elif self._saves == 0:
            self._commit()
        self._route_gathered()

    def _ids_saved(self) -> None:
        """QoS 2 packet ids are stored: now their messages may be committed."""
        self._saves -= 1
        if self._saves == 0 and not self.ids_ahead:  # else what came since waits for its own ids, in a turn to come
            self._commit()

    def _commit(self) -> int:
        self.committing = True
        for shard in self._shards:
            if shard.end > shard.committed:
                shard.commit_here()
        self.committing = False  # before the look at what is committed, so that no commit goes unseen
        self.committed()
        return 0

    def log_failed(self) -> list[Sink]:
        """A shard can't be written any more: who waits for an answer will not get it, and must not."""
        waiting = [held[0] for held in self._held]
        self._held.clear()
        self.held_bytes = 0
        return waiting

    @property
    def is_idle(self) -> bool:
        """Whether nothing that was taken in waits for a turn, for packet ids to be stored, or to be answered."""
        return not (self._turn_asked or self.ids_ahead or self._saves or self._held)

    def is_behind(self) -> bool:
        """Whether more was appended than a shard should have before it."""
        return max([shard.pending_bytes for shard in self._shards]) > self.max_unwritten_bytes

    def attach(self, persistence: Persistence) -> None:
        """From now on say there which stored sessions have moved."""
        self._saving = persistence
        self.delivering.moved = persistence.moved

    def _route_gathered(self) -> int:
        builder = self._gathered
        if builder.count == 0:
            return 0
        records = builder.take(self._gathered_offset)
        self._gathered_offset += len(records)
        if builder.table.count > _GATHERED_TOPICS or builder.table.name_bytes > _GATHERED_NAME_BYTES:
            builder.start_segment()
        self.delivering.route(records, 0, NOT_KEPT)
        return 0

    def ends(self) -> tuple[int, ...]:
        """Where a subscription that is made now begins in each shard."""
        return tuple([shard.end for shard in self._shards])

    # The way out

    def committed(self) -> None:
        """Something may have been committed: route the new batches, release answers."""
        ends = []
        for number in range(len(self._shards)):
            end = self._shards[number].committed
            ends.append(end)
            if self.routed[number] < end:
                self._route(number, end)
        held = self._held
        while held:
            sink, answers, count, positions = held[0]
            for number, end in positions:
                if ends[number] < end:
                    return
            held.popleft()
            self.held_bytes -= len(answers)
            sink.held -= 1
            sink.answer(answers, count)

    def _route(self, number: int, end: int) -> int:
        """Hand what a shard has committed up to `end` to whoever is connected."""
        shard = self._shards[number]
        while self.routed[number] < end:
            at = self.routed[number]
            if len(self.delivering.audiences) == 0:
                self.routed[number] = end
                break
            for records in shard.read(at, _READ_BYTES):
                self.delivering.route(records, max(0, at - records.base_offset), number)
                self.routed[number] = at = records.end_offset
                if at >= end:
                    break
            else:
                if self.routed[number] == at:  # what was committed can't be read: nobody waits for it for ever
                    self.routed[number] = end
        return 0
