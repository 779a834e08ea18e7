"""Topics sorted by how long their messages are kept: the first of a row of filters that matches a topic decides.

Implements the log's `Classes`.
"""

from collections.abc import Sequence

from everlog.base import UsageError
from everlog.topics import Postings, parse_filter

MOST_CLASSES = 255  # a class is a byte


class TopicClasses:
    """Filters in order, each with the age in microseconds up to which what it matches is kept; None for ever."""

    def __init__(self, classes: Sequence[tuple[str, int | None]]) -> None:
        if len(classes) > MOST_CLASSES:
            raise UsageError(f"{len(classes)} classes are too many", hint=f"there may be {MOST_CLASSES}")
        self._filters = [parse_filter(text, allow_shared=False) for text, _ in classes]
        self.ages_us = tuple(age for _, age in classes)

    def sort(self, names: Sequence[bytes]) -> bytes:
        """For each topic its class, 1 for the first filter; 0 where none matches."""
        postings = Postings()
        postings.extend(0, [name.decode() for name in names])
        found = bytearray(len(names))
        for number in range(len(self._filters), 0, -1):
            for topic in postings.select(self._filters[number - 1]):
                found[topic] = number
        return bytes(found)
