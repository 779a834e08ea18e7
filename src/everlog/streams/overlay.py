"""What was decided for a stream and is not yet in its file: the newest content of seqs or keys, and what is gone.

Asked first, it says of a seq or key: its content, that it is gone, or that the file knows.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final

import cython

from everlog.streams.effects import DropAll, DropKeys, DropMessages, PutKey, PutMessage, Record
from everlog.streams.fresh import FreshEffect

if not cython.compiled:
    from everlog.streams.fresh import Appended, Fresh


class _Unknown:
    """The answer that the file knows."""


UNKNOWN: Final = _Unknown()
Known = Any  # Fresh, None if it is gone, or UNKNOWN


class Overlay:
    """Newest content by seq (of a stream) or key (of a key-value store)."""

    def __init__(self) -> None:
        self.fresh: dict[int | str, Fresh | None] = {}
        self.gone: list[tuple[int, int]] = []  # ranges of seqs of which the file's rows are gone
        self.is_all_gone = False  # all of the file's rows are

    def find(self, key: int | str) -> Known:
        """Return the content of a seq or key, None if it is gone, or UNKNOWN."""
        found = self.fresh.get(key, UNKNOWN)
        if found is not UNKNOWN:
            return found
        if self.is_all_gone:
            return None
        if self.gone and isinstance(key, int):
            for first, last in self.gone:
                if first <= key <= last:
                    return None
        return UNKNOWN

    def drop(self, first: int, last: int) -> None:
        """Note that messages in a range of seqs are gone."""
        fresh = self.fresh
        if fresh:
            inside: Iterable[int | str] = range(first, last + 1)
            if last - first > len(fresh):
                inside = [seq for seq in fresh if isinstance(seq, int) and first <= seq <= last]
            for seq in inside:
                fresh.pop(seq, None)
        end = len(self.gone) - 1
        if end >= 0 and self.gone[end][1] + 1 == first:
            self.gone[end] = (self.gone[end][0], last)
        else:
            self.gone.append((first, last))

    def take(self, position: int, record: Record | Appended) -> None:
        """Note what a record changed."""
        if isinstance(record, Appended):
            self.fresh[record.seq if record.key is None else record.key] = record
            return
        for effect in record.effects:
            if isinstance(effect, PutMessage):
                self.fresh[effect.seq] = FreshEffect(position, record.time_us, effect)
            elif isinstance(effect, PutKey):
                self.fresh[effect.key] = FreshEffect(position, record.time_us, effect)
            elif isinstance(effect, DropMessages):
                for first, last in effect.ranges:
                    self.drop(first, last)
            elif isinstance(effect, DropKeys):
                for key in effect.keys:
                    self.fresh[key] = None
            elif isinstance(effect, DropAll):
                self.fresh.clear()
                self.is_all_gone = True

    def clear(self) -> None:
        """Forget everything: the file has it."""
        self.fresh.clear()
        self.gone.clear()
        self.is_all_gone = False

    def open_ranges(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Yield the parts of a range of seqs of which the file's rows are not gone."""
        if self.is_all_gone:
            return
        for start, stop in sorted(self.gone):
            if stop < first or start > last:
                continue
            if start > first:
                yield first, start - 1
            first = max(first, stop + 1)
        if first <= last:
            yield first, last
