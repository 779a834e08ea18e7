"""The change feed: records as events, the state as of a position, and what was missed since one."""

from collections.abc import Callable, Iterator

from everlog.streams.effects import (
    NO_POSITION,
    DropAll,
    DropKeys,
    DropMessages,
    PutKey,
    PutMessage,
    Record,
    SetConfig,
    decode_record,
)
from everlog.streams.feed_events import (
    AllDeleted,
    Change,
    Configured,
    EpochBegan,
    FeedEvent,
    FeedEvents,
    KeysDeleted,
    KeySet,
    MessagesDeleted,
    MessageSet,
)
from everlog.streams.fresh import Appended
from everlog.streams.ports import Journal
from everlog.streams.replies import CaughtUp, Entries, FeedReset, Messages, Result
from everlog.streams.shard_settings import ShardSettings
from everlog.streams.stored_messages import MOST_SEQ, read_messages
from everlog.streams.stored_rows import fresh_entry, fresh_message, read_entries
from everlog.streams.stream_file import StreamFile
from everlog.streams.stream_state import StreamState
from everlog.streams.values import Kind

_STEP_POSITIONS = 20_000  # of the journal are looked through in one step


def event_of(
    name: str, position: int, record: Record | Appended, before: tuple[int, int], most_bytes: int, prefix: str = ""
) -> FeedEvent:
    """Return what a visible record changed; `before` is the (epoch, last seq) of the stream before it."""
    changes: list[Change] = []
    epoch, last_seq = before
    if epoch != record.epoch and record.previous >= 0:
        changes.append(EpochBegan(last_seq, record.previous))
    for effect in record.effects:
        if isinstance(effect, PutMessage):
            changes.append(MessageSet(fresh_message(position, record.time_us, effect, most_bytes)))
        elif isinstance(effect, PutKey):
            if effect.key.startswith(prefix):
                changes.append(KeySet(fresh_entry(position, record.time_us, effect, most_bytes)))
        elif isinstance(effect, DropMessages):
            changes.append(MessagesDeleted(effect.ranges, effect.reason))
        elif isinstance(effect, DropKeys):
            keys = [key for key in effect.keys if key.startswith(prefix)]
            if keys:
                changes.append(KeysDeleted(keys, record.last_seq, effect.reason))
        elif isinstance(effect, DropAll):
            changes.append(AllDeleted(effect.is_removed))
        elif isinstance(effect, SetConfig):
            changes.append(Configured(effect.kind, effect.config))
    return FeedEvent(name, record.epoch, position, record.previous, changes)


class Feed:
    """Bootstraps and resumes of a shard's streams."""

    def __init__(
        self, journal: Journal, settle: Callable[[StreamState], StreamFile | None], settings: ShardSettings
    ) -> None:
        self._journal = journal
        self._settle = settle
        self._settings = settings

    def bootstrap(self, state: StreamState | None, prefix: str, chunk_bytes: int) -> Iterator[Result]:
        """Yield the state as of a position, then `CaughtUp` with it; a step reads one chunk.

        What changes meanwhile is left out of later chunks: the events that chain from the position tell of it.
        """
        if state is None:
            yield CaughtUp(NO_POSITION, 0)
            return
        self._settle(state)
        position, last_seq = state.applied_position, state.last_seq
        chunk = self._settings.chunk(chunk_bytes)
        most = self._settings.value_bytes
        more, first, after = True, 1, ""
        while more:
            file = self._settle(state)
            if state.kind is Kind.STREAM:
                found, more = read_messages(file, first, MOST_SEQ, MOST_SEQ, most, chunk)
                first = found[-1].seq + 1 if found else first
                found = [one for one in found if one.position <= position]
                if found:
                    yield Messages(found, False, first)
            else:
                entries, more = read_entries(file, prefix, after, MOST_SEQ, most, chunk)
                after = entries[-1].key if entries else after
                entries = [one for one in entries if one.position <= position]
                if entries:
                    yield Entries(entries, False)
        yield CaughtUp(position, last_seq)

    def resume(
        self, state: StreamState | None, epoch: int, position: int, prefix: str, chunk_bytes: int
    ) -> Iterator[Result]:
        """Yield the events after a position, then `CaughtUp`; if they are gone, `FeedReset` and a bootstrap.

        The epoch is that of the owner which told the position. The record there is the same one if its epoch is not
        above that: what an owner found when it began was committed, and it gave each position once.
        """
        reason = "unknown"
        if state is not None:
            self._settle(state)
            if state.applied_position == position and state.applied_epoch <= epoch:
                yield CaughtUp(position, state.last_seq)
                return
            known = self._record_at(state, position)
            if isinstance(known, Record) and known.epoch <= epoch and known.is_visible:
                yield from self._missed(state, position, known, prefix)
                return
            reason = known if isinstance(known, str) else "epoch"
        yield FeedReset(reason)
        yield from self.bootstrap(state, prefix, chunk_bytes)

    def _record_at(self, state: StreamState, position: int) -> Record | str:
        """Return the stream's record at a position, or why a follower that was there has to begin anew."""
        if position < max(0, self._journal.start):
            return "horizon"
        for _, _, effect in self._journal.read(position, position + 1, state.name):
            return decode_record(effect)
        return "epoch"

    def _missed(self, state: StreamState, position: int, known: Record, prefix: str) -> Iterator[Result]:
        """Yield what came after a record, a few thousand positions of the journal at a time."""
        at, end = position + 1, self._journal.committed
        while at < end:
            events = []
            stop = min(end, at + _STEP_POSITIONS)
            for found, _, effect in self._journal.read(at, stop, state.name):
                record = decode_record(effect)
                if record.is_visible:
                    before = (known.epoch, known.last_seq)
                    events.append(event_of(state.name, found, record, before, self._settings.value_bytes, prefix))
                    known, position = record, found
            if events:
                yield FeedEvents(events)
            at = stop
        yield CaughtUp(position, known.last_seq)
