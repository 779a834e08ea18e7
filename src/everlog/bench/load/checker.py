"""One subscriber: checks every delivery of a run and builds the acks.

A stream is one topic of one publisher; its messages are numbered from 0, and the run's topic table has the topics in
the order of their streams, so a topic id is a stream. `expected[stream]` is the number that should come next; what was
passed over is kept as gaps, so duplicates, losses and late messages are told apart exactly.
"""

from typing import Any

import cython

from everlog.base import UsageError
from everlog.bench.load.gaps import Gaps

if not cython.compiled:
    from everlog.base.columns import PublishRun
    from everlog.base.memory import equal, get32, get64, pointer, u32s, u64s
    from everlog.bench.load.figures import Tally

    _STAMP_BYTES = 24
    _FLAGS = 0x07  # QoS and retain


class Checker:
    """Checks what one subscriber receives of a run with so many publishers and topics of each."""

    def __init__(self, tally: Tally, run: int, publishers: int, topics: int, filler: bytes, flags: int) -> None:
        if len(filler) < _STAMP_BYTES:
            raise UsageError(f"a payload of {len(filler)} bytes has no room for a stamp")
        self.tally = tally
        self.run = run
        self.publishers = publishers
        self.topics = topics
        self.filler = filler
        self.flags = flags
        self.received = 0
        self.distinct = 0
        self.expected = bytearray(8 * publishers * topics)
        self.gaps: dict[int, Gaps] = {}

    def take(self, run: PublishRun, now_ns: int) -> int:
        """Check a run of deliveries; how many of them belong to this run."""
        columns = run.columns
        source = pointer(columns.source)
        flags = pointer(columns.flags)
        topics = u32s(columns.topics)
        starts = u32s(columns.payload_starts)
        ends = u32s(columns.payload_ends)
        expected = u64s(self.expected)
        filler = pointer(self.filler)
        size = len(self.filler)
        streams = self.publishers * self.topics
        tally = self.tally
        deliveries = tally.deliveries
        mine = 0
        distinct = 0
        for i in range(run.start, run.stop):
            at = starts[i]
            if ends[i] - at < _STAMP_BYTES or get32(source, at) != self.run:
                tally.foreign += 1
                continue
            number = get64(source, at + 8)
            stream = get32(source, at + 4) * self.topics + number % self.topics
            number = number // self.topics
            if stream >= streams or stream != topics[i]:
                tally.foreign += 1
                continue
            mine += 1
            if ends[i] - at != size or not equal(source, at + _STAMP_BYTES, filler, _STAMP_BYTES, size - _STAMP_BYTES):
                tally.corrupt += 1
            if (flags[i] & _FLAGS) != self.flags:
                tally.wrong_flags += 1
            if flags[i] & 0x08:
                tally.redelivered += 1
            if number == expected[stream]:
                expected[stream] = number + 1
                distinct += 1
            elif self._unexpected(stream, number):
                distinct += 1
            then = get64(source, at + 16)
            deliveries.add(now_ns - then if now_ns > then else 0)
        self.received += mine
        self.distinct += distinct
        tally.received += mine
        tally.distinct += distinct
        if mine:
            tally.last_ns = now_ns
        return mine

    def _unexpected(self, stream: int, number: int) -> bool:
        """A message that is not the next of its stream; whether it is new."""
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
