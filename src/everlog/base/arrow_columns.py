"""Rows of batches as the buffers that Arrow makes columns of: one call per column, whatever the number of rows.

The rows are given as a list of pieces (batch, rows, start, stop): rows `start` to before `stop` of the batch or, with
`rows` (u32s), the rows whose numbers stand in those places of it. Offsets of values are 32 bits wide, as Arrow's are;
OverflowError says that the pieces hold more than such a column can.
"""

import cython

from everlog.base.errors import StorageError, UsageError

if not cython.compiled:
    from everlog.base.memory import Buffer, blank, copy, filled, get32, pointer, put32, put64, u32s
    from everlog.base.records import Records

Piece = tuple["Records", "bytearray | None", int, int]

_MOST = 0x7FFFFFFF


def count_rows(pieces: list[Piece]) -> int:
    """Return how many rows the pieces have; raise if any is not a row of its batch."""
    total = 0
    for part, rows, start, stop in pieces:
        limit = part.count if rows is None else len(rows) // 4
        if start < 0 or stop < start or stop > limit:
            raise UsageError(f"no rows {start} to {stop} among {limit}")
        if rows is not None:
            chosen = u32s(rows)
            for k in range(start, stop):
                if chosen[k] >= part.count:
                    raise UsageError(f"row {chosen[k]} of a batch of {part.count}")
        total += stop - start
    return total


def offset_column(pieces: list[Piece]) -> bytes:
    """Return the offsets in the shard as i64s."""
    block = blank(8 * count_rows(pieces))
    out = pointer(block)
    at = 0
    for part, rows, start, stop in pieces:
        picked = rows is not None
        chosen = u32s(rows if rows is not None else b"")
        raw = pointer(part.data)
        offsets = part.start + part.layout.offsets
        base = part.base_offset
        spread = part.with_offsets
        for k in range(start, stop):
            row = chosen[k] if picked else k
            put64(out, at, base + (get32(raw, offsets + 4 * row) if spread else row))
            at += 8
    return filled(block)


def time_column(pieces: list[Piece]) -> bytes:
    """Return the times as i64s: microseconds since 1970."""
    block = blank(8 * count_rows(pieces))
    out = pointer(block)
    at = 0
    for part, rows, start, stop in pieces:
        picked = rows is not None
        chosen = u32s(rows if rows is not None else b"")
        raw = pointer(part.data)
        times = part.start + part.layout.times
        first = part.first_time
        for k in range(start, stop):
            row = chosen[k] if picked else k
            put64(out, at, first + get32(raw, times + 4 * row))
            at += 8
    return filled(block)


def topic_column(pieces: list[Piece], bases: list[int]) -> bytes:
    """Return the topic ids as u32s, each with the base of its piece added."""
    block = blank(4 * count_rows(pieces))
    if len(bases) != len(pieces):
        raise UsageError(f"{len(bases)} bases for {len(pieces)} pieces")
    out = pointer(block)
    at = 0
    number = 0
    for part, rows, start, stop in pieces:
        picked = rows is not None
        chosen = u32s(rows if rows is not None else b"")
        raw = pointer(part.data)
        topics = part.start + part.layout.topics
        base = bases[number]
        number += 1  # noqa: SIM113 - a C integer when compiled
        for k in range(start, stop):
            row = chosen[k] if picked else k
            put32(out, at, base + get32(raw, topics + 4 * row))
            at += 4
    return filled(block)


def publisher_column(pieces: list[Piece], known: int) -> bytes:
    """Return the publishers' ids as u32s, `known` in place of whatever is not below it: nobody, or not known."""
    block = blank(4 * count_rows(pieces))
    out = pointer(block)
    at = 0
    for part, rows, start, stop in pieces:
        picked = rows is not None
        chosen = u32s(rows if rows is not None else b"")
        raw = pointer(part.data)
        named = part.layout.publishers > 0
        publishers = part.start + part.layout.publishers
        for k in range(start, stop):
            row = chosen[k] if picked else k
            who = known
            if named:
                who = get32(raw, publishers + 4 * row)
                if who > known:
                    who = known
            put32(out, at, who)
            at += 4
    return filled(block)


def has_publishers(pieces: list[Piece]) -> bool:
    """Return whether a batch among the pieces says who has published its records."""
    for part, _rows, _start, _stop in pieces:  # noqa: SIM110
        if part.layout.publishers:
            return True
    return False


