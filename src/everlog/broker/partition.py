"""Which rows of a batch go to which audience: one pass over the topic column, no Python object a row.

An audience is a number that stands for a set of subscribers; the router keeps what it stands for. Audience 0 is nobody.
"""

import cython

from everlog.base import UsageError

if not cython.compiled:
    from everlog.base import PublishRun, Records
    from everlog.base.memory import get32, pointer, u16s, u32s


class Partitioner:
    """Splits batches by audience; owns the scratch columns it counts in."""

    def __init__(self) -> None:
        self.counts = bytearray(4 * 64)
        self.rows = bytearray()

    def split(
        self,
        records: Records,
        first_row: int,
        names: bytearray,
        audience_of: bytearray,
        audiences: int,
        stop_row: int = -1,
    ) -> list[tuple[int, bytearray | None, int, int]] | set[int]:
        """(audience, rows, start, stop) for each audience with rows from `first_row` on; rows None means every row.

        `names` has the broker's topic id of each topic id of the batch, `audience_of` the audience of each of the
        broker's. Where one or the other is not known yet, the answer is the set of the batch's topics that lack it.
        """
        count = records.count
        if 0 <= stop_row < count:
            count = stop_row
        known = len(names) // 4
        resolved = len(audience_of) // 4
        raw = pointer(records.data)
        topics = records.start + records.layout.topics
        name = u32s(names)
        audience = u32s(audience_of)
        if len(self.counts) < 4 * audiences:
            self.counts = bytearray(8 * audiences)
        counts = u32s(self.counts)
        touched: list[int] = []
        missing: set[int] = set()
        last = 0xFFFFFFFF
        which = 0
        for i in range(first_row, count):
            topic = get32(raw, topics + 4 * i)
            if topic != last:
                if topic >= known:
                    self.counts = bytearray(len(self.counts))
                    raise UsageError(f"topic {topic} of the batch is unknown")
                if name[topic] >= resolved or audience[name[topic]] >= audiences:
                    missing.add(topic)
                    continue
                which = audience[name[topic]]
                last = topic
                if counts[which] == 0:
                    touched.append(which)
            counts[which] += 1
        if missing:
            for which in touched:
                counts[which] = 0
            return missing
        parts: list[tuple[int, bytearray | None, int, int]] = []
        if len(touched) == 1:
            which = touched[0]
            counts[which] = 0
            if which:
                parts.append((which, None, first_row, count))
            return parts
        if not touched:
            return parts
        rows = bytearray(4 * (count - first_row))
        column = u32s(rows)
        start = 0
        for which in touched:
            if which:
                parts.append((which, rows, start, start + counts[which]))
            size = counts[which]
            counts[which] = start
            start += size
        for i in range(first_row, count):
            which = audience[name[get32(raw, topics + 4 * i)]]
            column[counts[which]] = i
            counts[which] += 1
        for which in touched:
            counts[which] = 0
        return parts


def merge_rows(parts: list[tuple[bytearray, int, int]], count: int) -> bytearray:
    """The rows of several parts of one batch of `count` records, in order."""
    marks = bytearray(count)
    mark = pointer(marks)
    total = 0
    for rows, start, stop in parts:
        column = u32s(rows)
        for k in range(start, stop):
            if column[k] < count:
                mark[column[k]] = 1
        total += stop - start
    merged = bytearray(4 * total)
    out = u32s(merged)
    at = 0
    for i in range(count):
        if mark[i]:
            out[at] = i
            at += 1
    return merged[: 4 * at]


def distinct_topics(run: PublishRun) -> list[int]:
    """The topic ids of a run, each once in the order of first sight when few, at least never twice in a row."""
    topics = u32s(run.columns.topics)
    found: list[int] = []
    seen = set()
    last = -1
    for i in range(run.start, run.stop):
        topic = topics[i]
        if topic != last:
            last = topic
            if topic not in seen:
                seen.add(topic)
                found.append(topic)
    return found


def drop_known(run: PublishRun, received: bytearray) -> int:
    """Mark QoS 2 messages whose id is in the bit set `received` as dropped, and put the others' ids in; how many.

    One that is dropped already was refused: [MQTT-4.3.3-9] its id stays free.
    """
    flags = pointer(run.columns.flags)
    ids = u16s(run.columns.packet_ids)
    bits = pointer(received)
    if len(received) < 8192:
        raise UsageError("a set of packet ids has 8,192 bytes")
    dropped = 0
    for i in range(run.start, run.stop):
        if flags[i] & 0x86 == 0x04:
            place = ids[i] >> 3
            bit = 1 << (ids[i] & 7)
            if bits[place] & bit:
                flags[i] |= 0x80
                dropped += 1
            else:
                bits[place] |= bit
    return dropped


def forget_ids(ids: bytes, received: bytearray) -> int:
    """Take packet ids (a column) out of the bit set; how many were in it."""
    column = u16s(ids)
    bits = pointer(received)
    if len(received) < 8192:
        raise UsageError("a set of packet ids has 8,192 bytes")
    count = 0
    for k in range(len(ids) // 2):
        place = column[k] >> 3
        bit = 1 << (column[k] & 7)
        if bits[place] & bit:
            bits[place] &= 0xFF ^ bit
            count += 1
    return count


def known_ids(ids: bytes, received: bytearray) -> int:
    """How many of the packet ids (a column) are in the bit set."""
    column = u16s(ids)
    bits = pointer(received)
    if len(received) < 8192:
        raise UsageError("a set of packet ids has 8,192 bytes")
    count = 0
    for k in range(len(ids) // 2):
        if bits[column[k] >> 3] & 1 << (column[k] & 7):
            count += 1
    return count


def count_qos_2(run: PublishRun) -> int:
    """How many QoS 2 messages of a run are not dropped."""
    flags = pointer(run.columns.flags)
    count = 0
    for i in range(run.start, run.stop):
        if flags[i] & 0x86 == 0x04:
            count += 1
    return count


def drop_reserved(run: PublishRun, reserved: bytearray) -> int:
    """Mark messages as dropped whose topic has a byte set in `reserved`; how many."""
    flags = pointer(run.columns.flags)
    topics = u32s(run.columns.topics)
    marks = pointer(reserved)
    known = len(reserved)
    dropped = 0
    for i in range(run.start, run.stop):
        if topics[i] < known and marks[topics[i]]:
            flags[i] |= 0x80
            dropped += 1
    return dropped
