"""A state shard as its owner runs it: decides, appends effects, answers and feeds when they are committed.

All on one thread, by turns (`ports.Shard`). Requests are decided as they come, on the state after all that was decided
before; `turn` appends what was decided and asks for one commit. A failed commit ends the shard: what it knows is ahead
of what is written, so it refuses everything, and its server opens it again.
"""

import os
import shutil
import threading
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from msgspec.msgpack import encode

from everlog.base import EverlogError, Fenced, StorageError, Unavailable, UsageError
from everlog.streams import requests
from everlog.streams.archived_answers import ArchivedAnswers
from everlog.streams.draft import Draft
from everlog.streams.effects import Record, encode_record
from everlog.streams.feed import Feed, event_of
from everlog.streams.feed_events import FeedEvent
from everlog.streams.fresh import Appended, Asked
from everlog.streams.housekeeping import Housekeeping
from everlog.streams.plain_codec import Packer
from everlog.streams.plain_requests import PlainRequests
from everlog.streams.ports import Archive, Clock, Journal
from everlog.streams.queues import Queues
from everlog.streams.reads import Reads, check_kind
from everlog.streams.refusal import Refused
from everlog.streams.replies import Answer, CaughtUp, Failure, Reply, Result, Written
from everlog.streams.shard_settings import ShardSettings
from everlog.streams.shard_tier import ShardTier
from everlog.streams.stream_file import StreamFile
from everlog.streams.stream_state import StreamState
from everlog.streams.tier import Tier
from everlog.streams.values import ErrorCode, Level
from everlog.streams.views import Views
from everlog.streams.waiting import OpenTurn, Waiting, take_early, take_reached, unanswered
from everlog.streams.writes import Writes

Answers = Callable[[Any], None]  # takes an Answer, or a series of them
Post = Callable[[Callable[[], None]], None]


