"""Postings of topics in compiled columns: for each level and token the ids of the topics that have it there, rising.

The ids of a token stand in slices of 1, 2, 4, … up to 1,024; the word after a full slice says where the next one
begins, so that a list grows without being moved. The head of a list, in u32s: where its first slice begins, where the
next id goes, where the current slice ends, how many ids there are. A filter is answered by a walk through the shortest
list of its literal levels, and if that is long through what it has in common with the next longer one; whoever walks
compares each name with the filter. Nothing is taken out: whoever has mostly ids that are gone makes postings anew.
Owned by one thread.
"""

import cython

from everlog.base import UsageError

if not cython.compiled:
    from everlog.base import TopicTable
    from everlog.base.memory import Buffer, pointer, resize, u32s

_HEAD_WORDS = 4
_SLICE_IDS = 1024
_FIRST_WORDS = 64
_SLASH, _PLUS, _HASH, _DOLLAR = 0x2F, 0x2B, 0x23, 0x24
_LEVEL_BYTES = 400  # of the objects of a level
_FEW_IDS = 1024  # in a list: their names are compared sooner than another list is looked through
_LEAPS = 8192  # of a step, from one list to the other


class IdCursor:
    """A place in the list of a token."""

    def __init__(self, place: int, left: int) -> None:
        self.place = place  # in the words, of the next id
        self.left = left  # ids from `place` on
        self.slice_ids = 1
        self.slice_end = place + 1


class TokenWalk:
    """A walk through the topics that a filter may match, in the order of their ids."""

    def __init__(self, pattern: bytes) -> None:
        self.pattern = pattern
        self.is_over = False  # no topic that is there may match any more
        self.at = 0  # the id to go on with, where no level is literal
        self.ids: IdCursor | None = None  # the list that is walked, None where no level is literal
        self.others: IdCursor | None = None  # the list that an id must be in, too

    def matches(self, table: TopicTable, topic: int) -> bool:
        """Return whether the filter matches a topic of the table."""
        ends = u32s(table.ends)
        return name_matches(
            pointer(self.pattern), len(self.pattern), pointer(table.names), ends[topic], ends[topic + 1]
        )


