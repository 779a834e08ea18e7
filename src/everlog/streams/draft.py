"""A decision on writes to one stream: what the stream will be, worked out beside it, then taken whole or not at all.

Only a finished draft becomes a record; a refusal on the way leaves the stream as it was.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from everlog.streams import stream_tables as tables
from everlog.streams.effects import NO_POSITION, DropAll, DropKeys, DropMessages, Effect, PutKey, PutMessage, Record
from everlog.streams.feed_events import Reason
from everlog.streams.fresh import Fresh, FreshEffect, headers_size
from everlog.streams.overlay import UNKNOWN, Overlay
from everlog.streams.refusal import Refused, too_large
from everlog.streams.stored_messages import measure_messages, sizes_of_messages
from everlog.streams.stream_file import StreamFile
from everlog.streams.stream_state import StreamState
from everlog.streams.values import Discard, ErrorCode, Kind, Message

OLDEST_ROWS = 256
REVISION_LEAP = 1 << 20  # at a new epoch: what was acked from memory and lost never has the same revision as new values

FileOf = Callable[[StreamState], StreamFile | None]


@dataclass(frozen=True, slots=True)
class Found:
    """What a key has now."""

    revision: int
    size: int


def ranges_of(seqs: Iterable[int]) -> list[tuple[int, int]]:
    """Return rising seqs as ranges, first and last included."""
    ranges: list[tuple[int, int]] = []
    for seq in seqs:
        if ranges and ranges[-1][1] == seq - 1:
            ranges[-1] = (ranges[-1][0], seq)
        else:
            ranges.append((seq, seq))
    return ranges


class Draft:
    """Writes to one stream that were decided and not yet taken."""

    def __init__(self, state: StreamState, file_of: FileOf, epoch: int, most_bytes: int) -> None:
        self._state = state
        self._file_of = file_of
        self._epoch = epoch
        self._most_bytes = most_bytes  # of a message, whatever the stream's limit
        self._overlay = Overlay()  # what the draft itself changed
        self.last_seq = state.last_seq
        self.messages = state.messages
        self.bytes = state.bytes
        self.effects: list[Effect] = []
        self.seqs: list[int] = []  # what each write is answered
        self.count = 0

    def record(self, time_us: int, message_id: str | None, *, is_batch: bool) -> Record:
        """Return what was decided as a record."""
        return Record(
            self._epoch,
            NO_POSITION if self._state.is_removed else self._state.position,
            time_us,
            self.last_seq,
            self.messages,
            self.bytes,
            self.effects,
            message_id,
            self.seqs[-1] if self.seqs else self.last_seq,
            self.count,
            self.seqs if is_batch else None,
        )

    # ---- streams ----

    def put(self, message: Message, seq: int | None, expires_us: int, upload: tuple[str, int] | None) -> None:
        """Write a message at a seq, or at the next."""
        size = self._size(message, upload)
        old: int | None = None
        if seq is None:
            seq = self.last_seq + 1
        elif seq < 1:
            raise Refused(ErrorCode.BAD_REQUEST, f"seq {seq} is below 1", hint="seqs begin at 1")
        else:
            old = self.size_at(seq)
        self._make_room(size, old, seq)
        effect = PutMessage(seq, message.value, message.headers, message.timestamp, expires_us, *(upload or ()))
        self.effects.append(effect)
        self._overlay.fresh[seq] = FreshEffect(0, 0, effect)
        self.messages += old is None
        self.bytes += size - (old or 0)
        self.last_seq = max(self.last_seq, seq)
        self.seqs.append(seq)
        self.count += 1

    def delete(self, seqs: list[int]) -> None:
        """Delete messages; those that are not there count as deleted."""
        gone = []
        for seq in sorted(set(seqs)):
            size = self.size_at(seq)
            if size is not None:
                gone.append(seq)
                self._gone(seq, size)
        if gone:
            self.effects.append(DropMessages(ranges_of(gone)))
        self.count += len(gone)
        self.seqs.append(self.last_seq)

    def _gone(self, seq: int, size: int) -> None:
        self._overlay.drop(seq, seq)
        self.messages -= 1
        self.bytes -= size

    def delete_to(self, last: int) -> None:
        """Delete all messages up to a seq, that one included."""
        count, size = self._measure(last)
        self.seqs.append(self.last_seq)
        if not count:
            return
        self.effects.append(DropMessages([(1, last)]))
        self._overlay.drop(1, last)
        self.messages -= count
        self.bytes -= size
        self.count += count

    def size_at(self, seq: int) -> int | None:
        """Return how many bytes the message at a seq counts, or None if there is none."""
        for overlay in (self._overlay, self._state.overlay):
            known = overlay.find(seq)
            if known is None:
                return None
            if isinstance(known, Fresh):
                return known.size
        file = self._file_of(self._state)
        if file is None:
            return None
        count, size = measure_messages(file, seq, seq)
        return size if count else None

    def _measure(self, last: int) -> tuple[int, int]:
        """Return how many messages there are up to a seq, and their bytes."""
        count = size = 0
        file = self._file_of(self._state)
        merged = dict(self._state.overlay.fresh)
        closed = Overlay()
        closed.gone = [*self._state.overlay.gone, *self._overlay.gone]
        closed.is_all_gone = self._state.overlay.is_all_gone or self._overlay.is_all_gone
        for seq in list(merged):
            if self._overlay.find(seq) is None:
                del merged[seq]
        merged |= self._overlay.fresh
        for seq, fresh in merged.items():
            if isinstance(seq, int) and seq <= last and fresh is not None:
                count, size = count + 1, size + fresh.size
        if file is not None:
            for first, stop in closed.open_ranges(1, last):
                more, more_bytes = measure_messages(file, first, stop)
                count, size = count + more, size + more_bytes
                for seq in merged:
                    if isinstance(seq, int) and first <= seq <= stop:
                        hidden, hidden_bytes = measure_messages(file, seq, seq)
                        count, size = count - hidden, size - hidden_bytes
        return count, size

    # ---- limits ----

    def _size(self, message: Message, upload: tuple[str, int] | None) -> int:
        """Return how many bytes a message counts; refuse one that is too large."""
        size = len(message.value or b"") if upload is None else upload[1]
        if message.timestamp is not None:
            _check_timestamp(message.timestamp)
        if message.headers is not None:
            size += headers_size(message.headers)
        config = self._state.config
        most = min(one for one in (config.max_message_bytes, config.max_bytes, self._most_bytes) if one)
        if size > most:
            raise too_large(size, most)
        return size

    def _make_room(self, size: int, old: int | None, seq: int) -> None:
        """Discard the oldest messages for one of this size, or refuse it."""
        config = self._state.config
        if not (config.max_messages or config.max_bytes):
            return
        messages = self.messages + (old is None)
        total = self.bytes + size - (old or 0)
        if not self._is_over(messages, total):
            return
        if config.discard is Discard.NEW or self._state.kind is Kind.KV:
            raise Refused(
                ErrorCode.FULL,
                f"{self._state.name} has {self.messages} messages of {self.bytes} bytes, as many as it may",
                hint="delete some, or raise its limits",
            )
        going: list[tuple[int, int]] = []
        for oldest, oldest_size in self._oldest():
            if oldest == seq:
                continue
            going.append((oldest, oldest_size))
            messages, total = messages - 1, total - oldest_size
            if not self._is_over(messages, total):
                break
        for gone, gone_size in going:
            self._gone(gone, gone_size)
        self.effects.append(DropMessages(ranges_of(gone for gone, _ in going), Reason.DISCARDED))

    def _is_over(self, messages: int, total: int) -> bool:
        config = self._state.config
        return bool(config.max_messages and messages > config.max_messages) or bool(
            config.max_bytes and total > config.max_bytes
        )

    def _oldest(self) -> Iterator[tuple[int, int]]:
        """Yield (seq, size) of the messages by rising seq; nothing may change meanwhile."""
        state, mine = self._state, self._overlay
        after = 0
        while True:
            if not state.oldest or state.oldest[-1][0] <= after:
                state.oldest.extend(self._read_oldest(after))
            found = False
            for seq, size in list(state.oldest):
                if seq <= after:
                    continue
                found, after = True, seq
                known = mine.find(seq)
                if known is UNKNOWN:
                    yield seq, size
            if not found:
                break
        for key, fresh in sorted(mine.fresh.items()):  # written by this same batch
            if isinstance(key, int) and fresh is not None:
                yield key, fresh.size

    def _read_oldest(self, after: int) -> list[tuple[int, int]]:
        """Return the next messages after a seq, in order: of the file, and of what it does not have yet."""
        overlay = self._state.overlay
        fresh = sorted(
            (seq, one.size) for seq, one in overlay.fresh.items() if isinstance(seq, int) and one and seq > after
        )
        file = self._file_of(self._state)
        if file is None or overlay.is_all_gone:
            return fresh
        rows: list[tuple[int, int]] = []
        while len(rows) < OLDEST_ROWS:
            found = sizes_of_messages(file, after, OLDEST_ROWS)
            if not found:
                return sorted(rows + fresh)
            after = found[-1][0]
            rows += [row for row in found if overlay.find(row[0]) is UNKNOWN]
        return sorted(rows + [one for one in fresh if one[0] < after])

    # ---- key-value stores ----

    def put_key(self, key: str, message: Message, expires_us: int, upload: tuple[str, int] | None) -> None:
        """Give a key a value."""
        size = self._size(message, upload) + len(key.encode())
        old = self.find(key)
        self._make_room(size, None if old is None else old.size, 0)
        revision = self._next_revision()
        effect = PutKey(key, revision, message.value, message.headers, message.timestamp, expires_us, *(upload or ()))
        self.effects.append(effect)
        self._overlay.fresh[key] = FreshEffect(0, 0, effect)
        self.messages += old is None
        self.bytes += size - (0 if old is None else old.size)
        self.seqs.append(revision)
        self.count += 1

    def delete_key(self, key: str) -> None:
        """Delete a key, if it is there."""
        old = self.find(key)
        if old is not None:
            self._next_revision()
            self.effects.append(DropKeys([key]))
            self._overlay.fresh[key] = None
            self.messages -= 1
            self.bytes -= old.size
            self.count += 1
        self.seqs.append(self.last_seq)

    def delete_keys(self) -> None:
        """Delete all keys."""
        if self.messages:
            self._next_revision()
            self.effects.append(DropAll())
            self._overlay.fresh.clear()
            self._overlay.is_all_gone = True
            self.count += self.messages
            self.messages = self.bytes = 0
        self.seqs.append(self.last_seq)

    def _next_revision(self) -> int:
        if self._state.epoch != self._epoch and self._state.last_seq == self.last_seq and self.last_seq:
            self.last_seq += REVISION_LEAP
        self.last_seq += 1
        return self.last_seq

    def find(self, key: str) -> Found | None:
        """Return what a key has now."""
        for overlay in (self._overlay, self._state.overlay):
            known = overlay.find(key)
            if known is None:
                return None
            if isinstance(known, Fresh):
                assert isinstance(known.effect, PutKey)
                return Found(known.effect.revision, known.size)
        if key in self._state.front:
            front = self._state.front[key]
            return None if front is None else Found(front.effect.revision, front.size)
        file = self._file_of(self._state)
        if file is None:
            return None
        found = file.rows(f"SELECT revision, {tables.KEY_SIZE} FROM entries WHERE key = ?", (key,))
        return Found(*found[0]) if found else None


def _check_timestamp(given: int | float) -> None:
    """Refuse what the stream's file could not keep as it is."""
    if given != given or (isinstance(given, int) and not -(1 << 63) <= given < 1 << 63):
        hint = "a whole number of 64 bits, or a float other than nan"
        raise Refused(ErrorCode.BAD_REQUEST, f"a timestamp of {given}", hint=hint)
