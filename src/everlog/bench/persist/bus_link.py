"""One connection of the load generator to a NATS server or MQTT broker: requests out, answers counted.

Requests are bytes that were rendered before, with holes for the id of each. Answers come in the order of the requests.
Whatever else arrives (deliveries of a subscription) is counted too.
"""

import cython

if not cython.compiled:
    from everlog.base.memory import Buffer, copy, equal, pointer, put64, u64s
    from everlog.bench.load.figures import Histogram
    from everlog.bench.load.posix import now_ns, receive, transmit

# What `serve` and `write` answer.
GONE, WAITING = 1, 4

_FILL_BYTES = 64 << 10  # of requests are rendered before they are sent
_HEX = b"0123456789abcdef"
_SCAN_BYTES = 192  # of an answer in which its mark is looked for
_FRAME_BYTES = 16


class Budget:
    """How many requests may still be sent, by all connections together."""

    def __init__(self, left: int = 1 << 62) -> None:
        self.left = left


class BusLink:
    """The fast half of one client; `buffer` is shared by all of a run."""

    def __init__(
        self,
        fd: int,
        is_mqtt: bool,
        buffer: bytearray,
        budget: Budget,
        times: Histogram,
        count_events: bool = False,
        out_bytes: int = 2 * _FILL_BYTES,
    ) -> None:
        self.fd = fd
        self.is_mqtt = is_mqtt
        self.buffer = buffer
        self.budget = budget
        self.times = times
        self.count_events = count_events  # deliveries are frames of several events
        self.done = 0
        self.refused = 0
        self.received = 0  # deliveries, and the events in them
        self.in_flight = 0
        self.window = 0
        self._requests: list[bytes] = []
        self._holes = bytearray()
        self._mark = b""
        self._next = 0
        self._id = 0
        self._sent = bytearray(8)
        self._first = 0
        self._out = bytearray(out_bytes)
        self._begin = 0
        self._end = 0
        self._tail = b""

    def ask(self, requests: list[bytes], holes: bytearray, mark: bytes, window: int, first_id: int) -> None:
        """Send these requests in turn from now on, `window` at a time; an answer with the mark in it is a good one.

        Nothing may be in flight.

        `holes` has two numbers for each request: where its id (8 bytes) and where its id as 16 hexadecimal digits
        belong; 0 for nowhere.
        """
        if self.in_flight:
            raise ValueError("requests are in flight")
        self._next = 0
        self._first = 0
        self._requests = requests
        self._holes = holes
        self._mark = mark
        self.window = window
        self._id = first_id
        self._sent = bytearray(8 * max(1, window))

    def stop(self) -> None:
        """Send no more."""
        self.window = 0

    def ask_again(self) -> None:
        """Take what is in flight for lost: others are sent in its place. A late answer counts for one of those."""
        self.in_flight = 0
        self._first = 0

    def serve(self) -> int:
        """Read what is there and send what the window allows; return what is left to do: GONE or WAITING."""
        size = len(self.buffer)
        held = len(self._tail)
        copy(pointer(self.buffer), 0, pointer(self._tail), 0, held)
        got = receive(self.fd, pointer(self.buffer), held, size - held)
        if got == 0:
            return GONE
        if got > 0:
            end = held + got
            at = self._parse_mqtt(end, now_ns()) if self.is_mqtt else self._parse_nats(end, now_ns())
            self._tail = bytes(self.buffer[at:end])
        return self.write()

    def write(self) -> int:
        """Send what waits and what window and budget allow; return GONE, WAITING or 0."""
        while True:
            if self._begin == self._end:
                self._begin = self._end = 0
                self._render()
                if self._end == 0:
                    return 0
            put = transmit(self.fd, pointer(self._out), self._begin, self._end - self._begin)
            if put == 0:
                return GONE
            if put < 0:
                return WAITING
            self._begin += put

    def _render(self) -> int:
        now = now_ns()
        holes = u64s(self._holes)
        while self.in_flight < self.window and self.budget.left > 0:
            request = self._requests[self._next]
            size = len(request)
            if self._end + size > len(self._out):
                if self._end > 0:
                    break
                self._out = bytearray(2 * size)
            out = pointer(self._out)
            copy(out, self._end, pointer(request), 0, size)
            self._id += 1
            if holes[2 * self._next]:
                put64(out, self._end + holes[2 * self._next], self._id)
            if holes[2 * self._next + 1]:
                self._digits(out, self._end + holes[2 * self._next + 1], self._id)
            self._end += size
            self._next += 1
            if self._next == len(self._requests):
                self._next = 0
            u64s(self._sent)[(self._first + self.in_flight) % (len(self._sent) // 8)] = now
            self.in_flight += 1
            self.budget.left -= 1
        return 0

    def _digits(self, out: bytearray, at: int, value: int) -> int:
        digits = pointer(_HEX)
        k = 15
        while k >= 0:
            out[at + k] = digits[value & 15]
            value >>= 4
            k -= 1
        return 0

    def _parse_nats(self, end: int, now: int) -> int:
        """Take whole messages; return where the rest begins."""
        source = pointer(self.buffer)
        at = 0
        while at < end:
            stop = at
            while stop < end and source[stop] != 10:
                stop += 1
            if stop == end:
                break
            if source[at] == 77 or source[at] == 72:  # MSG, HMSG
                size = 0
                scale = 1
                k = stop - 2
                while k > at and 48 <= source[k] <= 57:
                    size += (source[k] - 48) * scale
                    scale *= 10
                    k -= 1
                if stop + 1 + size + 2 > end:
                    break
                self._took(source, stop + 1, size, now)
                at = stop + 1 + size + 2
                continue
            if source[at] == 80 and source[at + 1] == 73:  # PING
                transmit(self.fd, pointer(b"PONG\r\n"), 0, 6)
            elif source[at] == 45:  # -ERR
                self.refused += 1
            at = stop + 1
        return at

    def _parse_mqtt(self, end: int, now: int) -> int:
        """Take whole packets, of MQTT 5; return where the rest begins."""
        source = pointer(self.buffer)
        at = 0
        while end - at >= 2:
            size = 0
            shift = 0
            body = at + 1
            while body < end and source[body] >= 128:
                size |= (source[body] & 127) << shift
                shift += 7
                body += 1
            if body == end:
                break
            size |= source[body] << shift
            body += 1
            if body + size > end:
                break
            if source[at] >> 4 == 3 and size > 3:
                payload = body + 2 + (source[body] << 8 | source[body + 1])
                payload += 1 + source[payload]  # the properties are short
                if payload <= body + size:
                    self._took(source, payload, body + size - payload, now)
            at = body + size
        return at

    def _took(self, source: "Buffer", at: int, size: int, now: int) -> int:
        """Take an answer, or a delivery where nothing was asked."""
        if self.in_flight == 0:
            events = 1
            if self.count_events and size > _FRAME_BYTES + 3:
                first = source[at + _FRAME_BYTES]
                events = first & 15
                if first == 0xDC:
                    events = source[at + _FRAME_BYTES + 1] << 8 | source[at + _FRAME_BYTES + 2]
            self.received += events
            return 0
        ring = len(self._sent) // 8
        self.times.add(now - u64s(self._sent)[self._first])
        self._first = (self._first + 1) % ring
        self.in_flight -= 1
        mark = len(self._mark)
        last = min(size, _SCAN_BYTES) - mark
        k = 0
        while k <= last:
            if equal(source, at + k, pointer(self._mark), 0, mark):
                self.done += 1
                return 0
            k += 1
        self.refused += 1
        return 0
