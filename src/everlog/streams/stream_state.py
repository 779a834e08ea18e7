"""A stream or key-value store as its owner knows it: the state after all that was appended, committed or not.

The file on disk is behind it by the records in `pending`; `overlay` has what those changed. Both are bounded by the
shard, which applies what has gathered.
"""

from collections import OrderedDict, deque
from typing import Any

import cython

from everlog.streams.effects import (
    NO_POSITION,
    DropAll,
    DropMessages,
    DropUpload,
    Part,
    PutKey,
    PutMessage,
    Record,
    SetConfig,
)
from everlog.streams.fresh import Fresh, FreshEffect
from everlog.streams.queue_state import QUEUE_EFFECTS, QueueState, take_effect
from everlog.streams.values import Config, Kind

if not cython.compiled:
    from everlog.streams.fresh import Appended
    from everlog.streams.message_runs import MessageRun
    from everlog.streams.overlay import Overlay

ROW_BYTES = 400  # about what a record in memory takes beside its value
MOST_POSITION = 1 << 62  # above all positions
UPLOAD_US = 3_600_000_000  # an upload that nobody asked for is dropped after this time
FRONT_KEYS = 1024  # of a key-value store in memory; at the limit it begins anew
FRONT_BYTES = 4096  # an entry that is larger is read from the file

_PLAIN = Config()


class StoredId:
    """What a write with a message id was answered."""

    def __init__(
        self, position: int, time_us: int, previous: int, seq: int, count: int, seqs: list[int] | None
    ) -> None:
        self.position = position
        self.time_us = time_us
        self.previous = previous
        self.seq = seq
        self.count = count
        self.seqs = seqs


def stored_id(position: int, record: Record | Appended) -> StoredId:
    """Return what a record's write was answered."""
    return StoredId(position, record.time_us, record.previous, record.seq, record.count, record.seqs)


class UploadState:
    """The parts of a large value that came so far."""

    def __init__(self, parts: int, size: int, time_us: int) -> None:
        self.parts = parts
        self.size = size
        self.time_us = time_us