def flag_columns(pieces: list[Piece]) -> tuple[bytes, bytes]:
    """Return the QoS as bytes and RETAIN as bits."""
    total = count_rows(pieces)
    levels = blank(total)
    bits = bytearray(total + 7 >> 3)
    out = pointer(levels)
    retain = pointer(bits)
    at = 0
    for part, rows, start, stop in pieces:
        picked = rows is not None
        chosen = u32s(rows if rows is not None else b"")
        raw = pointer(part.data)
        flags = part.start + part.layout.flags
        for k in range(start, stop):
            row = chosen[k] if picked else k
            flag = raw[flags + row]
            out[at] = flag >> 1 & 3
            if flag & 1:
                retain[at >> 3] |= 1 << (at & 7)
            at += 1
    return filled(levels), bytes(bits)


def payload_column(pieces: list[Piece]) -> tuple[bytes, bytes]:
    """Return the payloads: where each begins and the last ends (i32s), and their bytes."""
    return _values(pieces, False)


def property_column(pieces: list[Piece]) -> tuple[bytes, bytes]:
    """Return the property sections in the same form; a record without properties has an empty one."""
    return _values(pieces, True)


def has_properties(pieces: list[Piece]) -> bool:
    """Return whether a batch among the pieces has any properties."""
    for part, _rows, _start, _stop in pieces:  # noqa: SIM110
        if part.with_properties:
            return True
    return False


def _values(pieces: list[Piece], of_properties: bool) -> tuple[bytes, bytes]:
    total = count_rows(pieces)
    size = 0
    for part, rows, start, stop in pieces:
        size += _bytes_of(part, rows, start, stop, of_properties)
    if size > _MOST:
        raise OverflowError(f"{size} bytes of values are too many for one column")
    ends = blank(4 * (total + 1))
    block = blank(size)
    end = pointer(ends)
    out = pointer(block)
    at = 0
    number = 0
    for part, rows, start, stop in pieces:
        if of_properties and not part.with_properties:
            for _k in range(start, stop):
                put32(end, 4 * number, at)
                number += 1
            continue
        picked = rows is not None
        chosen = u32s(rows if rows is not None else b"")
        raw = pointer(part.data)
        theirs = part.start + (part.layout.property_ends if of_properties else part.layout.payload_ends)
        base = part.start + (part.layout.properties if of_properties else part.layout.payloads)
        if picked:
            for k in range(start, stop):
                row = chosen[k]
                begin = get32(raw, theirs + 4 * row)
                wide = get32(raw, theirs + 4 * row + 4) - begin
                copy(out, at, raw, base + begin, wide)
                put32(end, 4 * number, at)
                at += wide
                number += 1
        else:
            begin = get32(raw, theirs + 4 * start)
            wide = get32(raw, theirs + 4 * stop) - begin
            copy(out, at, raw, base + begin, wide)
            for k in range(start, stop):
                put32(end, 4 * number, at + get32(raw, theirs + 4 * k) - begin)
                number += 1
            at += wide
    put32(end, 4 * number, at)
    return filled(ends), filled(block)


def _bytes_of(part: Records, rows: "bytearray | None", start: int, stop: int, of_properties: bool) -> int:
    """Return the total size of some rows' values; raise unless they lie inside the batch, one after the other."""
    if of_properties and not part.with_properties:
        return 0
    raw = pointer(part.data)
    theirs = part.start + (part.layout.property_ends if of_properties else part.layout.payload_ends)
    limit = part.property_bytes if of_properties else part.payload_bytes
    picked = rows is not None
    chosen = u32s(rows if rows is not None else b"")
    total = 0
    for k in range(start, stop):
        row = chosen[k] if picked else k
        begin = get32(raw, theirs + 4 * row)
        end = get32(raw, theirs + 4 * row + 4)
        if end < begin or end > limit:
            raise StorageError(f"the record at offset {part.offset(row)} lies outside its batch")
        total += end - begin
    return total


def _count_values(ends: bytes, data: bytes) -> int:
    """Return how many values a column has; raise unless they lie in its bytes, one after the other."""
    total = len(ends) // 4 - 1
    if total < 0 or len(ends) % 4:
        raise UsageError(f"{len(ends)} bytes are no ends of values")
    theirs = u32s(ends)
    if theirs[total] > len(data):
        raise UsageError("a column's values do not lie in its bytes")
    for i in range(total):
        if theirs[i] > theirs[i + 1]:
            raise UsageError(f"value {i} of a column ends before it begins")
    return total


