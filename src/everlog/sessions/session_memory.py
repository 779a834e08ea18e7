"""What a session's filters and will take in memory, as measured; the same whether its client is connected or away."""

from everlog.mqtt import Will

STORED_BYTES = 500  # of a session that outlives its connection, besides its filters and its will

_FILTER_BYTES = 430
_LEVEL_BYTES = 145  # of a filter with wildcards, which are the nodes of a tree
_KEPT_BYTES = 320  # more for a filter whose messages are kept, and the nodes once more
_SHARED_BYTES = 1400  # more for a place in a shared group
_WILL_BYTES = 600
_LITTLE_BYTES = 32 << 10  # with up to this a session has little


def filter_bytes(text: str, kept: bool) -> int:
    """Return what a subscription takes; `kept` if what matches it is kept for its session."""
    levels = text.count("/") + 1 if "+" in text or "#" in text else 0
    name = len(text) if text.isascii() else len(text.encode())
    size = _FILTER_BYTES + name + _LEVEL_BYTES * levels
    if kept:
        size += _KEPT_BYTES + name + _LEVEL_BYTES * levels
    return size + _SHARED_BYTES if text.startswith("$share/") else size


def will_bytes(will: Will | None) -> int:
    """Return what a will takes."""
    if will is None:
        return 0
    data = will.properties.correlation_data or b""
    return _WILL_BYTES + len(will.topic.encode()) + len(will.payload) + len(data) + len(will.packed_pairs)


class SessionMemory:
    """The memory of the filters and wills of all sessions, within `max_bytes`.

    The last eighth is for sessions that have little, so that a few with much leave something to all others.
    """

    def __init__(self, max_bytes: int = 1 << 62) -> None:
        self.max_bytes = max_bytes
        self.total_bytes = 0

    def has_room(self, held_bytes: int, more_bytes: int) -> bool:
        """Return whether a session that has so much may have so much more."""
        is_small = held_bytes + more_bytes <= _LITTLE_BYTES
        most = self.max_bytes if is_small else self.max_bytes - self.max_bytes // 8
        return self.total_bytes + more_bytes <= most