class StreamState:
    """The numbers of a stream, what its file does not have yet, its message ids, uploads and queues."""

    def __init__(self, name: str, kind: Kind, config: Config = _PLAIN) -> None:
        self.name = name
        self.kind = kind
        self.born = NO_POSITION  # the position of its first record
        self.last = NO_POSITION  # of its last record
        self.position = NO_POSITION  # of its last visible change
        self.epoch = 0  # of that
        self.applied_position = NO_POSITION  # of the last visible change that the file has
        self.applied_epoch = 0
        self.time_us = 0
        self.last_seq = 0  # ever given; of a key-value store, its revision
        self.messages = 0
        self.bytes = 0
        self.next_due_us = 0  # nothing expires before; 0 for nothing ever
        self.is_hidden = False
        self.is_removed = False
        self.has_removal = False  # whether a pending record removed it
        self.has_rows = False  # whether there is a file
        self.filed = NO_POSITION  # what the file had applied when the stream's row in the catalogue was written
        # plain writes as they are, others with their positions
        self.pending: list[Appended | MessageRun | tuple[int, Record]] = []
        self.pending_rows = 0
        self.pending_bytes = 0
        self._run: MessageRun | None = None  # the last one that is pending, if that is a run
        self.known = Overlay()  # what pending records changed; of a stream, those before `unseen`
        self.unseen = 0
        self.oldest: deque[tuple[int, int]] = deque()  # (seq, size) of the oldest messages, as far as they were read
        self.ids: OrderedDict[str, StoredId] | None = OrderedDict()  # None: those in the file were not read yet
        self.id_time_us = 0  # of the newest message id
        self.forgotten = NO_POSITION  # ids of records up to this position were forgotten
        self.tokens = -1.0  # for the limit of the rate; negative before the first write
        self.tokens_us = 0
        self.unfed = 0  # records that followers were not told of yet
        self.uploads: dict[str, UploadState] | None = None  # None: those in the file were not read yet
        self.queues: dict[str, QueueState] | None = None
        self.has_queues = False  # so that nobody opens a file to learn that there is none
        self.front: dict[str, Fresh | None] = {}  # of a key-value store: what its file is known to have
        self.set_config(config)

    def set_config(self, config: Config) -> None:
        """Set the limits."""
        self.config = config
        self.is_plain = not (
            config.max_messages or config.max_bytes or config.max_age_us or config.max_message_bytes or config.max_rate
        )
        self._look()

    def _look(self) -> None:
        """Note whether this is what most streams are: one that is there, without limits."""
        is_there = self.born != NO_POSITION and not self.is_removed and not self.is_hidden
        self.is_simple = is_there and self.is_plain and self.kind is Kind.STREAM
        self.is_simple_store = is_there and self.is_plain and self.kind is Kind.KV

    def append(self, record: Appended, size: int) -> int:
        """Be as a plain write says, for which this stream or store is simple; `size` is what it takes in memory."""
        self.pending.append(record)
        self.pending_rows += 1
        self._run = None
        self.pending_bytes += size
        self.last = self.position = record.position
        self.epoch = record.epoch
        self.time_us = record.time_us
        self.last_seq, self.messages, self.bytes = record.seq, record.messages, record.bytes
        if record.key is not None:
            self.known.fresh[record.key] = record
            self.unseen += 1
        if record.message_id is not None:
            self._take_id(record.position, record)
        return 0

    def add(self, position: int, time_us: int, epoch: int, data: bytes, at: int, size: int) -> int:
        """Be as after an append of a small value, for which this stream is simple; return what it takes in memory.

        The value is at a place in some bytes; a size of -1 is an absent one.
        """
        run = self._run
        if run is None or not run.takes(epoch, position, time_us, size):
            run = self._run = MessageRun(epoch, self.position, self.last_seq + 1, self.messages, self.bytes)
            self.pending.append(run)
        held = run.add(position, time_us, data, at, size)
        self.pending_rows += 1
        self.pending_bytes += held
        self.last = self.position = position
        self.epoch = epoch
        self.time_us = time_us
        self.last_seq += 1
        self.messages = run.messages
        self.bytes = run.bytes
        return held

    def take(self, position: int, record: Record, size: int) -> None:
        """Be as the record says, whose encoded size is given."""
        overlay = self.overlay
        effects = record.effects
        if record.previous == NO_POSITION and record.is_visible:
            self._be_born(position)
        self.pending.append((position, record))
        self.pending_rows += 1
        self._run = None
        self.unseen = len(self.pending)
        self.pending_bytes += size + ROW_BYTES
        self.last = position
        self.time_us = record.time_us
        self.last_seq, self.messages, self.bytes = record.last_seq, record.messages, record.bytes
        if len(effects) == 1 and type(effects[0]) is PutMessage and self.is_plain and not effects[0].expires_us:
            overlay.fresh[effects[0].seq] = FreshEffect(position, record.time_us, effects[0])
            self.position, self.epoch = position, record.epoch
            if effects[0].upload is not None:
                (self.uploads or {}).pop(effects[0].upload, None)
        else:
            self._take_effects(position, record)
        if record.message_id is not None:
            self._take_id(position, record)

    @property
    def overlay(self) -> Overlay:
        """What pending records changed: all of them."""
        if self.unseen < len(self.pending):
            self._unpack()
        while self.unseen < len(self.pending):
            found = self.pending[self.unseen]
            if isinstance(found, Appended):
                self.known.take(found.position, found)
            elif not isinstance(found, MessageRun):
                self.known.take(*found)
            self.unseen += 1
        return self.known

    def _unpack(self) -> None:
        """Have the messages of runs one by one: somebody looks at what is pending."""
        pending = self.pending
        if any(isinstance(one, MessageRun) for one in pending):
            self.pending, self._run = [], None
            for one in pending:
                if isinstance(one, MessageRun):
                    self.pending += [record for _, record in one.records()]
                else:
                    self.pending.append(one)

    def records(self, committed: int) -> list[Any]:
        """Return the pending records below a position, each with its own; of a run of messages, that of the last."""
        found: list[Any] = []
        for at, one in enumerate(self.pending):
            if isinstance(one, MessageRun):
                run = one
                if run.position >= committed:
                    break
                rest = run.cut(committed)
                if rest is not None:
                    self.pending.insert(at + 1, rest)
                    if self._run is run:
                        self._run = rest
                found.append((run.last_position, run))
            elif isinstance(one, Appended):
                appended = one
                if appended.position >= committed:
                    break
                found.append((appended.position, appended))
            else:
                if one[0] >= committed:
                    break
                found.append(one)
        return found

    def first_pending(self) -> tuple[int, int]:
        """Return position and time of the first pending record, of which there is one."""
        first = self.pending[0]
        if isinstance(first, MessageRun):
            return first.position, first.first_us
        if isinstance(first, Appended):
            return first.position, first.time_us
        return first[0], first[1].time_us

    def _take_effects(self, position: int, record: Record) -> None:
        self.known.take(position, record)
        visible = False
        for effect in record.effects:
            visible = self._take_effect(effect, record) or visible
        if visible:
            self.position, self.epoch = position, record.epoch

    def _be_born(self, position: int) -> None:
        """Begin anew with the first record of a name."""
        if self.is_removed:
            self.is_removed = False
            self.last_seq = 0
        self.born = position
        self._look()

    def _take_effect(self, effect: object, record: Record) -> bool:
        """Note what concerns more than rows; return whether the effect is visible to followers."""
        kind = type(effect)
        if kind is PutMessage or kind is PutKey:
            if effect.expires_us:  # type: ignore[attr-defined]
                self.be_due(effect.expires_us)  # type: ignore[attr-defined]
            if self.config.max_age_us:
                self.be_due(record.time_us + self.config.max_age_us)
            if effect.upload is not None:  # type: ignore[attr-defined]
                (self.uploads or {}).pop(effect.upload, None)  # type: ignore[attr-defined]
            if self.oldest and effect.seq <= self.oldest[len(self.oldest) - 1][0]:  # type: ignore[attr-defined]
                self.oldest.clear()
            return True
        if isinstance(effect, Part):
            self.be_due(record.time_us + UPLOAD_US)
            if self.uploads is not None:
                known = self.uploads.setdefault(effect.upload, UploadState(0, 0, record.time_us))
                known.parts, known.size = effect.part + 1, known.size + len(effect.data)
            return False
        if isinstance(effect, DropUpload):
            (self.uploads or {}).pop(effect.upload, None)
            return False
        if isinstance(effect, SetConfig):
            self.kind, self.is_hidden = effect.kind, effect.is_hidden
            self.set_config(effect.config)
            if effect.config.max_age_us and self.messages:
                self.be_due(1)
        elif isinstance(effect, QUEUE_EFFECTS):
            self.has_queues = True
            if self.queues is not None:
                take_effect(self.queues, effect)
            return False
        elif isinstance(effect, DropMessages):
            self._drop_oldest(effect.ranges)
        elif isinstance(effect, DropAll):
            self.oldest.clear()
            if effect.is_removed:
                self._be_removed()
        return True

    def _drop_oldest(self, ranges: list[tuple[int, int]]) -> None:
        """Keep the list of the oldest messages only if what went was at its beginning."""
        oldest = self.oldest
        if len(ranges) != 1 or not oldest or ranges[0][0] > oldest[0][0]:
            oldest.clear()
        while oldest and oldest[0][0] <= ranges[0][1]:
            oldest.popleft()

    def _be_removed(self) -> None:
        self.is_removed = self.has_removal = True
        self.set_config(_PLAIN)
        self.ids, self.uploads, self.queues = OrderedDict(), {}, {}
        self.has_queues, self.next_due_us = False, 0

    def _take_id(self, position: int, record: Record | Appended) -> None:
        assert record.message_id is not None
        self.id_time_us = record.time_us
        if self.ids is not None:
            self.ids[record.message_id] = stored_id(position, record)
            self.forget_ids()

    def forget_ids(self) -> None:
        """Forget the oldest message ids beyond the limits of number and age."""
        ids, config = self.ids, self.config
        if ids is None:
            return
        oldest_us = self.time_us - config.dedup_us
        while ids:
            first = next(iter(ids.values()))
            if len(ids) <= config.dedup_ids and first.time_us >= oldest_us:
                break
            ids.popitem(last=False)
            self.forgotten = max(self.forgotten, first.position)

    def be_due(self, time_us: int) -> None:
        """Note that something expires at a time."""
        if not self.next_due_us or time_us < self.next_due_us:
            self.next_due_us = time_us

    def applied(self, count: int) -> None:
        """Forget the first pending records, which the file has now."""
        pending = self.pending
        for k in reversed(range(count)):
            one = pending[k]
            if isinstance(one, MessageRun):
                self.applied_position, self.applied_epoch = one.last_position, one.epoch
                break
            position, record = (one.position, one) if isinstance(one, Appended) else one
            if record.is_visible:
                self.applied_position, self.applied_epoch = position, record.epoch
                break
        if self.kind is Kind.KV:
            self._keep_front(self.overlay)
        del pending[:count]
        if not pending:
            self._run = None
        self.known.clear()
        self.unseen = 0
        self.has_removal = self.has_removal and bool(self.pending)
        self._count_pending()
        if self.kind is Kind.KV:
            self.overlay  # noqa: B018 - plain requests ask what is known without a look at what is pending

    def _count_pending(self) -> None:
        self.pending_rows = self.pending_bytes = 0
        for one in self.pending:
            if isinstance(one, MessageRun):
                self.pending_rows += one.count
                self.pending_bytes += one.held_bytes
                continue
            self.pending_rows += 1
            self.pending_bytes += ROW_BYTES
            if isinstance(one, Appended):
                self.pending_bytes += 0 if one.value is None else len(one.value)
            else:
                self.pending_bytes += sum(len(getattr(effect, "value", None) or b"") for effect in one[1].effects)

    def _keep_front(self, overlay: Overlay) -> None:
        """Go on answering for the keys that changed, as far as there is room."""
        if overlay.is_all_gone or len(self.front) + len(overlay.fresh) > FRONT_KEYS:
            self.front.clear()
        for key, fresh in overlay.fresh.items():
            assert isinstance(key, str)
            if fresh is None or (fresh.size <= FRONT_BYTES and not fresh.is_uploaded):
                self.front[key] = fresh
            else:
                self.front.pop(key, None)
