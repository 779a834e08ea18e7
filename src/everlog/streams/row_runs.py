"""Runs of plain records as rows for statements: what a stream's file is written in most of the time."""

from typing import Any

import cython

from everlog.streams.effects import PutKey, PutMessage

if not cython.compiled:
    from everlog.base.memory import copy, pointer, room
    from everlog.streams.fresh import Appended


def message_run(records: list[Any], start: int, rows: list[Any], ids: list[Any]) -> int:
    """Take plain messages from a place on; return where the next record of another kind is.

    `rows` gets seq, position, time and value of each, one behind the other; `ids` a row for each message id.
    """
    count = len(records)
    at = start
    while at < count:
        position, found = records[at]
        if isinstance(found, Appended):
            one = found
            if one.key is not None:
                break
            rows.append(one.seq)
            rows.append(position)
            rows.append(one.time_us)
            rows.append(None if one.value is None else _blob(one.value))
            if one.message_id is not None:
                ids.append((one.message_id, position, one.time_us, one.previous, one.seq, 1, None))
        else:
            effect = plain_effect(found, PutMessage)
            if effect is None:
                break
            rows += (effect.seq, position, found.time_us, effect.value)
            if found.message_id is not None:
                ids.append((found.message_id, position, found.time_us, found.previous, found.seq, found.count, None))
        at += 1
    return at


def entry_run(records: list[Any], start: int, rows: list[Any], ids: list[Any]) -> int:
    """Take plain entries as `message_run` does messages, with the key first; of a key, only the last of the run."""
    count = len(records)
    at = start
    last: dict[str, tuple[Any, ...]] = {}
    while at < count:
        position, found = records[at]
        if isinstance(found, Appended):
            one = found
            if one.key is None:
                break
            last[one.key] = (one.key, one.seq, position, one.time_us, None if one.value is None else _blob(one.value))
            if one.message_id is not None:
                ids.append((one.message_id, position, one.time_us, one.previous, one.seq, 1, None))
        else:
            effect = plain_effect(found, PutKey)
            if effect is None:
                break
            last[effect.key] = (effect.key, effect.revision, position, found.time_us, effect.value)
            if found.message_id is not None:
                ids.append((found.message_id, position, found.time_us, found.previous, found.seq, found.count, None))
        at += 1
    for row in last.values():
        rows += row
    return at


def _blob(value: bytes) -> bytearray:
    """Return a value as SQLite's module binds it at once; of bytes, it looks for an adapter first."""
    size = len(value)
    block = room(size)
    copy(pointer(block), 0, pointer(value), 0, size)
    return block


def plain_effect(record: Any, kind: Any) -> Any:
    """Return the one effect of a record if it has nothing but a value; else None."""
    effects = record.effects
    if len(effects) != 1 or record.seqs is not None:
        return None
    effect = effects[0]
    if type(effect) is not kind or effect.headers is not None or effect.timestamp is not None:
        return None
    return None if effect.upload is not None or effect.expires_us or effect.copied_us else effect
