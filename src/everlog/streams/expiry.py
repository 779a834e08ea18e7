"""What expires: finds the messages and keys of one stream that are due, by their TTL or the stream's age."""

from dataclasses import dataclass

from everlog.streams import stream_tables as tables
from everlog.streams.draft import ranges_of
from everlog.streams.effects import DropKeys, DropMessages, Effect
from everlog.streams.feed_events import Reason
from everlog.streams.stored_messages import open_old_blocks
from everlog.streams.stream_file import StreamFile
from everlog.streams.stream_state import StreamState
from everlog.streams.values import Kind


@dataclass(frozen=True, slots=True)
class Expired:
    """What is due in a stream, and when the next is: 0 for never."""

    effects: list[Effect]
    count: int
    bytes: int
    next_due_us: int


def find_expired(state: StreamState, file: StreamFile, due_us: int, limit: int) -> Expired:
    """Return up to `limit` rows of a settled stream that are due at a time."""
    table, key, size = ("messages", "seq", tables.SIZE)
    if state.kind is Kind.KV:
        table, key, size = ("entries", "key", tables.KEY_SIZE)
    gone: dict[int | str, int] = {}
    next_due: list[int] = []
    if file.has(f"expiring_{table}"):
        rows = file.rows(f"SELECT {key}, {size} FROM {table} WHERE expires_us <= ? LIMIT ?", (due_us, limit))
        gone |= dict(rows)
        next_due += _first(file, f"SELECT min(expires_us) FROM {table} WHERE expires_us > ?", due_us)
    age_us = state.config.max_age_us
    if age_us:
        file.need(f"aging_{table}")
        before_us = due_us - age_us
        next_us = open_old_blocks(file, before_us, limit)
        if next_us is not None:
            next_due.append(next_us + age_us)
        rows = file.rows(
            f"SELECT {key}, {size} FROM {table} WHERE time_us <= ? ORDER BY time_us LIMIT ?", (before_us, limit)
        )
        gone |= dict(rows)
        next_due += [
            one + age_us for one in _first(file, f"SELECT min(time_us) FROM {table} WHERE time_us > ?", before_us)
        ]
    if len(gone) >= limit:
        next_due = [1]
    effects: list[Effect] = []
    if gone and state.kind is Kind.KV:
        effects.append(DropKeys([str(one) for one in gone], Reason.EXPIRED))
    elif gone:
        effects.append(DropMessages(ranges_of(sorted(int(one) for one in gone)), Reason.EXPIRED))
    return Expired(effects, len(gone), sum(gone.values()), min(next_due, default=0))


def _first(file: StreamFile, query: str, above: int) -> list[int]:
    found = file.rows(query, (above,))[0][0]
    return [] if found is None else [int(found)]
