"""Runs of plain records as rows for statements: what a stream's file is written in most of the time."""

from typing import Any

import cython

if not cython.compiled:
    from everlog.streams.fresh import Appended


def message_run(records: list[Any], start: int, rows: list[Any], ids: list[Any]) -> int:
    """Take plain messages from a place on; return where the next record of another kind is.

    `rows` gets seq, position, time and value of each, one behind the other; `ids` a row for each message id.
    """
    count = len(records)
    at = start
    while at < count:
        found = records[at][1]
        if not isinstance(found, Appended):
            break
        one = found
        if one.key is not None:
            break
        rows.append(one.seq)
        rows.append(one.position)
        rows.append(one.time_us)
        rows.append(one.value)
        if one.message_id is not None:
            ids.append((one.message_id, one.position, one.time_us, one.previous, one.seq, 1, None))
        at += 1
    return at


def entry_run(records: list[Any], start: int, rows: list[Any], ids: list[Any]) -> int:
    """Take plain entries as `message_run` does messages; of a key, only the last of the run."""
    count = len(records)
    at = start
    last: dict[str, Appended] = {}
    while at < count:
        found = records[at][1]
        if not isinstance(found, Appended):
            break
        one = found
        if one.key is None:
            break
        last[one.key] = one
        if one.message_id is not None:
            ids.append((one.message_id, one.position, one.time_us, one.previous, one.seq, 1, None))
        at += 1
    for found in last.values():
        one = found
        rows.append(one.key)
        rows.append(one.seq)
        rows.append(one.position)
        rows.append(one.time_us)
        rows.append(one.value)
    return at
