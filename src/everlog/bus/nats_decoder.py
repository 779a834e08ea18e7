"""The protocol of NATS as a client reads it: many messages in one call.

A chunk of bytes becomes batches of deliveries by subscription number, and control lines. Subjects are kept in a
dictionary, since most come again. Limits: a control line has at most `MAX_LINE` bytes, a message what the server says.
"""

import cython

from everlog.base import PeerError
from everlog.bus.nats_subjects import from_nats

if not cython.compiled:
    from everlog.base.memory import Buffer, part, pointer
    from everlog.bus.delivery import Delivery, new_delivery

MAX_LINE = 1 << 16
MAX_MESSAGE = 1 << 30
_NAMES = 100_000  # subjects remembered; beyond it all are forgotten
_PROTOCOL_ERROR = 0x82
_REPLIES = "_INBOX/"


class NatsDecoder:
    """The reading half of one connection."""

    def __init__(self) -> None:
        self.batches: dict[int, list[Delivery]] = {}  # by subscription number; whoever takes them puts a new one here
        self.lines: list[bytes] = []  # INFO, PING, PONG, +OK and -ERR, without the end of line
        self._names: dict[bytes, str] = {}
        self._pieces: list[bytes] = []
        self._held = 0  # bytes in the pieces
        self._wanted = 0  # before these are there, parsing makes no sense

    def feed(self, data: bytes) -> None:
        """Take bytes of the server; raises PeerError if they break the protocol."""
        if self._pieces:
            self._pieces.append(data)
            self._held += len(data)
            if self._held < self._wanted:
                return
            data = b"".join(self._pieces)
            self._pieces.clear()
        done = self._parse(data, len(data))
        if done < len(data):
            rest = data[done:]
            self._pieces.append(rest)
            self._held = len(rest)

    def _parse(self, data: bytes, size: int) -> int:
        """Parse what is whole; return where the rest begins, and note how many bytes it needs."""
        source = pointer(data)
        at = 0
        while at < size:
            end = at
            while end < size and source[end] != 10:
                end += 1
            if end == size:
                if end - at > MAX_LINE:
                    raise PeerError(_PROTOCOL_ERROR, "the NATS server sends a line without an end")
                self._wanted = end - at + 1
                return at
            stop = end
            if stop > at and source[stop - 1] == 13:
                stop -= 1
            if stop - at < 4 or not (
                source[at] == 77 and source[at + 1] == 83 and source[at + 2] == 71 and source[at + 3] == 32
            ):  # not `MSG `
                self.lines.append(data[at:stop])
                at = end + 1
                continue
            after = self._message(source, at, stop, end + 1, size)
            if after == 0:
                return at
            at = after
        return at

    def _message(self, source: "Buffer", at: int, stop: int, body: int, size: int) -> int:
        """Take `MSG subject sid [reply] size` and its payload, if that is whole; return where it ends, else 0."""
        length = 0
        scale = 1
        cut = stop
        while cut > at and 48 <= source[cut - 1] <= 57 and scale <= MAX_MESSAGE:  # the size, from its end
            cut -= 1
            length += (source[cut] - 48) * scale
            scale *= 10
        if cut == stop or source[cut - 1] != 32 or length > MAX_MESSAGE:
            raise PeerError(_PROTOCOL_ERROR, "a NATS message without a size")
        first = at + 4
        second = first
        while second < cut and source[second] != 32:
            second += 1
        number = 0
        third = second + 1
        while third < cut and 48 <= source[third] <= 57 and number < MAX_MESSAGE:
            number = number * 10 + source[third] - 48
            third += 1
        if second == first or third == second + 1 or third >= cut or source[third] != 32:
            raise PeerError(_PROTOCOL_ERROR, "a NATS message without a subject or subscription")
        if size - body < length + 2:
            self._wanted = body - at + length + 2
            return 0
        reply = ""
        if third + 1 < cut - 1:
            reply = self._name(part(source, third + 1, cut - 1))
            if not reply.startswith(_REPLIES):
                reply = ""
        made = new_delivery(self._name(part(source, first, second)), part(source, body, body + length), reply, b"")
        batch = self.batches.get(number)
        if batch is None:
            self.batches[number] = [made]
        else:
            batch.append(made)
        return body + length + 2

    def _name(self, raw: bytes) -> str:
        name = self._names.get(raw)
        if name is None:
            if len(self._names) >= _NAMES:
                self._names.clear()
            name = self._names[raw] = from_nats(raw)
        return name
