"""The tokens of topics by level, in columns: what a topic index is built from.

Names are added in slices, and rows are packed block by block, so that whoever builds an index for hundreds of thousands
of topics lets other threads go on in between; what takes long without a break runs without the interpreter's lock.
Owned by whoever builds the index.
"""

import cython

from everlog.base import UsageError

if not cython.compiled:
    from everlog.base import TopicTable
    from everlog.base.memory import Buffer, blank, copy, filled, part, pointer, put32, u32s, u64s

_FIRST_TOPICS = 64
_SLASH, _DOLLAR = 0x2F, 0x24
_KEY_BYTES = 8
_REF_BYTES = 16  # of a reference to the bitmap of many ids
_IDS, _BLOB = 0, 1


class LevelTokens:
    """The tokens that topics have at one level, and which topics have each of them."""

    def __init__(self) -> None:
        self.table = TopicTable(0, 1 << 31, 0xFFFFFFFF)
        self.count = 0  # topics that have the level
        self.topics = bytearray(4 * _FIRST_TOPICS)  # their ids, rising
        self.tokens = bytearray(4 * _FIRST_TOPICS)  # the token of each
        self.order = bytearray()  # the tokens in the order of their bytes, once sorted
        self.begins = bytearray()  # where the ids of each token begin in `ids`, once sorted
        self.ids = bytearray()

    def __len__(self) -> int:
        return self.table.count

    def add(self, names: Buffer, start: int, size: int, topic: int) -> int:
        """Note the token of a topic."""
        if 4 * self.count == len(self.topics):
            self.topics.extend(bytes(len(self.topics)))
            self.tokens.extend(bytes(len(self.tokens)))
        token = self.table.find_or_add(names, start, size)
        if token < 0:
            raise UsageError(f"a level of {self.table.count} tokens is too large for an index")
        u32s(self.topics)[self.count] = topic
        u32s(self.tokens)[self.count] = token
        self.count += 1
        return 0

    def add_again(self, topic: int) -> int:
        """Note that a topic has the token of the last one that has the level."""
        if 4 * self.count == len(self.topics):
            self.topics.extend(bytes(len(self.topics)))
            self.tokens.extend(bytes(len(self.tokens)))
        tokens = u32s(self.tokens)
        u32s(self.topics)[self.count] = topic
        tokens[self.count] = tokens[self.count - 1]
        self.count += 1
        return 0

    def sort(self) -> None:
        """Sort the tokens by their bytes, and the topics by token."""
        total = self.table.count
        count = self.count
        self.begins = bytearray(4 * (total + 2))
        self.ids = bytearray(4 * count)
        begins = u32s(self.begins)
        ids = u32s(self.ids)
        topics = u32s(self.topics)
        tokens = u32s(self.tokens)
        column, spare, keys = bytearray(4 * total), bytearray(4 * total), bytearray(8 * total)
        order = u32s(column)
        other = u32s(spare)
        key = u64s(keys)
        names = pointer(self.table.names)
        ends = u32s(self.table.ends)
        with cython.nogil:
            group(begins, ids, topics, tokens, total, count)
            for token in range(total):
                order[token] = token
                key[token] = key_of(names, ends[token], ends[token + 1])
        width = 1
        while width < total:
            with cython.nogil:
                merge_runs(order, other, total, width, key, names, ends)
            order, other = other, order
            column, spare = spare, column
            width *= 2
        self.order = column

    def token(self, place: int) -> bytes:
        """Return the token at a place in their order."""
        return self.table.name(self._at(place))

    def _at(self, place: int) -> int:
        if not 0 <= 4 * place < len(self.order):
            raise IndexError(f"no token at {place}; there are {len(self.order) // 4}, once they are sorted")
        return u32s(self.order)[place]

    def many(self, first: int, stop: int, few: int) -> list[bytes]:
        """Return the topics (u32s) of each of the tokens `first` to before `stop` that has more than a few."""
        found: list[bytes] = []
        begins = u32s(self.begins)
        for place in range(first, stop):
            token = self._at(place)
            if begins[token + 1] - begins[token] > few:
                found.append(part(pointer(self.ids), 4 * begins[token], 4 * begins[token + 1]))
        return found

    def block(self, first: int, stop: int, few: int, refs: bytes) -> bytes:
        """Pack the tokens `first` to before `stop` as a block of an index; `refs` are to the bitmaps of `many`."""
        begins = u32s(self.begins)
        ends = u32s(self.table.ends)
        size = 0
        token_bytes = 0
        for place in range(first, stop):
            token = self._at(place)
            ids = begins[token + 1] - begins[token]
            token_bytes += ends[token + 1] - ends[token]
            size += 1 + (4 * ids if ids <= few else _REF_BYTES)
        count = stop - first
        tokens_at = 4 + 4 * count
        postings_at = tokens_at + token_bytes + 4 * count
        made = blank(postings_at + size)
        out = pointer(made)
        put32(out, 0, count)
        names = pointer(self.table.names)
        source = pointer(self.ids)
        token_end = 0
        end = 0
        ref_at = 0
        for place in range(first, stop):
            token = u32s(self.order)[place]
            size = ends[token + 1] - ends[token]
            copy(out, tokens_at + token_end, names, ends[token], size)
            token_end += size
            ids = begins[token + 1] - begins[token]
            if ids <= few:
                out[postings_at + end] = _IDS
                copy(out, postings_at + end + 1, source, 4 * begins[token], 4 * ids)
                end += 1 + 4 * ids
            else:
                if ref_at + _REF_BYTES > len(refs):
                    raise UsageError("a token with many topics has no reference to their bitmap")
                out[postings_at + end] = _BLOB
                copy(out, postings_at + end + 1, pointer(refs), ref_at, _REF_BYTES)
                ref_at += _REF_BYTES
                end += 1 + _REF_BYTES
            put32(out, 4 + 4 * (place - first), token_end)
            put32(out, tokens_at + token_bytes + 4 * (place - first), end)
        return filled(made)