class StateShard:
    """The owner of one state shard. `post` brings a call to the shard's thread; `run` does work on another one."""

    def __init__(
        self,
        journal: Journal,
        directory: str,
        clock: Clock,
        *,
        post: Post,
        run: Post,
        settings: ShardSettings | None = None,
        archive: Archive | None = None,
        on_failure: Callable[[EverlogError], None] = lambda failure: None,
        tier: Tier | None = None,
    ) -> None:
        self.settings = settings or ShardSettings()
        self._post = post
        self.journal = journal
        self.scratch = f"{directory}/scratch"  # for copies, which nobody needs after a restart
        shutil.rmtree(self.scratch, ignore_errors=True)
        os.makedirs(self.scratch)
        self.clock = clock
        self.archive = archive if tier is None else tier.archive
        self.epoch = journal.epoch
        self.failure: EverlogError | None = None
        self.on_failure = on_failure
        self.views = Views(directory, self.settings, run, self.post_failure)
        self.is_closed = False
        self.tier = None if tier is None else ShardTier(self, tier)
        self._turn = OpenTurn(journal.end, self.views.replay(journal))
        self.committed = journal.committed
        self._followed: dict[str, Any] = {}  # streams whose events are told
        self._feed: Callable[[list[FeedEvent]], None] | None = None
        self._waiting: deque[Waiting | Appended | Asked] = deque()  # appended and not committed
        self._later: deque[tuple[int, Callable[[], None], Answers]] = deque()  # reads that wait for a commit
        self._reached = -1  # the end of a commit that was reported while it was asked for, on the same thread
        self._asking = 0  # the thread that asks for a commit just now
        self.plain = PlainRequests(
            self._turn, self.views.plain_views(), self.settings, self.epoch, clock.now_us, self._waiting, self._later
        )
        self.plain.committed = self.committed
        self._answer_plain: Callable[[list[Asked]], None] = lambda answered: None
        self._reads = Reads(self.settle, self.settings, self.scratch)
        self._following = Feed(journal, self.settle, self.settings)
        self.archived = ArchivedAnswers(self)
        self.writes = Writes(self)
        self._queues = Queues(self)
        self._housekeeping = Housekeeping(self, run)
        self.writes.remove_unfinished()
        self.turn()

    # ---- requests ----

    def handle(self, call: requests.Call, answer: Callable[[Answer], None]) -> None:
        """Take a request that has one answer."""
        request = call.request
        try:
            self._check(call)
            if self.tier is not None and self.tier.holds(self.handle, call, answer):
                return
            if type(request) in _WRITES:
                self.writes.handle(call, answer)
            elif isinstance(request, _QUEUE_REQUESTS):
                self._queues.handle(request, answer)
            elif isinstance(request, _READS):
                state = self.existing(request.stream)
                self.when_settled(state, partial(self._read, state, request, answer), answer)
            else:
                raise Refused(ErrorCode.BAD_REQUEST, "this request has a series of answers")
        except EverlogError as error:
            answer(self.failure_of(error))

    def handle_series(self, call: requests.Call, answer: Callable[[Iterator[Answer] | Answer], None]) -> None:
        """Take a request that has a series of answers: a generator of them."""
        request = call.request
        try:
            self._check(call)
            if self.tier is not None and self.tier.holds(self.handle_series, call, answer):
                return
            state = self.views.find(request.stream)
            if state is not None and (state.is_removed or state.is_hidden):
                state = None
            if state is None and not isinstance(request, requests.FeedBootstrap | requests.FeedResume):
                raise not_found(request.stream)
            self.when_settled(state, lambda: answer(self._series(state, request)), answer)
        except EverlogError as error:
            answer(self.failure_of(error))

    def _check(self, call: requests.Call) -> None:
        if self.failure is not None:
            raise self.failure
        if self.is_closed:
            raise Unavailable("the shard is closed")
        if call.seen_epoch > self.epoch or (call.seen_epoch == self.epoch and call.seen_position >= self._turn.next):
            raise Refused(
                ErrorCode.BEHIND,
                f"epoch {self.epoch} ends at {self._turn.next}, and the caller has seen more",
                hint="ask the owner",
            )
        if len(self._waiting) + len(self._later) > self.settings.waiting:
            raise Refused(ErrorCode.BUSY, "too many requests wait for a commit", hint="try again later")

    def failure_of(self, error: EverlogError) -> Failure:
        """Return what a caller gets for an error."""
        if isinstance(error, Refused):
            return error.failure(self.epoch)
        code = ErrorCode.STORAGE
        if isinstance(error, Fenced):
            code = ErrorCode.FENCED
        elif isinstance(error, UsageError):
            code = ErrorCode.BAD_REQUEST
        elif isinstance(error, Unavailable):
            code = ErrorCode.UNAVAILABLE
        return Failure(code, error.message, error.hint, self.epoch)

    # ---- reads ----

    def existing(self, name: str) -> StreamState:
        """Return a stream that is there for callers."""
        state = self.views.find(name)
        if state is None or state.is_removed or state.is_hidden:
            raise not_found(name)
        return state

    def settle(self, state: StreamState) -> StreamFile | None:
        """Apply what is committed of a stream, and return its file."""
        if state.pending:
            self.views.apply(state, self.committed)
        return self.views.file_of(state)

    def when_settled(self, state: StreamState | None, work: Callable[[], None], answer: Answers) -> None:
        """Do work now, or when all that was decided so far for a stream is committed."""
        if state is None or state.last < self.committed:
            work()
        else:
            self._later.append((state.last + 1, work, answer))

    def _read(self, state: StreamState, request: Any, answer: Callable[[Answer], None]) -> None:
        reads = self._reads
        if state.is_removed:
            raise not_found(state.name)
        if isinstance(request, requests.KvGet):
            result = reads.kv_get(state, request)
        elif isinstance(request, requests.Get):
            result = reads.get(state, request)
        elif isinstance(request, requests.ReadValue):
            result = reads.read_value(state, request)
        else:
            result = reads.info(state, self._queues.names(state))
        answer(self.reply(result))

    def _series(self, state: StreamState | None, request: Any) -> Iterator[Answer]:
        """Yield replies to a request that has many; an error ends them."""
        try:
            for result in self._results(state, request):
                yield self.reply(result, is_last=getattr(result, "is_last", False) or isinstance(result, _ENDS))
        except EverlogError as error:
            yield self.failure_of(error)

    def _results(self, state: StreamState | None, request: Any) -> Iterator[Result]:
        if isinstance(request, requests.FeedBootstrap | requests.FeedResume) and request.kind and state is not None:
            check_kind(state, request.kind)
        if isinstance(request, requests.FeedBootstrap):
            return self._following.bootstrap(state, request.prefix, request.chunk_bytes)
        if isinstance(request, requests.FeedResume):
            return self._following.resume(state, request.epoch, request.position, request.prefix, request.chunk_bytes)
        assert state is not None
        if isinstance(request, requests.GetAll):
            return self._reads.get_all(state, request)
        if isinstance(request, requests.KvKeys):
            return self._reads.keys(state, request)
        if isinstance(request, requests.Download):
            return self._reads.download(state, request)
        raise Refused(ErrorCode.BAD_REQUEST, "this request has one answer")

    def reply(self, result: Result, *, is_last: bool = True) -> Reply:
        """Return a reply as of all that is committed."""
        return Reply(self.epoch, self.committed - 1, Level.FSYNC, result, is_last)

    # ---- deciding ----

    def now(self) -> int:
        """Return the time for a record: never below that of any before it."""
        self._turn.time_us = max(self._turn.time_us, self.clock.now_us())
        return self._turn.time_us

    @property
    def time_us(self) -> int:
        """The time of the last record."""
        return self._turn.time_us

    def draft(self, state: StreamState) -> Draft:
        """Return a draft of writes to a stream."""
        return Draft(state, self.views.file_of, self.epoch, self.settings.max_message_bytes)

    def decided(
        self,
        state: StreamState,
        record: Record,
        level: Level,
        answer: Callable[[Answer], None] | None,
        result: Result | None = None,
    ) -> None:
        """Take a decision: it is appended with the others of this turn, and answered when its level is reached."""
        data = encode_record(record)
        turn = self._turn
        position = turn.next
        before = None
        if self._feed is not None and state.name in self._followed and record.is_visible:
            before = (state.epoch, state.last_seq)
            state.unfed += 1
        self.views.take(state, position, record, len(data))
        turn.add(state.name, data, len(data), Waiting(position, state, record, level, answer, result, before))
        turn.has_early = turn.has_early or level is Level.MEMORY
        if state.next_due_us:
            self._housekeeping.be_due(state)

    # ---- turns ----

    def turn(self) -> None:
        """Append what was decided since the last turn, and ask for one commit of it all."""
        turn = self._turn
        if not turn.decided or self.failure is not None:
            return
        has_early, expected = turn.has_early, turn.next - len(turn.decided)
        self.views.count(turn.pending_rows, turn.pending_bytes)
        turn.pending_rows = turn.pending_bytes = 0
        records, decided = turn.take()
        self._waiting.extend(decided)
        try:
            if self.journal.append(records) != expected:
                raise StorageError("somebody else appended to the journal", hint="one owner may have it open")
        except EverlogError as error:
            self._fail(error)
            return
        if has_early:
            self._answer_early(decided)
        self._reached, self._asking = -1, threading.get_ident()
        self.journal.commit(self._commit_done, self._commit_failed)
        self._asking = 0
        if self._reached >= 0:
            self._on_commit(self._reached)

    def _answer_early(self, decided: list[Waiting | Appended | Asked]) -> None:
        """Answer what asked for no more than memory, and tell followers of it if they know all before it."""
        plain, early = take_early(decided, self.plain.packer, self.epoch, Level.MEMORY)
        events = []
        for one in early:
            if one.before is not None and one.state.unfed == 1:
                events.append(self._event(one))
            if one.answer is not None:
                self._answer(one, Level.MEMORY)
                one.answer = None
        if plain:
            self._answer_plain(plain)
        self._tell(events)

    def _event(self, one: Waiting) -> FeedEvent:
        assert one.before is not None
        one.state.unfed -= 1
        before, one.before = one.before, None
        return event_of(one.state.name, one.position, one.record, before, self.settings.value_bytes)

    def _tell(self, events: list[FeedEvent]) -> None:
        if events and self._feed is not None:
            self._feed(events)

    def _commit_done(self, committed: int) -> None:
        if self._asking and threading.get_ident() == self._asking:
            self._reached = committed
        else:
            self._post(partial(self._on_commit, committed))

    def _commit_failed(self, error: EverlogError) -> None:
        self._post(partial(self._fail, error))

    def _on_commit(self, committed: int) -> None:
        """Answer and feed what is committed now, do what waited for it, and apply what has gathered."""
        if self.failure is not None or committed <= self.committed:
            return
        self.committed = self.plain.committed = committed
        plain, others, fed = take_reached(self._waiting, committed, self.plain.packer, self.epoch, Level.FSYNC)
        if fed:
            self._tell([self._event(one) for one in fed])
        if plain:
            self._answer_plain(plain)
        for one in others:
            self._answer(one, Level.ARCHIVED if one.level == Level.ARCHIVED else Level.FSYNC)
        while self._later and self._later[0][0] <= committed:
            _, work, answer = self._later.popleft()
            try:
                work()
            except EverlogError as error:
                answer(self.failure_of(error))
        try:
            self.views.apply_ripe(committed)
        except EverlogError as error:
            self._fail(error)

    def _answer(self, one: Waiting, level: Level) -> None:
        """Answer a request whose level was reached, or of which only the bucket is missing."""
        assert one.answer is not None
        record, result = one.record, one.result
        if result is None:
            facts = (record.seq, record.time_us, one.position, record.previous, False, record.seqs, record.count)
            result = Written(*facts)
        reply = Reply(self.epoch, one.position, level, result)
        if level is Level.ARCHIVED:
            self.archived.add(one.position, reply, one.answer)
        else:
            one.answer(reply)

    def _fail(self, error: EverlogError) -> None:
        """End the shard: everybody who waits is told, and everything is refused."""
        if self.failure is not None:
            return
        self.failure = error
        self.plain.is_open = False
        waiting = [*self._waiting, *self._turn.take()[1]]
        self._waiting.clear()
        failure = self.failure_of(error)
        plain = unanswered(waiting)
        for asked in plain:
            asked.data = self.plain.packer.framed(asked.id, encode(failure))
        if plain:
            self._answer_plain(plain)
        for one in waiting:
            if isinstance(one, Waiting) and one.answer is not None:
                one.answer(failure)
        later = list(self._later)
        self._later.clear()
        for _, _, answer in later:
            answer(self.failure_of(error))
        if self.tier is not None:
            self.tier.give_up()
        self.archived.close(error)
        self.on_failure(error)

    # ---- the rest ----

    @property
    def is_idle(self) -> bool:
        """Whether nobody waits for a commit."""
        is_waiting = len(self.archived) or (self.tier is not None and self.tier.is_waiting)
        return not (self._waiting or self._later or self._turn.decided) and not is_waiting

    @property
    def unfiled(self) -> tuple[int, int]:
        """How many records are not yet in the files of their streams, and their bytes."""
        return self.views.pending_rows, self.views.pending_bytes

    def follow(self, followed: dict[str, Any], feed: Callable[[list[FeedEvent]], None] | None) -> None:
        """Call `feed` with the events of the streams that are `followed` when they are written."""
        self._followed, self._feed = followed, feed
        self.plain.followed = {} if feed is None else followed

    def answer_plain(self, prefix: bytes, send: Callable[[list[Asked]], None]) -> None:
        """Call `send` with plain requests that have an answer."""
        self.plain.packer, self._answer_plain = Packer(prefix), send

    def tick(self) -> None:
        """Do what time demands."""
        if self.failure is None and not self.is_closed:
            try:
                self._housekeeping.tick()
            except EverlogError as error:
                self._fail(error)

    def post(self, call: Callable[[], None]) -> None:
        """Have a call made on the shard's thread; from any thread."""
        self._post(call)

    def post_failure(self, error: EverlogError) -> None:
        """End the shard; from any thread."""
        self._post(partial(self._fail, error))

    def snapshot(self, name: str, path: str) -> int:
        """Write a stream's committed state as a new SQLite file, and return the position that it is as of."""
        return self.copy_to(self.existing(name), path)

    def copy_to(self, state: StreamState, path: str) -> int:
        """Write a stream as a new SQLite file, and return the position that it is as of."""
        return self._reads.copy_to(state, path)

    def load_ids(self, state: StreamState) -> None:
        """Have a stream's message ids in memory."""
        self.writes.load_ids(state)

    def abandon(self) -> None:
        """Let go of the files as they are: the journal failed or is another owner's, and nothing more is written."""
        self.is_closed, self.plain.is_open = True, False
        self.writes.close()
        if self.tier is not None:
            self.tier.close()
        self.views.close()

    def close(self) -> None:
        """Commit and apply what waits, so that the next owner finds it in files, and close the journal."""
        if self.is_closed:
            return
        self.turn()
        self.is_closed, self.plain.is_open = True, False
        try:
            if self.tier is not None:
                self.tier.close()
            self.journal.close()
            if self.failure is None:
                self._on_commit(self.journal.committed)
            self.archived.close(Unavailable("the shard was closed before it was archived", hint="ask again"))
            self._housekeeping.close()
        finally:
            self.writes.close()
            self.views.close()


def not_found(name: str) -> Refused:
    """Return the refusal of a request on a stream that is not there."""
    return Refused(ErrorCode.NOT_FOUND, f"there is no {name!r}", hint="write to it, or configure it, first")


_WRITES = {
    requests.Set, requests.Delete, requests.DeleteAll, requests.KvPut, requests.KvCreate, requests.KvCas,
    requests.KvDelete, requests.Batch, requests.Configure, requests.Remove, requests.Upload, requests.Fork,
}  # fmt: skip
_QUEUE_REQUESTS = (
    requests.QueueConfigure, requests.QueueRemove, requests.QueueTake, requests.QueueAck, requests.QueueNack,
    requests.QueueLag, requests.QueueDead, requests.QueueRevive,
)  # fmt: skip
_ENDS = CaughtUp
_READS = (requests.Get, requests.KvGet, requests.ReadValue, requests.Info)
