"""One subscriber: checks every delivery of a run and builds the acks.

A stream is one topic of one publisher; its messages are numbered from 0. `expected[stream]` is the number that should
come next; what was passed over is kept as gaps, so duplicates, losses and late messages are told apart exactly.
All topics have one length, so the packets of a run do too: `scan` checks those right where they arrived, and `take`
those that are in any way unusual, once a decoder has made columns of them.
"""

from typing import Any

import cython

from everlog.base import UsageError
from everlog.bench.load.gaps import Gaps

if not cython.compiled:
    from everlog.base import PublishRun
    from everlog.base.memory import Buffer, copy, equal, get32, get64, pointer, u32s, u64s
    from everlog.bench.load.figures import Tally

    _STAMP_BYTES = 24
    _FLAGS = 0x07  # QoS and retain
    _FOREIGN = 0xFFFFFFFFFFFFFFFF
    _WHOLE_BYTES = 0x10000


class Checker:
    """The checks of one subscriber. `names` are the topics of all streams, in order; `flags` QoS and retain.

    `prefix` is what every PUBLISH begins with up to its topic. A topic id of the run's table is a stream.
    """

    def __init__(
        self,
        tally: Tally,
        run: int,
        publishers: int,
        topics: int,
        filler: bytes,
        flags: int,
        prefix: bytes,
        names: bytes,
    ) -> None:
        streams = publishers * topics
        if len(filler) < _STAMP_BYTES or streams == 0 or not prefix or len(names) % streams:
            raise UsageError("a checker needs streams, topics of one length and payloads with room for a stamp")
        self.tally = tally
        self.run = run
        self.topics = topics
        self.streams = streams
        self.filler = filler
        self.flags = flags
        self.prefix = prefix
        self.names = names
        self.name_bytes = len(names) // streams
        self.received = 0
        self.distinct = 0
        self.expected = bytearray(8 * streams)
        self.gaps: dict[int, Gaps] = {}
        self.acks = bytearray()
        self.ack_bytes = 0
        self.rest_bytes = 0

    def scan(self, data: Buffer, end: int, now_ns: int) -> int:
        """Check the plain deliveries that bytes up to `end` begin with; return where they stop. `acks` has PUBACKs.

        `rest_bytes` is what follows if it is the beginning of another, which should be there again next time.
        """
        size = len(self.filler)
        with_ids = self.flags & 0x06 != 0
        prefix_bytes = len(self.prefix)
        payload = prefix_bytes + self.name_bytes + (2 if with_ids else 0)
        whole = payload + size
        self.ack_bytes = 0
        self.rest_bytes = 0
        if end > len(data) or self.flags & 0x04 or whole > _WHOLE_BYTES:  # QoS 2 and large ones are the decoder's
            return 0
        if with_ids and len(self.acks) < 4 * (end // whole):
            self.acks = bytearray(4 * (end // whole))
        source = pointer(data)
        prefix = pointer(self.prefix)
        names = pointer(self.names)
        acks = pointer(self.acks)
        at = 0
        count = 0
        while end - at >= whole and equal(source, at, prefix, 0, prefix_bytes):
            stream = self._stream(source, at + payload)
            if stream == _FOREIGN:
                break
            if not equal(source, at + prefix_bytes, names, stream * self.name_bytes, self.name_bytes):
                break
            self._check(source, at + payload, size, stream, now_ns)
            if with_ids:
                acks[4 * count] = 0x40
                acks[4 * count + 1] = 2
                copy(acks, 4 * count + 2, source, at + payload - 2, 2)
            count += 1
            at += whole
        if with_ids:
            self.ack_bytes = 4 * count
        if count:
            self._seen(count, now_ns)
        rest = end - at
        if rest < whole and equal(source, at, prefix, 0, rest if rest < prefix_bytes else prefix_bytes):
            self.rest_bytes = rest
        return at

    def take(self, run: PublishRun, now_ns: int) -> int:
        """Check a run of deliveries; return how many of them belong to this run."""
        columns = run.columns
        source = pointer(columns.source)
        flags = pointer(columns.flags)
        topics = u32s(columns.topics)
        starts = u32s(columns.payload_starts)
        ends = u32s(columns.payload_ends)
        tally = self.tally
        mine = 0
        for i in range(run.start, run.stop):
            at = starts[i]
            stream = _FOREIGN
            if ends[i] - at >= _STAMP_BYTES:
                stream = self._stream(source, at)
            if stream == _FOREIGN or stream != topics[i]:
                tally.foreign += 1
                continue
            mine += 1
            if (flags[i] & _FLAGS) != self.flags:
                tally.wrong_flags += 1
            if flags[i] & 0x08:
                tally.redelivered += 1
            self._check(source, at, ends[i] - at, stream, now_ns)
        if mine:
            self._seen(mine, now_ns)
        return mine

    def _seen(self, count: int, now_ns: int) -> int:
        self.received += count
        self.tally.received += count
        self.tally.last_ns = now_ns
        return 0

    def _stream(self, source: Buffer, at: int) -> int:
        """Return the stream that a stamp names, or _FOREIGN when it is none of this run."""
        if get32(source, at) != self.run:
            return _FOREIGN
        stream = get32(source, at + 4) * self.topics + get64(source, at + 8) % self.topics
        return stream if stream < self.streams else _FOREIGN

    def _check(self, source: Buffer, at: int, size: int, stream: int, now_ns: int) -> int:
        """Check one payload of a stream."""
        tally = self.tally
        filler = pointer(self.filler)
        if size != len(self.filler) or not equal(source, at + _STAMP_BYTES, filler, _STAMP_BYTES, size - _STAMP_BYTES):
            tally.corrupt += 1
        number = get64(source, at + 8) // self.topics
        expected = u64s(self.expected)
        if number == expected[stream]:
            expected[stream] = number + 1
            self.distinct += 1
            tally.distinct += 1
        elif self._unexpected(stream, number):
            self.distinct += 1
            tally.distinct += 1
        then = get64(source, at + 16)
        tally.deliveries.add(now_ns - then if now_ns > then else 0)
        return 0

    def _unexpected(self, stream: int, number: int) -> bool:
        """Count a message that is not the next of its stream; return whether it is new."""
        expected = u64s(self.expected)
        gaps: Any = self.gaps.get(stream)
        if number > expected[stream]:
            if gaps is None:
                gaps = self.gaps[stream] = Gaps()
            gaps.skip(expected[stream], number)
            expected[stream] = number + 1
            return True
        if gaps is not None and gaps.fill(number):
            self.tally.late += 1
            return True
        self.tally.duplicates += 1
        return False
