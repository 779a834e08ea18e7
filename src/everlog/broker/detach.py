"""Events that must outlive the chunk they were parsed from."""

from everlog.base import MessageColumns, PublishRun


def detached(event: object) -> object:
    """The event itself, or for a run of messages a copy with columns and bytes of its own."""
    if not isinstance(event, PublishRun):
        return event
    old = event.columns
    new = MessageColumns(max(event.stop, 1))
    new.source = bytes(old.source)
    for name, width in (
        ("topics", 4),
        ("flags", 1),
        ("packet_ids", 2),
        ("property_starts", 4),
        ("payload_starts", 4),
        ("payload_ends", 4),
    ):
        getattr(new, name)[: width * event.stop] = getattr(old, name)[: width * event.stop]
    return PublishRun(new, event.start, event.stop, event.any_flags)
