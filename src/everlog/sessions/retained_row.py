"""A retained message as the session tables store it: a batch of one record, which has a check of its own."""

from everlog.base import Records, StorageError, TopicTable


def unpack_retained(topic: str, message: bytes) -> Records:
    """Check a stored retained message and return it as a batch."""
    name = topic.encode()
    table = TopicTable(0, 1, len(name))
    table.intern(name)
    try:
        records = Records(message, 0, table)
        is_whole = records.verify() and records.new_names() == [name]
    except (StorageError, ValueError, IndexError) as error:
        raise StorageError(f"the retained message of {topic!r} is damaged: {error}") from error
    if not is_whole:
        raise StorageError(f"the retained message of {topic!r} is damaged")
    return records