class TopicTokens:
    """The tokens of topics, level by level."""

    def __init__(self) -> None:
        self.count = 0
        self.levels: list[LevelTokens] = []
        self.dollar: list[int] = []  # the topics that begin with $

    def extend(self, table: TopicTable, stop: int) -> None:
        """Add the topics of a table from those that are here to before `stop`."""
        if stop > table.count:
            raise UsageError(f"no {stop} topics in a table of {table.count}")
        source = pointer(table.names)
        ends = u32s(table.ends)
        for topic in range(self.count, stop):
            start = ends[topic]
            name_end = ends[topic + 1]
            same_end = start + shared(source, ends, topic)
            if start < name_end and source[start] == _DOLLAR:
                self.dollar.append(topic)
            number = 0
            while start <= name_end:
                end = start
                while end < name_end and source[end] != _SLASH:
                    end += 1
                if number == len(self.levels):
                    self.levels.append(LevelTokens())
                level = self.levels[number]
                if end < same_end:
                    level.add_again(topic)
                else:
                    level.add(source, start, end - start, topic)
                start = end + 1
                number += 1
            self.count = topic + 1


def shared(names: Buffer, ends: memoryview, topic: int) -> int:
    """Return how many bytes a name begins with as the one before does."""
    if topic == 0:
        return 0
    one = ends[topic - 1]
    two = ends[topic]
    most = min(two - one, ends[topic + 1] - two)
    count = 0
    while count < most and names[one + count] == names[two + count]:
        count += 1
    return count


def group(begins: memoryview, ids: memoryview, topics: memoryview, tokens: memoryview, total: int, count: int) -> None:
    """Write the topics by token, in the order in which they came, and where those of each token begin."""
    for i in range(count):
        begins[tokens[i] + 2] += 1
    for token in range(total):
        begins[token + 2] += begins[token + 1]
    for i in range(count):
        token = tokens[i]
        ids[begins[token + 1]] = topics[i]
        begins[token + 1] += 1


def merge_runs(
    order: memoryview, other: memoryview, total: int, width: int, keys: memoryview, names: Buffer, ends: memoryview
) -> None:
    """Merge sorted runs of `width` tokens, two at a time, from one column into the other."""
    begin = 0
    while begin < total:
        middle = min(begin + width, total)
        end = min(middle + width, total)
        one = begin
        two = middle
        for at in range(begin, end):
            if two == end or (one < middle and not is_before(order[two], order[one], keys, names, ends)):
                other[at] = order[one]
                one += 1
            else:
                other[at] = order[two]
                two += 1
        begin = end


def is_before(one: int, two: int, keys: memoryview, names: Buffer, ends: memoryview) -> bool:
    """Return whether the first of two different tokens comes before the other."""
    if keys[one] != keys[two]:
        return keys[one] < keys[two]
    one_at = ends[one] + _KEY_BYTES
    two_at = ends[two] + _KEY_BYTES
    one_end = ends[one + 1]
    two_end = ends[two + 1]
    while one_at < one_end and two_at < two_end:
        key = key_of(names, one_at, one_end)
        other = key_of(names, two_at, two_end)
        if key != other:
            return key < other
        one_at += _KEY_BYTES
        two_at += _KEY_BYTES
    return one_end - ends[one] < two_end - ends[two]


def key_of(names: Buffer, start: int, end: int) -> int:
    """Return the first eight bytes of a token as a number that compares as they do."""
    key = 0
    for i in range(start, start + _KEY_BYTES):
        key = key << 8 | (names[i] if i < end else 0)
    return key
