"""Rows of a stream's file as messages, many in one call."""

from typing import Any

from msgspec import json

from everlog.streams.values import StoredMessage

ROW_COST = 64  # bytes that a message counts in a chunk beside its value
_decode_headers = json.Decoder(dict[str, str]).decode


def message_of(row: tuple[Any, ...]) -> StoredMessage:
    """Return the message of a row: seq, time, value, headers, timestamp, expiry, position, size of the value."""
    value = row[2]
    headers = row[3]
    expires_us = row[5]
    size = row[7]
    return StoredMessage(
        row[0],
        row[1],
        value,
        None if headers is None else _decode_headers(headers),
        row[4],
        0 if expires_us is None else expires_us,
        row[6],
        0 if size is None else size,
        value is None and size is not None,
    )


def take_messages(rows: list[Any], found: list[StoredMessage], room: int) -> int:
    """Add the messages of rows while there is room for so many bytes; return what is left: 0 or less if it is full."""
    for row in rows:
        found.append(message_of(row))
        room -= ROW_COST + (0 if row[2] is None else len(row[2])) + (0 if row[3] is None else len(row[3]))
        if room <= 0:
            break
    return room
