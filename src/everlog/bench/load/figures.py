"""What a run counts: a histogram of times, and the tally that every connection of the run adds to."""

import math

import cython

if not cython.compiled:
    from everlog.base.memory import u64s

_BUCKETS = 7424  # 256 for the values below 256, then 128 for each doubling up to 2**64


class Histogram:
    """A histogram of nanoseconds; a quantile is at most 0.8% above the true one and never below it."""

    def __init__(self) -> None:
        self.count = 0
        self.highest = 0
        self.total = 0
        self.buckets = bytearray(8 * _BUCKETS)

    def add(self, value: int) -> int:
        """Count one value."""
        if value > self.highest:
            self.highest = value
        self.count += 1
        self.total += value
        shift = 0
        while value >= 65_536:
            value >>= 8
            shift += 8
        if value >= 4096:
            value >>= 4
            shift += 4
        while value >= 256:
            value >>= 1
            shift += 1
        u64s(self.buckets)[128 * shift + value] += 1
        return 0

    def clear(self) -> None:
        """Begin anew."""
        self.count = self.highest = self.total = 0
        self.buckets[:] = bytes(8 * _BUCKETS)

    def quantile(self, share: float) -> int:
        """Return the value that this share of all values does not exceed; 0 when there are none."""
        if self.count == 0:
            return 0
        wanted = max(1, math.ceil(share * self.count))
        seen = 0
        for index, count in enumerate(memoryview(self.buckets).cast("Q")):
            seen += count
            if seen >= wanted:
                return min(upper_end(index), int(self.highest))
        return int(self.highest)

    @property
    def mean(self) -> float:
        """The average."""
        return self.total / self.count if self.count else 0.0


def upper_end(index: int) -> int:
    """Return the largest value that a bucket holds."""
    if index < 256:
        return index
    shift = index // 128 - 1
    return ((index - 128 * shift + 1) << shift) - 1


class Tally:
    """The counts of one run, over all its connections."""

    def __init__(self) -> None:
        self.sent = 0
        self.acked = 0
        self.received = 0
        self.distinct = 0
        self.duplicates = 0
        self.late = 0  # behind a later message of its publisher and topic
        self.foreign = 0  # not of this run, or on another topic than its payload says
        self.corrupt = 0  # a payload that is not what was sent
        self.wrong_flags = 0  # another QoS or retain flag than expected
        self.strange_acks = 0  # for a packet id that waits for no such ack
        self.redelivered = 0  # with the DUP flag
        self.read_bytes = 0
        self.last_ns = 0  # when something was last acked or delivered
        self.deliveries = Histogram()  # publish to delivery
        self.answers = Histogram()  # publish to PUBACK or PUBCOMP
