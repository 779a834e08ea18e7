"""Classes of topics by how long their messages are kept: the first filter that matches a topic decides."""

from collections.abc import Sequence

from everlog.base import UsageError
from everlog.topics import Postings, parse_filter

MOST_CLASSES = 255  # a class is a byte


class TopicClasses:
    """The log's `Classes`: filters in order, each with how long (µs) what it matches is kept, None for no limit."""

    def __init__(self, classes: Sequence[tuple[str, int | None]]) -> None:
        if len(classes) > MOST_CLASSES:
            raise UsageError(f"{len(classes)} classes are too many", hint=f"there may be {MOST_CLASSES}")
        self._filters = [parse_filter(text, allow_shared=False) for text, _ in classes]
        self.ages_us = tuple(age for _, age in classes)

    def sort(self, names: Sequence[bytes]) -> bytes:
        """Return the class of each topic: 1 for the first filter and so on, 0 if none matches."""
        postings = Postings()
        postings.extend(0, [name.decode() for name in names])
        found = bytearray(len(names))
        for number in range(len(self._filters), 0, -1):
            for topic in postings.select(self._filters[number - 1]):
                found[topic] = number
        return bytes(found)
