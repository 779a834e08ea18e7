"""One connection of the load generator: reads, parses, checks, acknowledges, publishes; one call for each wake-up.

Everything but control packets is done here. Control packets are left in `control` for whoever owns the link. Bytes
that wait to go out are `out[begin:end]`: at most one and a half fills of PUBLISHes, and the acks of what was read.
"""

from typing import Any

import cython

if not cython.compiled:
    from everlog.base import AckRun, PublishRun
    from everlog.base.memory import Buffer, copy, pointer
    from everlog.bench.load.checker import Checker
    from everlog.bench.load.figures import Tally
    from everlog.bench.load.posix import now_ns, receive, transmit
    from everlog.bench.load.sender import Sender
    from everlog.mqtt import Decoder, write_acks, write_answers

# What `serve` and `write` answer.
GONE, CONTROL, WAITING = 1, 2, 4

_FILL_BYTES = 128 << 10  # PUBLISHes rendered before they are sent
_FILLS = 4  # of them in a row for one connection, then it is another's turn
_READS = 4
_PUBREC, _PUBREL = 5, 6


class Link:
    """The fast half of one client. `buffer` is shared by all links of the run."""

    def __init__(
        self,
        fd: int,
        decoder: Decoder,
        buffer: bytearray,
        tally: Tally,
        sender: Sender | None = None,
        checker: Checker | None = None,
    ) -> None:
        self.fd = fd
        self.decoder = decoder
        self.buffer = buffer
        self.tally = tally
        self.sender = sender
        self.checker = checker
        self.open = False  # PUBLISHes go out only after the CONNACK
        self.slow = False  # acks are held back until `release`
        self.held: list[bytes] = []
        self.control: list[Any] = []
        self.out = bytearray()
        self.begin = 0
        self.end = 0
        self.tail = b""  # the beginning of a delivery whose end has not been read yet

    @property
    def unsent(self) -> int:
        """How many bytes wait to go out."""
        return self.end - self.begin

    def put(self, data: Buffer) -> int:
        """Queue bytes."""
        size = len(data)
        self._reserve(size)
        copy(pointer(self.out), self.end, pointer(data), 0, size)
        self.end += size
        return 0

    def _reserve(self, size: int) -> int:
        if self.begin == self.end:
            self.begin = 0
            self.end = 0
        if len(self.out) - self.end < size and self.begin > 0:
            rest = bytes(self.out[self.begin : self.end])
            self.out[: len(rest)] = rest
            self.begin = 0
            self.end = len(rest)
        if len(self.out) - self.end < size:
            self.out.extend(bytes(self.end + size - len(self.out)))
        return 0

    def serve(self, readable: bool) -> int:
        """Do what the socket is ready for; return what is left to do: GONE, CONTROL, WAITING (for room to write)."""
        told = 0
        if readable:
            told = self._read()
            if told & GONE:
                return told
        return told | self.write()

    def _read(self) -> int:
        size = len(self.buffer)
        for _ in range(_READS):
            held = len(self.tail)
            copy(pointer(self.buffer), 0, pointer(self.tail), 0, held)
            got = receive(self.fd, pointer(self.buffer), held, size - held)
            if got == 0:
                return GONE | (CONTROL if self.control else 0)
            if got < 0:
                break
            self.tail = b""
            self.tally.read_bytes += got
            self._parse(held + got, now_ns())
            if held + got < size:
                break
        return CONTROL if self.control else 0

    def _parse(self, end: int, now: int) -> int:
        """Check what is usual where it stands in the buffer, and leave the rest to the decoder."""
        at = 0
        if self.decoder.buffered_bytes == 0:
            if self.checker is not None:
                at = self.checker.scan(self.buffer, end, now)
                if self.checker.ack_bytes:
                    self._answer(bytes(self.checker.acks[: self.checker.ack_bytes]))
                if self.checker.rest_bytes:
                    self.tail = bytes(self.buffer[at:end])
                    return 0
            if at == 0 and self.sender is not None:
                at = self.sender.scan(self.buffer, end, now)
        if at < end:
            events = self.decoder.feed(self.buffer, end) if at == 0 else self.decoder.feed(bytes(self.buffer[at:end]))
            for event in events:
                self._take(event, now)
        return 0

    def _take(self, event: Any, now: int) -> int:
        if isinstance(event, PublishRun):
            published = event
            if self.checker is not None:
                self.checker.take(published, now)
            self._answer(write_answers(published))
        elif isinstance(event, AckRun):
            acked = event
            if acked.packet_type == _PUBREL:
                self._answer(write_acks(0x70, acked.ids, 0, len(acked.ids) // 2))
            elif self.sender is not None:
                if self.sender.acked(acked, now):
                    self.put(write_acks(0x62, acked.ids, 0, len(acked.ids) // 2))
            else:
                self.tally.strange_acks += 1
        else:
            self.control.append(event)
        return 0

    def _answer(self, answers: bytes) -> int:
        if self.slow:
            self.held.append(answers)
        elif answers:
            self.put(answers)
        return 0

    def release(self, size: int) -> int:
        """Send so many bytes of the acks that were held back."""
        waiting = b"".join(self.held)
        self.held = [waiting[size:]]
        self.put(waiting[:size])
        return self.write()

    def write(self) -> int:
        """Send what waits and what the window allows; return GONE, WAITING or 0."""
        sender = self.sender
        for _ in range(_FILLS):
            if sender is not None and self.open and self.end - self.begin < _FILL_BYTES // 2:
                count = sender.room()
                if count > 0:
                    fit = 1 + _FILL_BYTES // sender.packet_bytes
                    if count > fit:
                        count = fit
                    self._reserve(count * sender.packet_bytes)
                    self.end = sender.render(self.out, self.end, count, now_ns())
            if self.begin == self.end:
                return 0
            put = transmit(self.fd, pointer(self.out), self.begin, self.end - self.begin)
            if put == 0:
                return GONE
            if put > 0:
                self.begin += put
            if self.begin < self.end:
                return WAITING
        return WAITING if sender is not None and sender.room() > 0 else 0
