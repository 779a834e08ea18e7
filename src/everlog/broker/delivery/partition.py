"""Which rows of a batch go to which audience: one pass over the topic column, without a Python object for each row.

An audience is a number that stands for a set of subscribers, which `audiences` knows. Audience 0 is nobody.
"""

import cython

from everlog.base import UsageError

if not cython.compiled:
    from everlog.base import Records
    from everlog.base.memory import get32, pointer, u32s


class Partitioner:
    """A splitter of batches by audience, with the scratch column that it counts in."""

    def __init__(self) -> None:
        self.counts = bytearray(4 * 64)

    def split(
        self,
        records: Records,
        first_row: int,
        names: bytearray,
        audience_of: bytearray,
        audiences: int,
        stop_row: int = -1,
    ) -> list[tuple[int, bytearray | None, int, int]] | set[int]:
        """Return (audience, rows, start, stop) for each audience with rows from `first_row` on; rows None is every row.

        `names` maps the topic ids of the batch to the broker's, `audience_of` maps those to audiences. If one of them
        lacks an entry, return the set of the batch's topics without one instead.
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
    """Return the rows of several parts of one batch of `count` records, in order."""
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
