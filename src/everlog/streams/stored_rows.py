"""Rows of a stream's file, and fresh content in memory, as the messages and entries that callers get."""

from typing import Any

from msgspec import json

from everlog.streams.effects import PutKey, PutMessage
from everlog.streams.fresh import Fresh, FreshEffect
from everlog.streams.names import ABOVE_ALL
from everlog.streams.stream_file import StreamFile
from everlog.streams.values import Entry, StoredMessage

_decode_headers = json.Decoder(dict[str, str]).decode

# a value that is larger than the first argument is left out
_VALUE = (
    "CASE WHEN length(value) > ?1 THEN NULL ELSE value END, headers, timestamp, expires_us, position, length(value)"
)
MESSAGES = f"SELECT seq, time_us, {_VALUE} FROM messages"
ENTRIES = f"SELECT key, revision, time_us, {_VALUE} FROM entries"
DEAD = f"SELECT deliveries, died_us, seq, time_us, {_VALUE} FROM dead"


def entry_of(row: tuple[Any, ...]) -> Entry:
    """Return the entry of a row of ENTRIES."""
    key, revision, time_us, value, headers, timestamp, expires_us, position, size = row
    return Entry(
        key,
        revision,
        time_us,
        value,
        None if headers is None else _decode_headers(headers),
        timestamp,
        expires_us or 0,
        position,
        size or 0,
        value is None and size is not None,
    )


def fresh_message(position: int, time_us: int, effect: PutMessage, most_bytes: int) -> StoredMessage:
    """Return the message that an effect wrote."""
    size = effect.size if effect.upload is not None else len(effect.value or b"")
    is_cut = effect.upload is not None or size > most_bytes
    return StoredMessage(
        effect.seq,
        effect.copied_us or time_us,
        None if is_cut else effect.value,
        effect.headers,
        effect.timestamp,
        effect.expires_us,
        position,
        size,
        is_cut,
    )


def fresh_entry(position: int, time_us: int, effect: PutKey, most_bytes: int) -> Entry:
    """Return the entry that an effect wrote."""
    size = effect.size if effect.upload is not None else len(effect.value or b"")
    is_cut = effect.upload is not None or size > most_bytes
    return Entry(
        effect.key,
        effect.revision,
        effect.copied_us or time_us,
        None if is_cut else effect.value,
        effect.headers,
        effect.timestamp,
        effect.expires_us,
        position,
        size,
        is_cut,
    )


def fresh_of(found: Entry) -> Fresh:
    """Return an entry that was read from a file, whole, as content to keep in memory."""
    effect = PutKey(found.key, found.revision, found.value, found.headers, found.timestamp, found.expires_us)
    return FreshEffect(found.position, found.time_us, effect)


def read_entries(
    file: StreamFile | None, prefix: str, after: str, limit: int, most_bytes: int, chunk_bytes: int
) -> tuple[list[Entry], bool]:
    """Return entries by rising key, up to about `chunk_bytes` of them, and whether there may be more."""
    if file is None or limit <= 0:
        return [], False
    found: list[Entry] = []
    total = 0
    query = f"{ENTRIES} WHERE key > ?2 AND key >= ?3 AND key < ?4 ORDER BY key LIMIT ?5"
    while limit > len(found):
        step = min(limit - len(found), _STEP_ROWS)
        rows = file.rows(query, (most_bytes, after, prefix, prefix + ABOVE_ALL, step))
        for row in rows:
            found.append(entry_of(row))
            total += len(row[3] or b"") + len(row[4] or "") + len(row[0]) + 64
            if total >= chunk_bytes:
                return found, True
        if len(rows) < step:
            return found, False
        after = rows[-1][0]
    return found, False


_STEP_ROWS = 64
