"""Events kept for a later turn, beyond the chunk they were parsed from and the topic ids of that time."""

from collections.abc import Iterable
from dataclasses import dataclass

from everlog.base import MessageColumns, PeerError, PublishRun, TopicTable
from everlog.mqtt import Reason

_COLUMNS = (
    ("topics", 4),
    ("flags", 1),
    ("packet_ids", 2),
    ("property_starts", 4),
    ("payload_starts", 4),
    ("payload_ends", 4),
)


@dataclass(frozen=True, slots=True)
class Detached:
    """A run of messages with its own columns, the topic table's generation, and the names of its topic ids."""

    run: PublishRun
    generation: int
    names: dict[int, bytes]


def detached(events: Iterable[object], table: TopicTable) -> list[object]:
    """Return the events of one chunk for later; the columns and bytes of all its runs are copied once."""
    events = list(events)
    runs = [event for event in events if isinstance(event, PublishRun)]
    if not runs:
        return events
    old, stop = runs[0].columns, max(run.stop for run in runs)
    new = MessageColumns(max(stop, 1))
    new.source = bytes(old.source)
    for name, width in _COLUMNS:
        getattr(new, name)[: width * stop] = getattr(old, name)[: width * stop]
    topics = memoryview(old.topics).cast("I")
    names: dict[int, bytes] = {}
    for run in runs:
        for topic in set(topics[run.start : run.stop]):
            names[topic] = table.name(topic)
    return [
        Detached(PublishRun(new, event.start, event.stop, event.any_flags), table.generation, names)
        if isinstance(event, PublishRun)
        else event
        for event in events
    ]


def attached(events: Iterable[object], table: TopicTable) -> list[object]:
    """Return the events as they were, with the topic ids that the table has now."""
    return [_with_ids(event, table) if isinstance(event, Detached) else event for event in events]


def _with_ids(event: Detached, table: TopicTable) -> PublishRun:
    run = event.run
    if event.generation != table.generation:
        topics = memoryview(run.columns.topics).cast("I")
        for row in range(run.start, run.stop):
            topic = table.intern(event.names[topics[row]])
            if topic < 0:
                raise PeerError(Reason.QUOTA_EXCEEDED, "too many distinct topics")
            topics[row] = topic
    return run
