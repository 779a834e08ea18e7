"""Content that a stream's file does not have yet: as an effect, or of a plain write as that record itself.

Most writes are plain: a value at the end of a stream, or of a key, and nothing else. One object is their record, what
is pending of them and what readers find. It looks like a `Record` and like `Fresh` content, and makes the structs of
those only when somebody asks for them.
"""

from typing import Any

import cython
from msgspec import json

from everlog.streams.effects import PutKey, PutMessage


class Fresh:
    """The newest content of a seq or key."""

    position: int
    time_us: int

    @property
    def effect(self) -> Any:
        """The effect that wrote it."""
        raise NotImplementedError

    @property
    def size(self) -> int:
        """How many bytes it counts for the limits."""
        return size_of(self.effect)

    @property
    def is_uploaded(self) -> bool:
        """Whether its value came in parts, which the file has."""
        return self.effect.upload is not None


class FreshEffect(Fresh):
    """Content as an effect."""

    def __init__(self, position: int, time_us: int, effect: PutMessage | PutKey) -> None:
        self.position = position
        self.time_us = time_us
        self._effect = effect

    @property
    def effect(self) -> Any:
        """The effect that wrote it."""
        return self._effect


class Asked:
    """Whoever asked a plain request: where the answer goes, and the answer when there is one.

    One that appends to a stream whose messages nobody follows waits for its commit by itself, with what it is answered.
    """

    def __init__(self, reply: str, correlation: bytes, id: int) -> None:
        self.reply = reply
        self.correlation = correlation
        self.id = id
        self.data = b""
        self.is_write = False  # and was under way until it is answered
        self.position = -1  # of its record
        self.time_us = 0
        self.previous = -1
        self.seq = 0
        self.level = 1  # at which it is answered


def new_asked(reply: str, correlation: bytes, id: int) -> Asked:
    """Return whoever asked, a little faster than the class does."""
    made = Asked.__new__(Asked)
    made.reply = reply
    made.correlation = correlation
    made.id = id
    made.data = b""
    made.is_write = False
    made.position = made.previous = -1
    made.time_us = made.seq = 0
    made.level = 1
    return made


@cython.no_gc  # nothing in it refers back to it, and hundreds of thousands wait for their files
@cython.cclass
class Appended(Fresh):
    """A plain write, as its record, made by `appended`: `key` is None for a message, whose seq is the stream's last."""

    epoch: int
    previous: int
    seq: int  # or the store's revision
    messages: int
    bytes: int
    value: Any  # bytes or None
    key: str | None
    message_id: str | None
    level: int  # at which it is answered
    asked: "Asked | None"  # whoever waits for its answer

    @property
    def effect(self) -> Any:
        """The effect, made when it is asked for."""
        if self.key is None:
            return PutMessage(self.seq, self.value)
        return PutKey(self.key, self.seq, self.value)

    @property
    def effects(self) -> list[Any]:
        """As of a record."""
        return [self.effect]

    @property
    def size(self) -> int:
        """How many bytes it counts for the limits."""
        size = 0 if self.value is None else len(self.value)
        return size if self.key is None else size + len(self.key.encode())

    @property
    def is_uploaded(self) -> bool:
        """Whether its value came in parts: never."""
        return False

    @property
    def last_seq(self) -> int:
        """As of a record."""
        return self.seq

    @property
    def count(self) -> int:
        """As of a record."""
        return 1

    @property
    def seqs(self) -> None:
        """As of a record."""
        return None

    @property
    def is_visible(self) -> bool:
        """Whether followers are told of it: always."""
        return True


def appended(
    position: int,
    time_us: int,
    epoch: int,
    previous: int,
    seq: int,
    messages: int,
    size: int,
    value: bytes | None,
    key: str | None,
    message_id: str | None,
) -> Appended:
    """Return a plain write; `size` is that of the stream after it."""
    made = Appended.__new__(Appended)
    made.position = position
    made.time_us = time_us
    made.epoch = epoch
    made.previous = previous
    made.seq = seq
    made.messages = messages
    made.bytes = size
    made.value = value
    made.key = key
    made.message_id = message_id
    made.level = 1
    made.asked = None
    return made


def size_of(effect: PutMessage | PutKey) -> int:
    """Return how many bytes a message or entry counts for the limits."""
    size = effect.size if effect.upload is not None else len(effect.value or b"")
    if effect.headers is not None:
        size += headers_size(effect.headers)
    if isinstance(effect, PutKey):
        size += len(effect.key.encode())
    return size


def headers_size(headers: dict[str, str]) -> int:
    """Return how many bytes headers take as JSON."""
    return len(json.encode(headers))
