"""Reads retained messages: walks through those that a filter matches, and gathers messages into batches.

A batch made here has the index's table of names, and offsets that are the numbers of the topics.
"""

import cython

from everlog.base import RETAINED

if not cython.compiled:
    from everlog.base import HAS_EXPIRY, Layout, Records
    from everlog.base.memory import check_of, copy, get32, get64, pointer, put32, u32s, u64s
    from everlog.base.records import marked
    from everlog.broker.delivery.retained_chunks import AT_MASK, ENTRY_BYTES, RetainedChunks
    from everlog.broker.delivery.retained_index import NOWHERE, RetainedIndex
    from everlog.topics import TokenWalk

_WITH_PROPERTIES, _WITH_OFFSETS = 0x01, 0x02
_MARK_BYTES = 12
_HALF_SPAN_US = 1 << 31  # the times of a batch are within twice this
_BASE = RETAINED


class RetainedWalk:
    """A walk through the retained messages that a filter matches, by rising numbers."""

    def __init__(self, pattern: bytes, at: int, end: int) -> None:
        self.tokens = TokenWalk(pattern)
        self.is_exact = b"+" not in pattern and b"#" not in pattern
        self.at = at  # the number to go on with
        self.end = end  # only messages with numbers below it
        self.min_qos = 0
        self.not_from = b""  # the client whose messages are left out
        self.with_times = False  # the time of every message matters
        self.is_over = False
        self.index: RetainedIndex | None = None  # where the tokens' walk stands, if it does

    def go_back(self, number: int) -> None:
        """Go on with a number that was passed already."""
        self.at = number
        self.index = None
        self.is_over = False