def take_texts(numbers: bytes, ends: bytes, data: bytes) -> tuple[bytes, bytes]:
    """Take values by number (u32s) out of a column (ends as i32s, and bytes) and return them as a column."""
    total = len(numbers) // 4
    known = _count_values(ends, data)
    number = u32s(numbers)
    theirs = u32s(ends)
    source = pointer(data)
    size = 0
    for i in range(total):
        k = number[i]
        if k >= known:
            raise StorageError(f"topic {k} is used, and {known} are named")
        size += theirs[k + 1] - theirs[k]
    if size > _MOST:
        raise OverflowError(f"{size} bytes of values are too many for one column")
    result_ends = blank(4 * (total + 1))
    result = blank(size)
    end = pointer(result_ends)
    out = pointer(result)
    at = 0
    for i in range(total):
        k = number[i]
        begin = theirs[k]
        wide = theirs[k + 1] - begin
        copy(out, at, source, begin, wide)
        put32(end, 4 * i, at)
        at += wide
    put32(end, 4 * total, at)
    return filled(result_ends), filled(result)


def take_lists(numbers: bytes, firsts: bytes, ends: bytes, data: bytes) -> tuple[bytes, bytes, bytes]:
    """Take lists by number; list k is the values from firsts[k] to before firsts[k + 1] of a column."""
    total = len(numbers) // 4
    known = len(firsts) // 4 - 1
    values = _count_values(ends, data)
    number = u32s(numbers)
    first = u32s(firsts)
    theirs = u32s(ends)
    source = pointer(data)
    count = 0
    size = 0
    for i in range(total):
        k = number[i]
        if k >= known or first[k] > first[k + 1] or first[k + 1] > values:
            raise StorageError(f"topic {k} is used, and {known} are named")
        count += first[k + 1] - first[k]
        size += theirs[first[k + 1]] - theirs[first[k]]
    if size > _MOST or count > _MOST:
        raise OverflowError(f"{count} values of {size} bytes are too many for one column")
    lists = blank(4 * (total + 1))
    result_ends = blank(4 * (count + 1))
    result = blank(size)
    list_end = pointer(lists)
    end = pointer(result_ends)
    out = pointer(result)
    at = 0
    place = 0
    for i in range(total):
        put32(list_end, 4 * i, place)
        k = number[i]
        begin = theirs[first[k]]
        wide = theirs[first[k + 1]] - begin
        copy(out, at, source, begin, wide)
        for j in range(first[k], first[k + 1]):
            put32(end, 4 * place, at + theirs[j] - begin)
            place += 1
        at += wide
    put32(list_end, 4 * total, place)
    put32(end, 4 * place, at)
    return filled(lists), filled(result_ends), filled(result)


def filled_values(ends: bytes) -> bytes:
    """Return a bit for each value of a column, set when the value is not empty."""
    total = len(ends) // 4 - 1
    theirs = u32s(ends)
    bits = bytearray(total + 7 >> 3)
    valid = pointer(bits)
    for i in range(total):
        if theirs[i + 1] > theirs[i]:
            valid[i >> 3] |= 1 << (i & 7)
    return bytes(bits)


def _property_bytes(source: Buffer, at: int, end: int) -> int:
    """Return the size of the PUBLISH property at a position, identifier included; -1 if it is cut short."""
    room = end - at
    kind = source[at]
    if kind == 0x01:
        size = 2
    elif kind == 0x02:
        size = 5
    elif kind == 0x23:
        size = 3
    elif kind == 0x0B:
        size = 2
        while size < room and size < 5 and source[at + size - 1] & 0x80:
            size += 1
    elif kind == 0x03 or kind == 0x08 or kind == 0x09 or kind == 0x26:
        if room < 3:
            return -1
        size = 3 + (source[at + 1] << 8 | source[at + 2])
        if kind == 0x26:
            if room < size + 2:
                return -1
            size += 2 + (source[at + size] << 8 | source[at + size + 1])
    else:
        return -1
    return size if size <= room else -1


def _find_property(source: Buffer, at: int, end: int, kind: int) -> int:
    """Return where the first property of a kind stands, or -1."""
    while at < end:
        size = _property_bytes(source, at, end)
        if size < 0:
            return -1
        if source[at] == kind:
            return at
        at += size
    return -1


