"""The requests that most are, decided without structs: appends to streams and puts to stores without limits, and gets.

What is decided here is what `writes` and `reads` would decide, to the byte of the record and of the answer; whenever
that would take more than a look at memory, they are asked. So nothing is ever refused here.
"""

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

import cython

from everlog.streams.effects import PutKey
from everlog.streams.message_blocks import VALUE_BYTES
from everlog.streams.names import MOST_KEY_BYTES
from everlog.streams.shard_settings import ShardSettings
from everlog.streams.stream_state import ROW_BYTES
from everlog.streams.values import Kind
from everlog.streams.writes import MOST_ID_BYTES

if not cython.compiled:
    from everlog.base.memory import look_up, part, pointer
    from everlog.streams.fresh import Appended, Asked, appended
    from everlog.streams.plain_codec import GET, SET, Packer, PlainCall
    from everlog.streams.stream_state import StreamState
    from everlog.streams.waiting import OpenTurn, Waiting

NOT_PLAIN, DECIDED, ANSWERED = 0, 1, 2
_KV = Kind.KV
_SMALL = VALUE_BYTES
_UNKNOWN = object()


class PlainViews:
    """What plain writes note of streams with records that their files do not have: parts of `views`."""

    def __init__(
        self,
        states: "OrderedDict[str, StreamState]",
        unapplied: "OrderedDict[str, int]",
        ripe: dict[str, None],
        unsynced: dict[str, int],
    ) -> None:
        self.states = states
        self.unapplied = unapplied
        self.ripe = ripe
        self.unsynced = unsynced