class RetainedReader:
    """The reader of one store of retained messages."""

    def __init__(self, index: RetainedIndex, chunks: RetainedChunks) -> None:
        self.index = index
        self.chunks = chunks
        self._mark = bytearray(_MARK_BYTES)
        self._one = bytearray(4)

    def one(self, slot: int, named: bool) -> Records:
        """Return the message of a slot as a batch, as it is stored if `named`: with its topic's name."""
        u32s(self._one)[0] = slot
        return self._gather(u32s(self._one), 1, True, named)

    def collect(self, walk: RetainedWalk, max_rows: int, max_bytes: int, max_looks: int) -> Records | None:
        """Return some of the messages of a walk as a batch, and go on behind them; None if there is none among some."""
        index = self.index
        if walk.index is not index:
            walk.index = index
            index.postings.begin(walk.tokens, index.lower(walk.at))
            if walk.is_exact:
                self._begin_exact(walk)
        rows = bytearray(4 * max_rows)
        out = u32s(rows)
        numbers = u64s(index.numbers)
        places = u64s(index.places)
        publishers = u32s(index.publishers)
        besides = index.clients.lookup(walk.not_from) if walk.not_from else -1
        count = 0
        size = 0
        base = 0
        first = 0
        for _ in range(max_looks):
            if count == max_rows or size >= max_bytes or walk.is_over:
                break
            slot = self._step(walk)
            if slot < 0:
                walk.is_over = walk.is_over or walk.tokens.is_over
                break
            if numbers[slot] >= walk.end:
                walk.is_over = True
                break
            walk.at = numbers[slot] + 1
            if places[slot] == NOWHERE or (besides >= 0 and publishers[slot] == besides):
                continue
            if not walk.tokens.matches(index.names, slot):
                continue
            raw = pointer(self.chunks.chunks[places[slot] >> 32])
            at = places[slot] & AT_MASK
            flags = get32(raw, at + 24)
            if flags >> 1 & 3 < walk.min_qos:
                continue
            time_us = get64(raw, at + 8)
            if count == 0:
                base = numbers[slot]
                first = time_us
            elif numbers[slot] - base > 0xFFFFFFFF or (
                (walk.with_times or flags & HAS_EXPIRY) and _is_far(first, time_us)
            ):
                walk.go_back(numbers[slot])
                break
            out[count] = slot
            count += 1
            size += get32(raw, at + 16) + get32(raw, at + 20)
        return self._gather(out, count, False, False) if count else None

    def _begin_exact(self, walk: RetainedWalk) -> int:
        """Have the walk of a filter without wildcards look at its one topic only."""
        slot = self.index.names.lookup(walk.tokens.pattern)
        walk.is_over = slot < 0 or u64s(self.index.numbers)[slot] < walk.at
        return 0

    def _step(self, walk: RetainedWalk) -> int:
        if walk.is_exact:
            walk.is_over = True
            return self.index.names.lookup(walk.tokens.pattern)
        return self.index.postings.step(walk.tokens)

    def _gather(self, slots: memoryview, count: int, exact: bool, named: bool) -> Records:
        """Return the messages of these slots as a batch; a lone one that is stored has its topic's name with it.

        Unless times are to be exact, those far from the first are moved: a batch has no room for them.
        """
        index = self.index
        numbers = u64s(index.numbers)
        places = u64s(index.places)
        property_bytes = 0
        payload_bytes = 0
        first = 0
        for k in range(count):
            raw = pointer(self.chunks.chunks[places[slots[k]] >> 32])
            at = places[slots[k]] & AT_MASK
            property_bytes += get32(raw, at + 16)
            payload_bytes += get32(raw, at + 20)
            if k == 0:
                first = get64(raw, at + 8)
        if not exact:
            first = first - _HALF_SPAN_US if first > _HALF_SPAN_US else 0
        names = index.names
        name_ends = u32s(names.ends)
        name_at = name_ends[slots[0]]
        name_bytes = name_ends[slots[0] + 1] - name_at if named else 0
        kind = (_WITH_PROPERTIES if property_bytes else 0) | (0 if exact else _WITH_OFFSETS)
        plan = Layout(count, 1 if named else 0, name_bytes, property_bytes, payload_bytes, kind)
        block = bytearray(plan.end)  # padding is zero
        out = pointer(block)
        mark = pointer(self._mark)
        payload_at = 0
        property_at = 0
        last = first
        for k in range(count):
            slot = slots[k]
            raw = pointer(self.chunks.chunks[places[slot] >> 32])
            at = places[slot] & AT_MASK
            time_us = get64(raw, at + 8)
            if time_us < first:
                time_us = first
            elif time_us - first > 0xFFFFFFFF:
                time_us = first + 0xFFFFFFFF
            last = max(last, time_us)
            properties = get32(raw, at + 16)
            payload = get32(raw, at + 20)
            flags = get32(raw, at + 24)
            put32(out, plan.times + 4 * k, time_us - first)
            put32(out, plan.topics + 4 * k, 0 if named else slot)
            out[plan.flags + k] = flags
            at += ENTRY_BYTES
            check = marked(mark, time_us, flags)
            if property_bytes:
                copy(out, plan.properties + property_at, raw, at, properties)
                check = check_of(raw, at, properties, check)
                property_at += properties
                put32(out, plan.property_ends + 4 * (k + 1), property_at)
            copy(out, plan.payloads + payload_at, raw, at + properties, payload)
            check = check_of(raw, at + properties, payload, check)
            payload_at += payload
            put32(out, plan.payload_ends + 4 * (k + 1), payload_at)
            put32(out, plan.checks + 4 * k, check)
            if not exact:
                put32(out, plan.offsets + 4 * k, numbers[slot] - numbers[slots[0]])
        if named:
            put32(out, plan.name_ends + 4, name_bytes)
            copy(out, plan.names, pointer(names.names), name_at, name_bytes)
        plan.seal(out, _BASE | numbers[slots[0]], first, last, 0)
        return Records(block, 0, names)


def _is_far(first: int, time_us: int) -> bool:
    """Return whether a batch whose first message has a time has no room for another time."""
    return time_us >= first + _HALF_SPAN_US or time_us + _HALF_SPAN_US < first
