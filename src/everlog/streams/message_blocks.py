"""Blocks: runs of consecutive plain messages as one value each, which is how a stream's file keeps most messages.

A block is an array of 16 bytes a message, then their values one behind the other (`docs/formats/streams.md`): how far
position and time are above those of the block's first message, where the value begins, and its size. Seqs are
consecutive, so they are not in it. A row of SQLite costs more than all the rest of a write; here many share one.
"""

from typing import Any

import cython

from everlog.streams.effects import PutMessage
from everlog.streams.row_runs import plain_effect

if not cython.compiled:
    from everlog.base.memory import copy, get32, part, pointer, put32, room
    from everlog.streams.fresh import Appended, appended

BLOCK_ROWS = 256  # messages of a block, at most
BLOCK_BYTES = 32 << 10  # of their values, at most: to read one message is to read its block
VALUE_BYTES = 4096  # larger values are rows
_ABSENT = 0xFFFF_FFFF  # the size of a value that is absent
_MOST = 0xFFFF_FFFF  # that the messages of a block are apart in position and time
_HEAD = 16


class DamagedBlock(Exception):
    """A block that does not hold the messages that it should."""


def block_run(records: list[Any], start: int, next_seq: int, ids: list[Any]) -> "list[Appended]":
    """Return the messages from a place on that can be in blocks: plain, small, and with seqs from this one on.

    `ids` gets a row for each message id.
    """
    run: list[Appended] = []
    count = len(records)
    most = VALUE_BYTES
    for at in range(start, count):
        position, found = records[at]
        if isinstance(found, Appended):
            one = found
            if one.key is not None:
                break
        else:
            effect = plain_effect(found, PutMessage)
            if effect is None or effect.seq != found.last_seq:
                break
            one = appended(
                position, found.time_us, found.epoch, found.previous, effect.seq, found.messages, found.bytes,
                effect.value, None, found.message_id,
            )  # fmt: skip
        if one.seq != next_seq or (one.value is not None and len(one.value) > most):
            break
        if one.message_id is not None:
            ids.append((one.message_id, position, one.time_us, one.previous, one.seq, 1, None))
        run.append(one)
        next_seq += 1
    return run


def pack_block(run: "list[Appended]", start: int) -> tuple[Any, ...]:
    """Return as many messages of a run as fit into a block: first and last seq, position, time, bytes of values, block.

    The block is a bytearray, which SQLite's module binds at once.
    """
    rows = min(len(run) - start, BLOCK_ROWS)
    most = BLOCK_BYTES
    apart = _MOST
    first = run[start]
    size = 0
    taken = 0
    while taken < rows:
        one = run[start + taken]
        length = 0 if one.value is None else len(one.value)
        if taken and size + length > most:
            break
        if one.position - first.position > apart or one.time_us - first.time_us > apart:
            break
        size += length
        taken += 1
    block = room(_HEAD * taken + size)
    out = pointer(block)
    at = 0
    value_at = _HEAD * taken
    for k in range(taken):
        one = run[start + k]
        put32(out, at, one.position - first.position)
        put32(out, at + 4, one.time_us - first.time_us)
        put32(out, at + 8, value_at)
        if one.value is None:
            put32(out, at + 12, _ABSENT)
        else:
            length = len(one.value)
            put32(out, at + 12, length)
            copy(out, value_at, pointer(one.value), 0, length)
            value_at += length
        at += _HEAD
    return first.seq, first.seq + taken - 1, first.position, first.time_us, size, block


def block_messages(block: tuple[Any, ...], first: int, last: int, most_bytes: int) -> list[Any]:
    """Return the messages of a block (first seq, last seq, position, time, data) whose seqs are in a range.

    Each is as `row_messages` takes it: seq, time, value, three that a plain message does not have, position, size of
    the value. A value that is larger than `most_bytes` is left out.
    """
    block_first, block_last, position, time_us, data = block
    found: list[Any] = []
    source = pointer(data)
    size = len(data)
    if block_last < block_first or block_last - block_first >= size // _HEAD:
        raise DamagedBlock(f"the block of message {block_first} is not whole")
    seq = max(first, block_first)
    stop = min(last, block_last)
    while seq <= stop:
        at = _HEAD * (seq - block_first)
        begin = get32(source, at + 8)
        length = get32(source, at + 12)
        value = bytes_of_value = None
        if length != _ABSENT:
            if begin + length > size:
                raise DamagedBlock(f"the block of message {block_first} is not whole")
            bytes_of_value = length
            if length <= most_bytes:
                value = part(source, begin, begin + length)
        at_us = time_us + get32(source, at + 4)
        found.append((seq, at_us, value, None, None, None, position + get32(source, at), bytes_of_value))
        seq += 1
    return found
