"""Writes to streams and key-value stores: who was answered before, what is decided, what goes into a record."""

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msgspec import msgpack

from everlog.streams import requests
from everlog.streams.decisions import check_rate, decide, kind_of
from everlog.streams.effects import (
    NO_POSITION,
    DropAll,
    DropUpload,
    Effect,
    Part,
    PutKey,
    PutMessage,
    Record,
    SetConfig,
)
from everlog.streams.forks import Forks
from everlog.streams.names import check_name
from everlog.streams.refusal import Refused, too_large
from everlog.streams.replies import Answer, Nothing, Reply, Result, Written
from everlog.streams.stream_state import MOST_POSITION, UPLOAD_US, StoredId, StreamState, UploadState, stored_id
from everlog.streams.upload_room import UploadRoom
from everlog.streams.values import ErrorCode, Kind, Level

if TYPE_CHECKING:
    from everlog.streams.state_shard import StateShard

MOST_ID_BYTES = 128
MOST_BATCH = 10_000  # writes in a batch; more are refused
_IDLE_UPLOAD_US = 60_000_000  # an upload that nothing is added to for so long gives way to others
MOST_DELETED = 100_000  # seqs that a request names; each is looked for, and all others wait meanwhile
_IDS = "SELECT id, position, time_us, previous, seq, count, seqs FROM ids ORDER BY position"
_UPLOADS = "SELECT upload, count(*), sum(length(data)), min(time_us) FROM parts GROUP BY upload"

Reach = Callable[[Answer], None]


