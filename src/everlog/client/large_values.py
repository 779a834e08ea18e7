"""Values that are larger than a message of the bus: sent ahead in parts, and read in parts."""

import asyncio
import secrets
from collections.abc import Sequence
from typing import TypeVar

from everlog.bus import READ, WRITE
from everlog.client.errors import NotFound, PersistError
from everlog.client.requester import Requester
from everlog.streams import Entry, ErrorCode, Kind, ReadValue, StoredMessage, Upload, ValuePart

T = TypeVar("T", StoredMessage, Entry)
_AT_ONCE = 4  # parts under way
_LARGEST_PART = 256 << 10
_ROOM = 4096  # of a message, for all but the value


def part_bytes(requester: Requester) -> int:
    """Return how much of a value one message carries."""
    return min(_LARGEST_PART, requester.bus.max_payload - _ROOM)


async def upload(requester: Requester, stream: str, kind: Kind, value: bytes) -> str:
    """Send a value ahead, and return the name by which a write refers to it."""
    name, step = secrets.token_hex(12), part_bytes(requester)
    starts = range(0, len(value), step)

    for part, at in enumerate(starts):  # in order: a part counts when those before it are there
        await requester.call(Upload(stream, name, part, value[at : at + step], kind), WRITE)
    return name


async def whole_value(requester: Requester, stream: str, found: T) -> bytes:
    """Return the value that was left out of a message or entry; raises PersistError if it is another one now."""
    step = part_bytes(requester)
    seq, key = (None, found.key) if isinstance(found, Entry) else (found.seq, None)

    async def read(offset: int) -> bytes:
        length = min(step, found.size - offset)
        reply = await requester.call(ReadValue(stream, found.position, offset, length, seq, key), READ)
        assert isinstance(reply.result, ValuePart)
        return reply.result.data

    parts: list[bytes] = []
    offsets: Sequence[int] = range(0, found.size, step)
    for at in range(0, len(offsets), _AT_ONCE):
        parts += await asyncio.gather(*(read(offset) for offset in offsets[at : at + _AT_ONCE]))
    return b"".join(parts)


def is_changed(error: PersistError) -> bool:
    """Return whether a value was replaced or deleted while it was read."""
    return error.code is ErrorCode.CHANGED or isinstance(error, NotFound)
