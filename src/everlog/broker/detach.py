"""Events that must outlive the chunk they were parsed from, and the table of topics that their ids are from."""

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
    """A run of messages with columns and bytes of its own, and the names of its topics in that table."""

    run: PublishRun
    generation: int
    names: dict[int, bytes]


def detached(event: object, table: TopicTable) -> object:
    """The event itself, or for a run of messages a copy."""
    if not isinstance(event, PublishRun):
        return event
    old = event.columns
    new = MessageColumns(max(event.stop, 1))
    new.source = bytes(old.source)
    for name, width in _COLUMNS:
        getattr(new, name)[: width * event.stop] = getattr(old, name)[: width * event.stop]
    topics = memoryview(old.topics).cast("I")[event.start : event.stop]
    names = {topic: table.name(topic) for topic in set(topics)}
    return Detached(PublishRun(new, event.start, event.stop, event.any_flags), table.generation, names)


def attached(event: object, table: TopicTable) -> object:
    """The event as it was, a run with ids of the table as it is now."""
    if not isinstance(event, Detached):
        return event
    run = event.run
    if event.generation != table.generation:
        topics = memoryview(run.columns.topics).cast("I")
        ids = {topic: table.intern(name) for topic, name in event.names.items()}
        if min(ids.values()) < 0:
            raise PeerError(Reason.QUOTA_EXCEEDED, "too many distinct topics")
        for row in range(run.start, run.stop):
            topics[row] = ids[topics[row]]
    return run