class Writes:
    """The writing requests of a shard."""

    def __init__(self, shard: "StateShard") -> None:
        self._shard = shard
        self._forks = Forks(shard, self)
        self.uploading = UploadRoom()

    def handle(self, call: requests.Call, answer: Reach) -> None:
        """Take a write."""
        request = call.request
        if type(request) is requests.Set:
            state = self._shard.views.find(request.stream)
            if state is not None and state.is_simple and _is_simple(request):
                self._append(state, request, answer)
                return
        if isinstance(request, requests.Upload):
            self._upload(request, answer)
        elif isinstance(request, requests.Configure):
            self._configure(call, request, answer)
        elif isinstance(request, requests.Remove):
            self._remove(call, request, answer)
        elif isinstance(request, requests.Fork):
            self._forks.handle(request, answer)
        elif isinstance(request, requests.Batch):
            self._batch(call, request, answer)
        else:
            self._write(call, request, [request], answer)

    def _append(self, state: StreamState, request: requests.Set, answer: Reach) -> None:
        """Append a message to a stream without limits: what most writes are."""
        shard, message, seq = self._shard, request.message, state.last_seq + 1
        size = len(message.value or b"")
        if size > shard.settings.max_message_bytes:
            raise too_large(size, shard.settings.max_message_bytes)
        effect = PutMessage(seq, message.value)
        record = Record(
            shard.epoch,
            state.position,
            shard.now(),
            seq,
            state.messages + 1,
            state.bytes + size,
            [effect],
            None,
            seq,
            1,
        )
        shard.decided(state, record, request.level, answer)

    def _batch(self, call: requests.Call, request: requests.Batch, answer: Reach) -> None:
        if not 1 <= len(request.writes) <= MOST_BATCH:
            raise Refused(ErrorCode.BAD_REQUEST, f"a batch has 1 to {MOST_BATCH} writes")
        for write in request.writes:
            if write.stream != request.stream:
                raise Refused(
                    ErrorCode.BAD_REQUEST, f"a batch for {request.stream} has a write to {write.stream}",
                    hint="a batch is for one stream",
                )  # fmt: skip
        self._write(call, request, list(request.writes), answer)

    def _write(self, call: requests.Call, request: Any, writes: list[Any], answer: Reach) -> None:
        shard = self._shard
        if sum(len(write.seqs) for write in writes if isinstance(write, requests.Delete)) > MOST_DELETED:
            hint = "delete_all with an end_seq, or several requests"
            raise Refused(ErrorCode.BAD_REQUEST, f"more than {MOST_DELETED} seqs to delete at once", hint=hint)
        kind = next((kind for write in writes if (kind := kind_of(write)) is not None), None)
        state = self.state_for(request.stream, kind)
        if self._is_answered(call, state, request, answer):
            self._drop_uploads(state, writes)
            return
        now_us = shard.now()
        self.load_uploads(state)
        draft = shard.draft(state)
        try:
            for write in writes:
                decide(draft, state, write, now_us)
            if state.config.max_rate:
                check_rate(state, len(writes), now_us)
        except Refused:
            self._drop_uploads(state, writes)
            raise
        if not draft.effects and (request.message_id is None or _is_unborn(state)):  # no record, which would make one
            facts = (draft.last_seq, now_us, state.position, state.position)
            shard.when_settled(state, lambda: answer(shard.reply(Written(*facts, count=0))), answer)
            return
        if draft.effects and _is_unborn(state):
            draft.effects.insert(0, SetConfig(state.kind, state.config))
        record = draft.record(now_us, request.message_id, is_batch=isinstance(request, requests.Batch))
        self.take(state, record, request.level, answer)

    def take(
        self, state: StreamState, record: Record, level: Level, answer: Reach | None, result: Result | None = None
    ) -> None:
        """Take a decision, for a stream that may be new; the answer comes when the level is reached."""
        if level is Level.ARCHIVED:
            self._shard.archived.check()
        if self._shard.views.find(state.name) is not state:
            self._shard.views.add(state)
        for effect in record.effects:
            if isinstance(effect, PutMessage | PutKey | DropUpload) and effect.upload is not None:
                self.uploading.drop(state.name, effect.upload)
            elif isinstance(effect, DropAll) and effect.is_removed:
                self.uploading.drop_all(state.name)
        self._shard.decided(state, record, level, answer, result)

    def state_for(self, name: str, kind: Kind | None) -> StreamState:
        """Return a stream to write to; a new one is not yet known to anybody."""
        state = self._shard.views.find(name)
        if state is None:
            check_name(name)
            return StreamState(name, kind or Kind.STREAM)
        if state.is_hidden:
            raise Refused(ErrorCode.UNAVAILABLE, f"{name} is being copied", hint="try again later")
        if state.is_removed and kind is not None:
            state.kind = kind
        return state

    def close(self) -> None:
        """Let go of what is under way."""
        self._forks.close()

    def remove_unfinished(self) -> None:
        """Remove what an earlier owner did not finish."""
        self._forks.remove_unfinished()

    # ---- message ids ----

    def _is_answered(self, call: requests.Call, state: StreamState, request: Any, answer: Reach) -> bool:
        """Return whether a write was done before, by its message id, and answer it in that case; refuse a stale one."""
        message_id = request.message_id
        if message_id is None:
            return False
        if not message_id or len(message_id) > MOST_ID_BYTES:
            raise Refused(ErrorCode.BAD_REQUEST, f"a message id has 1 to {MOST_ID_BYTES} characters")
        self.load_ids(state)
        assert state.ids is not None
        known = state.ids.get(message_id)
        if known is not None:
            self._answer_again(state, known, request.level, answer)
            return True
        first = call.first_seen_position
        if first is not None and first < state.forgotten:
            raise Refused(
                ErrorCode.STALE_RETRY,
                f"{state.name} has forgotten the message ids of that time: it may be written or not",
                hint="read the stream to find out",
            )
        return False

    def _answer_again(self, state: StreamState, known: StoredId, level: Level, answer: Reach) -> None:
        shard = self._shard
        if level is Level.ARCHIVED:
            shard.archived.check()
        result = Written(known.seq, known.time_us, known.position, known.previous, True, known.seqs, known.count)
        reply = Reply(shard.epoch, known.position, Level.FSYNC, result)
        if level is Level.ARCHIVED:
            shard.when_settled(state, lambda: shard.archived.add(known.position, reply, answer), answer)
        else:
            shard.when_settled(state, lambda: answer(reply), answer)

    def load_ids(self, state: StreamState) -> None:
        """Read a stream's message ids from its file, unless all are too old to count."""
        if state.ids is not None:
            return
        state.ids = OrderedDict()
        if state.id_time_us:
            file = self._shard.views.file_of(state)
            if file is not None:
                state.forgotten = max(state.forgotten, file.rows("SELECT forgotten FROM stream")[0][0])
                for name, position, time_us, previous, seq, count, seqs in file.rows(_IDS) if file.has("ids") else ():
                    every = None if seqs is None else msgpack.decode(seqs, type=list[int])
                    state.ids[name] = StoredId(position, time_us, previous, seq, count, every)
            for position, record in state.records(MOST_POSITION):
                if record.message_id is not None:
                    state.ids[record.message_id] = stored_id(position, record)
        state.forget_ids()

    # ---- large values ----

    def _upload(self, request: requests.Upload, answer: Reach) -> None:
        shard = self._shard
        state = self.state_for(request.stream, request.kind)
        if state.kind is not request.kind:
            raise Refused(ErrorCode.WRONG_KIND, f"{state.name} is a {state.kind}", hint="use another name")
        self.load_uploads(state)
        assert state.uploads is not None
        known = state.uploads.get(request.upload, UploadState(0, 0, 0))
        if request.part < known.parts:  # sent again
            shard.when_settled(state, lambda: answer(shard.reply(Nothing())), answer)
            return
        if request.part > known.parts or not request.upload or len(request.upload) > MOST_ID_BYTES:
            raise Refused(ErrorCode.BAD_REQUEST, f"part {request.part} of an upload of {known.parts}", hint="in order")
        most = state.config.max_message_bytes or shard.settings.max_message_bytes
        if known.size + len(request.data) > most:
            raise too_large(known.size + len(request.data), most)
        if self.uploading.bytes + len(request.data) > shard.settings.upload_bytes:
            self._drop_idle(request)
        if self.uploading.bytes + len(request.data) > shard.settings.upload_bytes:
            raise Refused(ErrorCode.BUSY, "too many large values are being uploaded", hint="try again later")
        effects: list[Effect] = [Part(request.upload, request.part, request.data)]
        if _is_unborn(state):
            effects.insert(0, SetConfig(state.kind, state.config))
        self.uploading.set(state.name, request.upload, known.size + len(request.data), shard.now())
        self.take(state, self.record(state, effects), Level.FSYNC, answer, Nothing())

    def load_uploads(self, state: StreamState) -> None:
        """Read which large values were uploaded to a stream's file."""
        if state.uploads is not None:
            return
        state.uploads = {}
        file = self._shard.views.file_of(state)
        if file is not None and file.has("parts"):
            state.uploads = {name: UploadState(*facts) for name, *facts in file.rows(_UPLOADS)}
        for _, record in state.records(MOST_POSITION):
            for effect in record.effects:
                if isinstance(effect, Part):
                    known = state.uploads.setdefault(effect.upload, UploadState(0, 0, record.time_us))
                    if effect.part >= known.parts:
                        known.parts, known.size = effect.part + 1, known.size + len(effect.data)
                elif isinstance(effect, PutMessage | PutKey | DropUpload) and effect.upload is not None:
                    state.uploads.pop(effect.upload, None)
        for name, one in state.uploads.items():
            if not self.uploading.knows(state.name, name):
                self.uploading.set(state.name, name, one.size, one.time_us)

    def _drop_uploads(self, state: StreamState, writes: list[Any]) -> None:
        """Drop the values that were uploaded for writes that are not done: nobody will ask for them again."""
        names = [name for write in writes if (name := getattr(write, "upload", None)) is not None]
        if names:
            self.load_uploads(state)
            effects: list[Effect] = [DropUpload(name) for name in dict.fromkeys(names) if name in (state.uploads or ())]
            if effects:
                self.take(state, self.record(state, effects), Level.FSYNC, None)

    def _drop_idle(self, request: requests.Upload) -> None:
        """Drop the uploads that their callers do not go on with, such as those that are gone."""
        for stream, upload in self.uploading.idle(self._shard.now() - _IDLE_UPLOAD_US):
            state = self._shard.views.find(stream)
            if (stream, upload) == (request.stream, request.upload):
                continue
            if state is None:
                self.uploading.drop(stream, upload)
            else:
                self.take(state, self.record(state, [DropUpload(upload)]), Level.FSYNC, None)

    def stale_uploads(self, state: StreamState, due_us: int) -> tuple[list[Effect], int]:
        """Return what drops the uploads that nobody asked for in time, and when the next is due; 0 for never."""
        self.load_uploads(state)
        stale, later = [], []
        for name, upload in (state.uploads or {}).items():
            if upload.time_us + UPLOAD_US <= due_us:
                stale.append(name)
            else:
                later.append(upload.time_us + UPLOAD_US)
        return [DropUpload(name) for name in stale], min(later, default=0)

    # ---- whole streams ----

    def _configure(self, call: requests.Call, request: requests.Configure, answer: Reach) -> None:
        state = self.state_for(request.stream, request.kind)
        if self._is_answered(call, state, request, answer):
            return
        if state.kind is not request.kind:
            raise Refused(ErrorCode.WRONG_KIND, f"{state.name} is a {state.kind}", hint="use another name")
        config = request.config
        numbers = (config.max_messages, config.max_bytes, config.max_age_us, config.max_message_bytes, config.max_rate)
        if min(*numbers, config.dedup_ids, config.dedup_us) < 0:
            raise Refused(ErrorCode.BAD_REQUEST, "a limit is below 0", hint="0 is no limit")
        record = self.record(state, [SetConfig(request.kind, config)], request.message_id)
        self.take(state, record, request.level, answer)

    def _remove(self, call: requests.Call, request: requests.Remove, answer: Reach) -> None:
        state = self._shard.existing(request.stream)
        if self._is_answered(call, state, request, answer):
            return
        shard = self._shard
        facts = (shard.epoch, state.position, shard.now(), 0, 0, 0)
        record = Record(*facts, [DropAll(is_removed=True)], None, state.last_seq, state.messages)
        self.take(state, record, request.level, answer)

    def record(self, state: StreamState, effects: list[Effect], message_id: str | None = None) -> Record:
        """Return a record that leaves a stream's numbers as they are."""
        shard = self._shard
        previous = NO_POSITION if state.is_removed else state.position
        return Record(
            shard.epoch, previous, shard.now(), state.last_seq, state.messages, state.bytes, effects, message_id,
            state.last_seq,
        )  # fmt: skip


def _is_simple(request: requests.Set) -> bool:
    """Return whether a request is what most are: an append of a value and nothing else."""
    message = request.message
    return (
        request.seq is None
        and request.message_id is None
        and request.upload is None
        and request.expected_last_seq is None
        and message.headers is None
        and message.timestamp is None
        and not request.ttl_us
        and request.level is not Level.ARCHIVED
    )


def _is_unborn(state: StreamState) -> bool:
    return state.born == NO_POSITION or state.is_removed
