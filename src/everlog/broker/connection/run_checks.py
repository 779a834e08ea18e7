"""Checks on every run of arriving messages: one pass over a column, without a Python object for each message."""

import cython

if not cython.compiled:
    from everlog.base import PublishRun, TopicTable
    from everlog.base.memory import equal, pointer, u32s

_DOLLAR = 0x24


def distinct_topics(run: PublishRun) -> list[int]:
    """Return the topic ids of a run, each once, in the order of first sight."""
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


def count_qos_2(run: PublishRun) -> int:
    """Return how many QoS 2 messages of a run are not dropped."""
    flags = pointer(run.columns.flags)
    count = 0
    for i in range(run.start, run.stop):
        if flags[i] & 0x86 == 0x04:
            count += 1
    return count


def drop_unkeepable(run: PublishRun, routes: bytearray, refusing: bytearray) -> list[int]:
    """Mark messages as dropped whose shard has a byte set in `refusing`; return their rows."""
    flags = pointer(run.columns.flags)
    topics = u32s(run.columns.topics)
    route = pointer(routes)
    refuses = pointer(refusing)
    known = len(routes) // 4
    most = len(refusing)
    rows: list[int] = []
    for i in range(run.start, run.stop):
        topic = topics[i]
        if flags[i] & 0x80 or topic >= known:
            continue
        shard = route[4 * topic + (flags[i] >> 1 & 3)]
        if shard < most and refuses[shard]:
            flags[i] |= 0x80
            rows.append(i)
    return rows


def drop_reserved(run: PublishRun, reserved: bytearray) -> int:
    """Mark messages as dropped whose topic has a byte set in `reserved`; return how many."""
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


def note_reserved(table: TopicTable, reserved: bytearray) -> int:
    """Add a byte for each topic of the table that has none yet: 1 if its name begins with $."""
    known = len(reserved)
    count = table.count
    reserved.extend(bytes(count - known))
    ends = u32s(table.ends)
    names = pointer(table.names)
    marks = pointer(reserved)
    for topic in range(known, count):
        marks[topic] = ends[topic + 1] > ends[topic] and names[ends[topic]] == _DOLLAR
    return count - known


def any_begins(table: TopicTable, first: int, prefix: bytes) -> bool:
    """Return whether a name of the table from id `first` on begins with a prefix."""
    ends = u32s(table.ends)
    names = pointer(table.names)
    size = len(prefix)
    for topic in range(first, table.count):
        start = ends[topic]
        if ends[topic + 1] - start >= size and equal(names, start, pointer(prefix), 0, size):
            return True
    return False