def expiry_column(ends: bytes, data: bytes) -> tuple[bytes, bytes]:
    """Return the message expiry intervals of a column of properties: validity bits and i64s."""
    total = _count_values(ends, data)
    theirs = u32s(ends)
    source = pointer(data)
    bits = bytearray(total + 7 >> 3)
    valid = pointer(bits)
    block = bytearray(8 * total)
    out = pointer(block)
    for i in range(total):
        at = _find_property(source, theirs[i], theirs[i + 1], 0x02)
        if at >= 0:
            valid[i >> 3] |= 1 << (i & 7)
            number = source[at + 1] << 8 | source[at + 2]
            put64(out, 8 * i, number << 16 | source[at + 3] << 8 | source[at + 4])
    return bytes(bits), bytes(block)


def text_property_column(ends: bytes, data: bytes, kind: int) -> tuple[bytes, bytes, bytes]:
    """Return the values of a string or binary property of each row: validity bits, ends and bytes."""
    total = _count_values(ends, data)
    theirs = u32s(ends)
    source = pointer(data)
    bits = bytearray(total + 7 >> 3)
    valid = pointer(bits)
    found = blank(4 * (total + 1))
    end = pointer(found)
    values = bytearray(len(data))  # enough: values are parts of `data`
    out = pointer(values)
    filled_to = 0
    for i in range(total):
        put32(end, 4 * i, filled_to)
        at = _find_property(source, theirs[i], theirs[i + 1], kind)
        if at >= 0:
            valid[i >> 3] |= 1 << (i & 7)
            size = source[at + 1] << 8 | source[at + 2]
            copy(out, filled_to, source, at + 3, size)
            filled_to += size
    put32(end, 4 * total, filled_to)
    return bytes(bits), filled(found), bytes(values[:filled_to])


def user_property_columns(ends: bytes, data: bytes) -> tuple[bytes, bytes, bytes, bytes, bytes, bytes]:
    """Return the user properties of each row: validity bits, where each row's begin, ends and bytes of the keys, ends
    and bytes of the values. Of several with one key the last counts, since a map has each key once."""
    total = _count_values(ends, data)
    theirs = u32s(ends)
    source = pointer(data)
    bits = bytearray(total + 7 >> 3)
    valid = pointer(bits)
    lists = blank(4 * (total + 1))
    place = pointer(lists)
    most = len(data) // 5 + 1  # no user property has fewer bytes
    key_ends = bytearray(4 * (most + 1))
    value_ends = bytearray(4 * (most + 1))
    keys = bytearray(len(data))
    values = bytearray(len(data))
    key_end = pointer(key_ends)
    value_end = pointer(value_ends)
    key_out = pointer(keys)
    value_out = pointer(values)
    count = 0
    key_at = 0
    value_at = 0
    for i in range(total):
        put32(place, 4 * i, count)
        at = theirs[i]
        stop = theirs[i + 1]
        while at < stop:
            size = _property_bytes(source, at, stop)
            if size < 0:
                break
            if source[at] == 0x26 and not _comes_again(source, at, at + size, stop):
                valid[i >> 3] |= 1 << (i & 7)
                wide = source[at + 1] << 8 | source[at + 2]
                copy(key_out, key_at, source, at + 3, wide)
                key_at += wide
                copy(value_out, value_at, source, at + 5 + wide, size - 5 - wide)
                value_at += size - 5 - wide
                count += 1
                put32(key_end, 4 * count, key_at)
                put32(value_end, 4 * count, value_at)
            at += size
    put32(place, 4 * total, count)
    return (
        bytes(bits), filled(lists), bytes(key_ends[: 4 * (count + 1)]), bytes(keys[:key_at]),
        bytes(value_ends[: 4 * (count + 1)]), bytes(values[:value_at]),
    )  # fmt: skip


def _comes_again(source: Buffer, one: int, at: int, stop: int) -> bool:
    """Return whether a user property from `at` on has the key of the one that stands at `one`."""
    wide = source[one + 1] << 8 | source[one + 2]
    while at < stop:
        size = _property_bytes(source, at, stop)
        if size < 0:
            return False
        if source[at] == 0x26 and (source[at + 1] << 8 | source[at + 2]) == wide:
            k = 0
            while k < wide and source[one + 3 + k] == source[at + 3 + k]:
                k += 1
            if k == wide:
                return True
        at += size
    return False