class PlainRequests:
    """Decides plain requests of a shard, on its thread."""

    def __init__(
        self,
        turn: "OpenTurn",
        views: PlainViews,
        settings: ShardSettings,
        epoch: int,
        clock: Callable[[], int],
        waiting: "deque[Any]",
        later: "deque[Any]",
    ) -> None:
        self.is_open = True
        self.committed = 0
        self.packer = Packer()
        self.answered: list[Asked] = []  # gets, with their answers; whoever takes them puts a new list here
        self.followed: dict[str, Any] = {}  # streams whose followers are told of changes
        self._turn = turn
        self._states = views.states
        self._unapplied = views.unapplied
        self._ripe = views.ripe
        self._unsynced = views.unsynced
        self._epoch = epoch
        self._clock = clock
        self._waiting = waiting
        self._later = later
        self._most_waiting = settings.waiting
        self._few_states = settings.most_states // 2  # of so many, nobody has to know which were used last
        self._most_bytes = settings.max_message_bytes
        self._value_bytes = settings.value_bytes
        self._apply_rows = settings.apply_rows
        self._apply_bytes = settings.apply_bytes
        self._row_bytes = ROW_BYTES
        self._call = PlainCall()

    def take(self, data: bytes, at: int, name: str, raw_name: bytes, may_write: bool, asked: "Asked") -> int:
        """Decide the request that begins at a place in some bytes, if it is plain; return what became of it.

        DECIDED: it is answered when it is committed (or early, as it asks). ANSWERED: its answer is in `answered`.
        """
        call = self._call
        op = call.read(data, at, raw_name)
        if op == 0 or not self.is_open or may_write == (op == GET):
            return NOT_PLAIN
        turn = self._turn
        if call.seen_epoch > self._epoch or (call.seen_epoch == self._epoch and call.seen_position >= turn.next):
            return NOT_PLAIN
        if len(self._waiting) + len(self._later) > self._most_waiting:
            return NOT_PLAIN
        state = look_up(self._states, name)
        if state is None:
            return NOT_PLAIN
        if len(self._states) > self._few_states:
            self._states.move_to_end(name)
        if op == GET:
            return self._get(state, data, asked)
        if op == SET:
            return self._append(state, data, asked)
        return self._put(state, data, asked)

    def _append(self, state: "StreamState", data: bytes, asked: "Asked") -> int:
        call = self._call
        size = call.value_size
        if not state.is_simple or size > self._most_bytes:
            return NOT_PLAIN
        if call.id_size < 0 and size <= _SMALL and not (len(self.followed) and state.name in self.followed):
            return self._add(state, data, asked)
        message_id = None
        if call.id_size >= 0:
            message_id = self._new_id(state, data)
            if message_id is None:
                return NOT_PLAIN
        value = None
        if size >= 0:
            value = part(pointer(data), call.value_at, call.value_at + size)
        else:
            size = 0
        seq = state.last_seq + 1
        return self._decide(state, seq, state.messages + 1, state.bytes + size, value, None, message_id, asked)

    def _add(self, state: "StreamState", data: bytes, asked: "Asked") -> int:
        """Append a small value to a stream that nobody follows: no object is made but `asked`."""
        call = self._call
        turn = self._turn
        self._be_timed()
        now = turn.time_us
        position = turn.next
        seq = state.last_seq + 1
        size = call.value_size
        total = state.bytes + (0 if size < 0 else size)
        asked.is_write = True
        asked.position = position
        asked.time_us = now
        asked.previous = state.position
        asked.seq = seq
        asked.level = call.level
        packed = self.packer.append(
            self._epoch, state.position, now, seq, state.messages + 1, total, data, call.value_at, size
        )
        taken = state.add(position, now, self._epoch, data, call.value_at, size)
        return self._note(state, packed, taken, asked, call.level)

    def _put(self, state: "StreamState", data: bytes, asked: "Asked") -> int:
        call = self._call
        size = call.value_size
        if not state.is_simple_store or call.key_size < 1 or call.key_size > MOST_KEY_BYTES:
            return NOT_PLAIN
        if size > self._most_bytes or (state.epoch != self._epoch and state.last_seq):
            return NOT_PLAIN
        name = _decoded(part(pointer(data), call.key_at, call.key_at + call.key_size))
        if name is None:
            return NOT_PLAIN
        old = self._known(state, name)
        if old is _UNKNOWN:
            return NOT_PLAIN
        message_id = None
        if call.id_size >= 0:
            message_id = self._new_id(state, data)
            if message_id is None:
                return NOT_PLAIN
        value = None
        if size >= 0:
            value = part(pointer(data), call.value_at, call.value_at + size)
        else:
            size = 0
        total = state.bytes + size + call.key_size
        messages = state.messages + 1
        if old is not None:
            total -= old.size
            messages -= 1
        return self._decide(state, state.last_seq + 1, messages, total, value, name, message_id, asked)

    def _known(self, state: "StreamState", key: str) -> Any:
        """Return what memory has of a key, None if that it has no value, or _UNKNOWN if the file has to tell."""
        known = state.known.fresh.get(key, _UNKNOWN)
        if known is _UNKNOWN:
            if state.known.is_all_gone or not state.has_rows:
                return None
            known = state.front.get(key, _UNKNOWN)
        return known

    def _new_id(self, state: "StreamState", data: bytes) -> Any:
        """Return a write's message id if this is its first one, for all that is in memory; else None."""
        call = self._call
        if state.ids is None or call.id_size < 1 or call.id_size > MOST_ID_BYTES:
            return None
        found = _decoded(part(pointer(data), call.id_at, call.id_at + call.id_size))
        return None if found is None or found in state.ids else found

    def _decide(
        self,
        state: "StreamState",
        seq: int,
        messages: int,
        size: int,
        value: Any,
        name: str | None,
        message_id: str | None,
        asked: "Asked",
    ) -> int:
        self._be_timed()
        now = self._turn.time_us
        position = self._turn.next
        record = appended(position, now, self._epoch, state.position, seq, messages, size, value, name, message_id)
        record.level = level = self._call.level
        one: Any = record
        asked.is_write = True
        if len(self.followed) and state.name in self.followed:
            one = Waiting(position, state, record, level, None, None, (state.epoch, state.last_seq), asked)
            state.unfed += 1
        else:
            record.asked = asked
        packed = self.packer.pack(record)
        taken = packed + self._row_bytes
        state.append(record, taken)
        return self._note(state, packed, taken, one, level)

    def _be_timed(self) -> int:
        """Ask the clock once in a turn."""
        turn = self._turn
        if not turn.is_timed:
            turn.is_timed = True
            now = self._clock()
            if now > turn.time_us:
                turn.time_us = now
        return 0

    def _note(self, state: "StreamState", packed: int, taken: int, one: Any, level: int) -> int:
        """Take a decision into the turn: its record, in the packer's room, and whoever waits for it."""
        turn = self._turn
        position = turn.next
        if level == 0:
            turn.has_early = True
        turn.add(state.name, self.packer.room, packed, one)
        turn.pending_rows += 1
        turn.pending_bytes += taken
        rows = state.pending_rows
        if rows == 1:
            self._unapplied[state.name] = turn.time_us
        if rows >= self._apply_rows or state.pending_bytes >= self._apply_bytes:
            self._ripe[state.name] = None
        if state.name not in self._unsynced:
            self._unsynced[state.name] = position
        return DECIDED

    def _get(self, state: "StreamState", data: bytes, asked: "Asked") -> int:
        call = self._call
        if state.kind is not _KV or state.is_removed or state.is_hidden or state.last >= self.committed:
            return NOT_PLAIN
        raw = part(pointer(data), call.key_at, call.key_at + call.key_size)
        name = _decoded(raw)
        if name is None:
            return NOT_PLAIN
        known = self._known(state, name)
        if known is _UNKNOWN or known is None:
            return NOT_PLAIN
        most = call.max_bytes if call.max_bytes else self._value_bytes
        value = revision = None
        expires_us = 0
        if isinstance(known, Appended):
            one = known
            value = one.value
            revision = one.seq
        else:
            effect: PutKey = known.effect
            if effect.upload is not None or effect.headers is not None or effect.timestamp is not None:
                return NOT_PLAIN
            if effect.copied_us:
                return NOT_PLAIN
            value = effect.value
            revision = effect.revision
            expires_us = effect.expires_us
        if value is not None and len(value) > most:
            return NOT_PLAIN
        fresh = known
        asked.data = self.packer.entry(
            asked.id, self._epoch, self.committed - 1, raw, revision, fresh.time_us, value, expires_us, fresh.position
        )
        self.answered.append(asked)
        return ANSWERED


def _decoded(raw: bytes) -> Any:
    """Return text, or None if the bytes are none."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None