class TokenPostings:
    """The postings of the topics of one table."""

    def __init__(self) -> None:
        self.count = 0  # topics, from id 0 on
        self.used = 0
        self.words = bytearray(4 * _FIRST_WORDS)
        self.tables: list[TopicTable] = []  # the tokens of each level
        self.heads: list[bytearray] = []

    @property
    def size_bytes(self) -> int:
        """The memory of the postings."""
        size = len(self.words)
        for level in range(len(self.tables)):
            size += self.tables[level].memory_bytes + len(self.heads[level]) + _LEVEL_BYTES
        return size

    def add(self, table: TopicTable, topic: int) -> int:
        """Add a topic of the table, the next one: ids rise."""
        if topic < self.count or topic >= table.count:
            raise UsageError(f"topic {topic} is not the next of {self.count}")
        self.count = topic + 1
        ends = u32s(table.ends)
        names = pointer(table.names)
        start = ends[topic]
        stop = ends[topic + 1]
        level = 0
        while True:
            end = start
            while end < stop and names[end] != _SLASH:
                end += 1
            if level == len(self.tables):
                self.tables.append(TopicTable(0, 1 << 31, 0xFFFFFFFF))
                self.heads.append(bytearray(4 * _HEAD_WORDS * _FIRST_WORDS))
            tokens = self.tables[level]
            token = tokens.find_or_add(names, start, end - start)
            self._append(level, token, topic)
            if end == stop:
                return 0
            start = end + 1
            level += 1

    def _append(self, level: int, token: int, topic: int) -> int:
        heads = self.heads[level]
        h = _HEAD_WORDS * token
        if 4 * (h + _HEAD_WORDS) > len(heads):
            heads.extend(bytes(len(heads)))
        head = u32s(heads)
        place = head[h + 1]
        if place == head[h + 2]:
            place = self._begin_slice(head, h)
        u32s(self.words)[place] = topic
        head[h + 1] = place + 1
        head[h + 3] += 1
        return 0

    def _begin_slice(self, head: memoryview, h: int) -> int:
        """Begin a new slice for a token whose slices are full, and return where."""
        ids = head[h + 3]
        size = min(ids + 1, _SLICE_IDS)  # full slices hold 1, 3, 7, … ids
        start = self.used
        self.used += size + 1
        if 4 * self.used > len(self.words):
            resize(self.words, len(self.words) // 8 * 12 + 4 * (_SLICE_IDS + 1))
        if ids == 0:
            head[h] = start
        else:
            u32s(self.words)[head[h + 2]] = start
        head[h + 1] = start
        head[h + 2] = start + size
        return start

    def begin(self, walk: TokenWalk, first: int) -> int:
        """Have a walk begin at the first id that is not below `first`."""
        walk.at = first
        walk.is_over = False
        walk.ids = walk.others = None
        pattern = pointer(walk.pattern)
        size = len(walk.pattern)
        ids: IdCursor | None = None
        others: IdCursor | None = None
        level = 0
        start = 0
        while start <= size:
            end = start
            while end < size and pattern[end] != _SLASH:
                end += 1
            if end == start + 1 and pattern[start] == _HASH:
                break
            if not (end == start + 1 and pattern[start] == _PLUS):
                token = -1
                if level < len(self.tables):
                    token = self._token(level, pattern, start, end)
                if token < 0:
                    walk.is_over = True
                    return 0
                head = u32s(self.heads[level])
                one = IdCursor(head[_HEAD_WORDS * token], head[_HEAD_WORDS * token + 3])
                if ids is None or one.left < ids.left:
                    ids, others = one, ids
                elif others is None or one.left < others.left:
                    others = one
            start = end + 1
            level += 1
        if ids is not None:
            walk.ids = ids
            walk.others = others if ids.left > _FEW_IDS else None
            self._skip(ids, first)
        return 0

    def _token(self, level: int, pattern: Buffer, start: int, end: int) -> int:
        tokens = self.tables[level]
        return tokens.find(pattern, start, end - start)

    def _skip(self, ids: IdCursor, first: int) -> int:
        """Go on in a list to the first id that is not below `first`."""
        word = u32s(self.words)
        while ids.left > 0:
            here = ids.slice_end - ids.place
            if here > ids.left:
                here = ids.left
            if word[ids.place + here - 1] >= first:
                break
            ids.left -= here
            ids.place += here
            self._next_slice(ids)
        while ids.left > 0 and word[ids.place] < first:
            ids.left -= 1
            ids.place += 1
        return 0

    def _next_slice(self, ids: IdCursor) -> int:
        if ids.left > 0 and ids.place == ids.slice_end:
            ids.place = u32s(self.words)[ids.place]
            ids.slice_ids = min(2 * ids.slice_ids, _SLICE_IDS)
            ids.slice_end = ids.place + ids.slice_ids
        return 0

    def step(self, walk: TokenWalk) -> int:
        """Return the next id of a walk; -1 at its end (`is_over`), or after a long way without one."""
        if walk.is_over:
            return -1
        ids = walk.ids
        if ids is None:
            topic = walk.at
            if topic >= self.count:
                walk.is_over = True
                return -1
            walk.at = topic + 1
            return topic
        others = walk.others
        word = u32s(self.words)
        for _ in range(_LEAPS):
            if ids.left == 0 or (others is not None and others.left == 0):
                walk.is_over = True
                return -1
            topic = word[ids.place]
            if others is not None and word[others.place] != topic:
                self._skip(others, topic)
                if others.left > 0 and word[others.place] > topic:
                    self._skip(ids, word[others.place])
                continue
            ids.place += 1
            ids.left -= 1
            self._next_slice(ids)
            return topic
        return -1


def name_matches(pattern: Buffer, size: int, names: Buffer, start: int, stop: int) -> bool:
    """Return whether a filter, valid and not shared, matches the name in a range."""
    if start < stop and names[start] == _DOLLAR and size and (pattern[0] == _PLUS or pattern[0] == _HASH):
        return False  # [MQTT-4.7.2-1] a leading wildcard does not match $ topics
    i = 0
    j = start
    while True:
        if i < size and pattern[i] == _HASH:
            return True
        if i < size and pattern[i] == _PLUS:
            i += 1
            while j < stop and names[j] != _SLASH:
                j += 1
        else:
            while i < size and j < stop and pattern[i] == names[j] and pattern[i] != _SLASH:
                i += 1
                j += 1
        if i == size or j == stop:
            break
        if pattern[i] != _SLASH or names[j] != _SLASH:
            return False
        i += 1
        j += 1
    if j == stop:  # a/# matches its parent a too
        return i == size or (i + 2 == size and pattern[i] == _SLASH and pattern[i + 1] == _HASH)
    return False
