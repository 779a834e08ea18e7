"""One publisher: renders its PUBLISHes in bulk and knows which of them are unanswered.

The payload says who sent what and when: run, publisher, sequence, monotonic time, then filler. Sequence `s` goes to
topic `s` modulo the number of topics. Invariant: at most `window` packet ids are in use; `state[id]` is the ack that
an id waits for, 0 when it is free.
"""

import cython

from everlog.base import UsageError

if not cython.compiled:
    from everlog.base import AckRun
    from everlog.base.memory import Buffer, copy, pointer, put32, put64, u16s, u64s
    from everlog.bench.load.figures import Tally

    _PUBACK, _PUBREC, _PUBCOMP = 4, 5, 7

STAMP_BYTES = 24  # run and publisher (32 bits each), sequence and time (64 bits each)


class Sender:
    """The publisher of messages `next` to `limit`; `heads` are their fixed headers and topics, all of one length."""

    def __init__(
        self, tally: Tally, run: int, number: int, heads: list[bytes], qos: int, filler: bytes, window: int = 1
    ) -> None:
        if not heads or len({len(head) for head in heads}) != 1 or not 0 <= qos <= 2 or not 1 <= window <= 16_000:
            raise UsageError("a sender needs topics of one length, a QoS and a window of 1 to 16000")
        self.tally = tally
        self.run = run
        self.number = number
        self.qos = qos
        self.heads = b"".join(heads)
        self.topics = len(heads)
        self.head_bytes = len(heads[0])
        self.filler = filler  # the whole payload; the stamp overwrites its beginning, unless it is too short for one
        self.packet_bytes = self.head_bytes + (2 if qos else 0) + len(filler)
        self.window = window
        self.least = 1  # refill the window by no fewer than this, so that packets travel in batches
        self.next = 0
        self.limit = 0
        self.inflight = 0
        self.id_space = 4 * window + 64 if qos else 1
        self.last_id = 0
        self.times = bytearray(8 * (self.id_space + 1))
        self.state = bytearray(self.id_space + 1)
        self.start_ns = 0
        self.step_ns = 0
        self.offset_ns = 0
        self.tick_ns = 1

    def schedule(self, start_ns: int, step_ns: int, offset_ns: int, tick_ns: int) -> None:
        """Stamp messages with when they were due: every `step_ns` from an offset on, rounded up to whole ticks."""
        self.start_ns = start_ns
        self.step_ns = step_ns
        self.offset_ns = offset_ns
        self.tick_ns = tick_ns

    def due_ns(self, sequence: int) -> int:
        """Return when a scheduled message should go out."""
        since = self.offset_ns + sequence * self.step_ns
        return self.start_ns + (since + self.tick_ns - 1) // self.tick_ns * self.tick_ns

    def room(self) -> int:
        """Return how many messages may go out now."""
        if self.next >= self.limit:
            return 0
        count = self.limit - self.next
        if self.qos:
            free = self.window - self.inflight
            if free < count:
                count = free if free >= self.least else 0
        return count

    def render(self, out: bytearray, at: int, count: int, now_ns: int) -> int:
        """Write the next `count` (at most `room`) PUBLISHes to a buffer that has space; return where they end."""
        if at < 0 or count < 0 or count > self.room() or len(out) - at < count * self.packet_bytes:
            raise UsageError(f"no room for {count} messages at {at}")
        target = pointer(out)
        heads = pointer(self.heads)
        filler = pointer(self.filler)
        size = len(self.filler)
        state = pointer(self.state)
        times = u64s(self.times)
        packet_id = self.last_id
        stamped = size >= STAMP_BYTES
        sequence = self.next
        topic = sequence % self.topics
        time_ns = now_ns
        for _ in range(count):
            copy(target, at, heads, topic * self.head_bytes, self.head_bytes)
            at += self.head_bytes
            if self.step_ns:
                time_ns = self.due_ns(sequence)
            if self.qos:
                packet_id = packet_id + 1 if packet_id < self.id_space else 1
                while state[packet_id]:
                    packet_id = packet_id + 1 if packet_id < self.id_space else 1
                state[packet_id] = _PUBACK if self.qos == 1 else _PUBREC
                times[packet_id] = time_ns
                target[at] = packet_id >> 8
                target[at + 1] = packet_id & 0xFF
                at += 2
            copy(target, at, filler, 0, size)
            if stamped:
                put32(target, at, self.run)
                put32(target, at + 4, self.number)
                put64(target, at + 8, sequence)
                put64(target, at + 16, time_ns)
            at += size
            sequence += 1
            topic += 1
            if topic == self.topics:
                topic = 0
        self.last_id = packet_id
        self.next = sequence
        self.tally.sent += count
        if self.qos:
            self.inflight += count
        return at

    def acked(self, run: AckRun, now_ns: int) -> int:
        """Take a run of acks; return how many of its ids now need a PUBREL: all of a PUBREC run, else none."""
        ids = u16s(run.ids)
        for i in range(len(run.ids) // 2):
            self._ack(run.packet_type, ids[i], now_ns)
        self.tally.last_ns = now_ns
        return len(run.ids) // 2 if run.packet_type == _PUBREC else 0

    def scan(self, data: Buffer, end: int, now_ns: int) -> int:
        """Take the plain PUBACKs that bytes up to `end` begin with; return where they stop."""
        if self.qos != 1 or end > len(data):
            return 0
        source = pointer(data)
        at = 0
        while end - at >= 4 and source[at] == 0x40 and source[at + 1] == 2:
            self._ack(_PUBACK, source[at + 2] << 8 | source[at + 3], now_ns)
            at += 4
        if at:
            self.tally.last_ns = now_ns
        return at

    def _ack(self, kind: int, packet_id: int, now_ns: int) -> int:
        tally = self.tally
        state = pointer(self.state)
        if packet_id > self.id_space or state[packet_id] != kind:
            tally.strange_acks += 1
        elif kind == _PUBREC:
            state[packet_id] = _PUBCOMP
        else:
            then = u64s(self.times)[packet_id]
            state[packet_id] = 0
            tally.answers.add(now_ns - then if now_ns > then else 0)
            tally.acked += 1
            self.inflight -= 1
        return 0
