"""The outbound kernels: write a run of PUBLISHes for one subscriber, or a run of acks, in one call.

A `PublishWriter` holds what is the subscriber's own: version, identifiers, aliases, limits. Records that have expired
or exceed the subscriber's packet size are left out and counted; all others are written in order. A subscriber that
asked for it is told each message's position and time, or its publisher, as user properties.
"""

from typing import Any

import cython

from everlog.base import NO_PUBLISHER, UsageError, split_publisher
from everlog.mqtt.properties import encode_pair

if not cython.compiled:
    from everlog.base import HAS_EXPIRY, NOT_KEPT, QOS_BITS, PublishRun, Records
    from everlog.base.memory import Buffer, blank, copy, filled, get32, pointer, u16s, u32s
    from everlog.base.records import property_size

MAX_PACKET_BYTES = 268_435_455 + 5
ANY_BYTES = 1 << 62
_SCATTER_BYTES = 8 << 10  # a packet, on average; from here on a copy costs more than two parts of a write

TELL_PLACE = 1  # of `tells`: messages carry their position and time
TELL_PUBLISHER = 2  # and who has published them, as far as the log says
_PLACE = TELL_PLACE
_PUBLISHER = TELL_PUBLISHER
_TIME_PROPERTY = b"\x26\x00\x0ceverlog-time\x00\x1b0000-00-00T00:00:00.000000Z"
_POSITION_PROPERTY = b"\x26\x00\x10everlog-position\x00"  # the length's low byte and the value follow
_TIME_BYTES = len(_TIME_PROPERTY)
_TIME_AT = _TIME_BYTES - 27
_POSITION_BYTES = len(_POSITION_PROPERTY) + 1


def varint_bytes(value: int) -> int:
    """Return how many bytes a variable byte integer takes."""
    return 1 if value < 128 else 2 if value < 16_384 else 3 if value < 2_097_152 else 4


def put_varint(target: bytearray, at: int, value: int) -> int:
    """Write a variable byte integer and return where it ends."""
    while value > 127:
        target[at] = value & 0x7F | 0x80
        value >>= 7
        at += 1
    target[at] = value
    return at + 1


def big_endian32(source: Buffer, at: int) -> int:
    """Read a four byte integer, byte by byte: a C `int` can't be shifted by 24 without its sign."""
    value = source[at]
    value = value << 8 | source[at + 1]
    value = value << 8 | source[at + 2]
    return value << 8 | source[at + 3]


def digits(value: int) -> int:
    """Return how many digits a number has."""
    count = 1
    while value > 9:
        value //= 10
        count += 1
    return count


def put_digits(target: bytearray, end: int, count: int, value: int) -> int:
    """Write the last `count` digits of a number before `end`, zero-padded, and return where they begin."""
    for _ in range(count):
        end -= 1
        target[end] = 48 + value % 10
        value //= 10
    return end


def put_date(target: bytearray, at: int, seconds: int) -> int:
    """Write a time as `2026-01-31T12:00:00`, computing the date by eras of 400 years."""
    days = seconds // 86_400 + 719_468  # from the first of March of the year 0
    era = days // 146_097
    day_of_era = days - era * 146_097
    year_of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    month = (5 * day_of_year + 2) // 153  # from March on
    day = day_of_year - (153 * month + 2) // 5 + 1
    year = year_of_era + era * 400 + (1 if month > 9 else 0)
    put_digits(target, at + 4, 4, year)
    put_digits(target, at + 7, 2, month + 3 if month < 10 else month - 9)
    put_digits(target, at + 10, 2, day)
    put_digits(target, at + 13, 2, seconds // 3600 % 24)
    put_digits(target, at + 16, 2, seconds // 60 % 60)
    put_digits(target, at + 19, 2, seconds % 60)
    return 0


class PublishWriter:
    """The writer of one subscriber's PUBLISH packets (or, at QoS 0 and without aliases, of all of one version).

    `identifiers` are the encoded Subscription Identifier properties. After each `write`, `next_id` is the packet id
    that comes after the `ids_used`, `written` and `left_out` count records, and `is_cut` tells that
    it ended early to stay within the bytes it was given. With `max_aliases` each topic gets the
    alias that its id selects, so that an alias may pass to another topic but the table never grows. Topics lose the
    `mount` at their beginning; those without it are left out.
    """

    def __init__(
        self,
        version: int,
        max_packet_bytes: int = MAX_PACKET_BYTES,
        max_aliases: int = 0,
        retain_as_published: bool = False,
        identifiers: bytes = b"",
        tells: int = 0,
        mount: bytes = b"",
    ) -> None:
        self.version = version
        self.mount = mount
        self.max_packet_bytes = max_packet_bytes
        self.max_aliases = max_aliases if version == 5 else 0
        self.retain_as_published = retain_as_published
        self.identifiers = identifiers if version == 5 else b""
        self.tells = tells if version == 5 else 0
        self.next_id = 1
        self.written = 0
        self.payload_bytes = 0
        self.left_out = 0
        self.ids_used = 0
        self.stopped_at = 0
        self.is_cut = False
        self.max_qos = 0
        self.alias_topics: Any = None
        self.alias_table: Any = None
        self.scratch = bytearray()
        self.stamp = bytearray(_TIME_PROPERTY) if self.tells else b""
        self.stamp_second = -1
        self.named: Any = None  # the table whose publisher was told last, its id there, and what that is told by
        self.publisher = NO_PUBLISHER
        self.publisher_pairs = b""

    def write(
        self,
        records: Records,
        rows: Buffer | None,
        start: int,
        stop: int,
        max_qos: int,
        first_id: int,
        now_us: int,
        dup: bool = False,
        max_ids: int = 65_535,
        shard: int = NOT_KEPT,
        max_bytes: int = ANY_BYTES,
    ) -> bytes:
        """Return the packets of rows `start` to before `stop` (of the batch, or of the row numbers in `rows`).

        The caller knows that `max_ids` packet ids from `first_id` on are free; they go up by one and from 65,535 to 1.
        When they are used up, or after `max_bytes`, the run ends early, at `stopped_at`; one packet is always written.
        `shard` is the records' shard.
        """
        self._check(records, rows, start, stop, max_qos, first_id)
        total = self._measure(records, rows, start, stop, max_qos, now_us, max_ids, shard, max_bytes)
        block = blank(total)
        self._fill(records, rows, start, self.stopped_at, max_qos, first_id, now_us, dup, shard, pointer(block), None)
        return filled(block)

    def write_parts(
        self,
        records: Records,
        rows: Buffer | None,
        start: int,
        stop: int,
        max_qos: int,
        first_id: int,
        now_us: int,
        dup: bool = False,
        max_ids: int = 65_535,
        shard: int = NOT_KEPT,
        max_bytes: int = ANY_BYTES,
    ) -> bytes | list[bytes | memoryview]:
        """Write as `write` does; large packets come as parts, whose payloads are views of the batch and no copies."""
        self._check(records, rows, start, stop, max_qos, first_id)
        total = self._measure(records, rows, start, stop, max_qos, now_us, max_ids, shard, max_bytes)
        parts: list[bytes | memoryview] | None = None
        size = total
        if total >= _SCATTER_BYTES * self.written and total:
            parts = []
            size = total - self.payload_bytes
        block = blank(size)
        self._fill(records, rows, start, self.stopped_at, max_qos, first_id, now_us, dup, shard, pointer(block), parts)
        return filled(block) if parts is None else parts

    def _check(self, records: Records, rows: Buffer | None, start: int, stop: int, max_qos: int, first_id: int) -> int:
        limit = records.count if rows is None else len(rows) // 4
        if not 0 <= start <= stop <= limit or not 0 <= max_qos <= 2 or not 1 <= first_id <= 65_535:
            raise UsageError(f"rows {start} to {stop} of {limit} at QoS {max_qos} from packet id {first_id}")
        self.max_qos = max_qos
        return 0

    def _measure(
        self,
        records: Records,
        rows: Buffer | None,
        start: int,
        stop: int,
        max_qos: int,
        now_us: int,
        max_ids: int,
        shard: int,
        max_bytes: int,
    ) -> int:
        """Return the size of all packets, and note each row's remaining length as scratch, 0 for one left out."""
        count = stop - start
        if len(self.scratch) < 8 * count:
            self.scratch = bytearray(8 * count)
        lengths = u32s(self.scratch)
        raw = pointer(records.data)
        plan = records.layout
        base = records.start
        name_ends = u32s(records.table.ends)
        known = records.table.count
        chosen = u32s(rows if rows is not None else b"")
        every = rows is None
        v5 = self.version == 5
        aliases = self.max_aliases > 0
        if aliases:
            self._bind_aliases(records)
        own = len(self.identifiers)
        tells = self.tells
        skip = len(self.mount)
        written = 0
        used = 0
        total = 0
        payloads = 0
        self.stopped_at = stop
        self.is_cut = False
        for k in range(count):
            i = start + k if every else chosen[start + k]
            lengths[2 * k] = 0
            if i >= records.count:
                self.alias_table = None  # this run's names were noted as sent
                raise UsageError(f"no row {i} in a batch of {records.count}")
            flags = raw[base + plan.flags + i]
            if flags & HAS_EXPIRY and self._expired(records, i, now_us):
                continue
            topic = get32(raw, base + plan.topics + 4 * i)
            if topic >= known:
                self.alias_table = None  # this run's names were noted as sent
                raise UsageError(f"row {i} has topic id {topic} of {known}")
            ends = base + plan.payload_ends + 4 * i
            payload = get32(raw, ends + 4) - get32(raw, ends)
            size = 2 + payload
            name = name_ends[topic + 1] - name_ends[topic] - skip
            if skip and not self._is_mounted(records.table, topic):
                continue
            qos = flags >> 1 & 3
            if qos and max_qos:
                if used == max_ids:
                    self.stopped_at = start + k
                    break
                size += 2
            alias = 0
            if v5:
                section = own
                if tells:
                    section += self._told_bytes(records, i, shard)
                if records.with_properties:
                    ends = base + plan.property_ends + 4 * i
                    section += get32(raw, ends + 4) - get32(raw, ends)
                if aliases:
                    alias = self._alias_of(topic)
                    section += 3
                    if alias > 0xFFFF:
                        name = 0
                size += section + varint_bytes(section)
            size += name
            whole = 1 + varint_bytes(size) + size
            if whole > self.max_packet_bytes:  # [MQTT-3.1.2-24] not sent, as if it had been
                if aliases and alias <= 0xFFFF:
                    u32s(self.alias_topics)[alias] = 0
                continue
            if total + whole > max_bytes and written:
                if aliases and alias <= 0xFFFF:
                    u32s(self.alias_topics)[alias] = 0
                self.stopped_at = start + k
                self.is_cut = True
                break
            lengths[2 * k] = size
            lengths[2 * k + 1] = alias
            written += 1
            total += whole
            payloads += payload
            if qos and max_qos:
                used += 1
        self.written = written
        self.payload_bytes = payloads
        self.left_out = self.stopped_at - start - written
        self.ids_used = used
        return total

    def _fill(
        self,
        records: Records,
        rows: Buffer | None,
        start: int,
        stop: int,
        max_qos: int,
        first_id: int,
        now_us: int,
        dup: bool,
        shard: int,
        out: bytearray,
        parts: list[bytes | memoryview] | None,
    ) -> int:
        """Write the packets that were measured; with `parts`, only what stands before payloads, and note both there."""
        lengths = u32s(self.scratch)
        raw = pointer(records.data)
        plan = records.layout
        base = records.start
        names = pointer(records.table.names)
        name_ends = u32s(records.table.ends)
        chosen = u32s(rows if rows is not None else b"")
        every = rows is None
        v5 = self.version == 5
        own = len(self.identifiers)
        tells = self.tells
        skip = len(self.mount)
        identifiers = pointer(self.identifiers)
        packet_id = first_id
        view: Any = None if parts is None else memoryview(records.data)
        at = 0
        for k in range(stop - start):
            size = lengths[2 * k]
            if size == 0:
                continue
            i = start + k if every else chosen[start + k]
            flags = raw[base + plan.flags + i]
            qos = flags >> 1 & 3
            if qos > max_qos:
                qos = max_qos
            head = at
            first = 0x30 | qos << 1
            if self.retain_as_published:
                first |= flags & 1  # [MQTT-3.3.1-13]; otherwise 0 [MQTT-3.3.1-12]
            if dup and qos:
                first |= 0x08  # [MQTT-3.3.1-1] a redelivery sets DUP, [MQTT-3.3.1-2] never at QoS 0
            out[at] = first
            at = put_varint(out, at + 1, size)
            topic = get32(raw, base + plan.topics + 4 * i)
            alias = lengths[2 * k + 1]
            name = 0 if alias > 0xFFFF else name_ends[topic + 1] - name_ends[topic] - skip
            out[at] = name >> 8
            out[at + 1] = name & 0xFF
            copy(out, at + 2, names, name_ends[topic] + skip, name)
            at += 2 + name
            if qos:
                out[at] = packet_id >> 8
                out[at + 1] = packet_id & 0xFF
                at += 2
                packet_id = packet_id + 1 if packet_id < 65_535 else 1
            if v5:
                section = 0
                begin = 0
                if records.with_properties:
                    begin = get32(raw, base + plan.property_ends + 4 * i)
                    section = get32(raw, base + plan.property_ends + 4 * i + 4) - begin
                begun = section + own + (3 if alias else 0)
                if tells:
                    begun += self._told_bytes(records, i, shard)
                at = put_varint(out, at, begun)
                if alias:
                    out[at] = 0x23
                    out[at + 1] = alias >> 8 & 0xFF
                    out[at + 2] = alias & 0xFF
                    at += 3
                copy(out, at, raw, base + plan.properties + begin, section)
                if flags & HAS_EXPIRY:
                    self._count_down(records, i, now_us, out, at, at + section)
                at += section
                copy(out, at, identifiers, 0, own)
                at += own
                if tells:
                    at = self._tell(records, i, shard, out, at)
            begin = get32(raw, base + plan.payload_ends + 4 * i)
            size = get32(raw, base + plan.payload_ends + 4 * i + 4) - begin
            if parts is None:
                copy(out, at, raw, base + plan.payloads + begin, size)
                at += size
            else:
                begin += base + plan.payloads
                parts.append(bytes(out[head:at]))
                parts.append(view[begin : begin + size])
        self.next_id = packet_id
        return 0

    def _told_bytes(self, records: Records, i: int, shard: int) -> int:
        """Return how many bytes it takes to tell of a record what was asked for."""
        size = 0
        if self.tells & _PLACE:
            size = _TIME_BYTES
            if shard != NOT_KEPT:
                size += _POSITION_BYTES + digits(shard) + 1 + digits(records.offset(i))
        if self.tells & _PUBLISHER:
            size += len(self._publisher_of(records, i))
        return size

    def _tell(self, records: Records, i: int, shard: int, out: bytearray, at: int) -> int:
        """Write what was asked for of a record; return where it ends."""
        if self.tells & _PLACE:
            at = self._put_place(records, i, shard, out, at)
        if self.tells & _PUBLISHER:
            pairs = self._publisher_of(records, i)
            copy(out, at, pointer(pairs), 0, len(pairs))
            at += len(pairs)
        return at

    def _publisher_of(self, records: Records, i: int) -> bytes:
        """Return the user properties that tell who has published a record, nothing if that is not known."""
        number = records.publisher(i)
        if number == NO_PUBLISHER or records.table.publishers is None:
            return b""
        if number != self.publisher or self.named is not records.table.publishers:  # most are of the one before
            self.named = records.table.publishers
            self.publisher = number
            client_id, user = split_publisher(self.named.name(number))
            self.publisher_pairs = encode_pair("everlog-publisher", client_id) if client_id else b""
            if user is not None:
                self.publisher_pairs += encode_pair("everlog-user", user)
        return self.publisher_pairs

    def _put_place(self, records: Records, i: int, shard: int, out: bytearray, at: int) -> int:
        """Write a record's position, if it has one, and its time; return where they end."""
        if shard != NOT_KEPT:
            offset = records.offset(i)
            before = digits(shard)
            behind = digits(offset)
            copy(out, at, pointer(_POSITION_PROPERTY), 0, _POSITION_BYTES - 1)
            at += _POSITION_BYTES
            out[at - 1] = before + 1 + behind
            put_digits(out, at + before, before, shard)
            at += before
            out[at] = 58
            at += 1 + behind
            put_digits(out, at, behind, offset)
        arrived = records.first_time + get32(pointer(records.data), records.start + records.layout.times + 4 * i)
        second = arrived // 1_000_000
        stamp = pointer(self.stamp)
        if second != self.stamp_second:  # most records share it with the one before
            self.stamp_second = second
            put_date(stamp, _TIME_AT, second)
        put_digits(stamp, _TIME_BYTES - 1, 6, arrived % 1_000_000)
        copy(out, at, stamp, 0, _TIME_BYTES)
        return at + _TIME_BYTES

    def _expiry(self, source: Buffer, at: int, end: int) -> int:
        """Return where the value of the Message Expiry Interval stands in a property section, or -1."""
        while at < end:
            if source[at] == 0x02:
                return at + 1
            at += property_size(source, at)
        return -1

    def _age(self, records: Records, i: int, now_us: int) -> int:
        """Return the whole seconds since a record arrived."""
        arrived = records.first_time + get32(pointer(records.data), records.start + records.layout.times + 4 * i)
        return (now_us - arrived) // 1_000_000 if now_us > arrived else 0

    def _expired(self, records: Records, i: int, now_us: int) -> bool:
        """Return whether a record has expired [MQTT-3.3.2-5]."""
        raw = pointer(records.data)
        ends = records.start + records.layout.property_ends + 4 * i
        base = records.start + records.layout.properties
        at = self._expiry(raw, base + get32(raw, ends), base + get32(raw, ends + 4))
        if at < 0:
            return False
        interval = big_endian32(raw, at)
        return bool(self._age(records, i, now_us) >= interval)

    def _count_down(self, records: Records, i: int, now_us: int, out: bytearray, at: int, end: int) -> int:
        """Write what is left of the message expiry interval [MQTT-3.3.2-6]."""
        at = self._expiry(out, at, end)
        if at >= 0:
            interval = big_endian32(out, at)
            interval -= self._age(records, i, now_us)
            out[at] = interval >> 24 & 0xFF
            out[at + 1] = interval >> 16 & 0xFF
            out[at + 2] = interval >> 8 & 0xFF
            out[at + 3] = interval & 0xFF
        return 0

    def _is_mounted(self, table: Any, topic: int) -> bool:
        name = table.name(topic)
        return name.startswith(self.mount) and len(name) > len(self.mount)

    def _bind_aliases(self, records: Records) -> int:
        """Start aliases anew with another table of names, since they are kept by topic id."""
        if self.alias_table is not records.table:
            self.alias_table = records.table
            self.alias_topics = bytearray(4 * (self.max_aliases + 1))
        return 0

    def _alias_of(self, topic: int) -> int:
        """Return the alias of a topic, with bit 16 set if the subscriber knows it, so that no name is needed."""
        alias = 1 + topic % self.max_aliases
        topics = u32s(self.alias_topics)
        if topics[alias] == topic + 1:
            return alias | 0x10000
        topics[alias] = topic + 1
        return alias


def write_acks(first_byte: int, ids: Buffer, start: int, stop: int) -> bytes:
    """Write plain acks of one type for the packet ids `start` to before `stop` of a column."""
    if not 0 <= start <= stop <= len(ids) // 2:
        raise UsageError(f"packet ids {start} to {stop} of {len(ids) // 2}")
    column = u16s(ids)
    block = blank(4 * (stop - start))
    out = pointer(block)
    at = 0
    for i in range(start, stop):
        packet_id = column[i]
        out[at] = first_byte
        out[at + 1] = 2
        out[at + 2] = packet_id >> 8
        out[at + 3] = packet_id & 0xFF
        at += 4
    return filled(block)


def write_told_acks(first_byte: int, ids: bytes, known: bytes, reason: int) -> bytes:
    """Write acks of one type for a column of packet ids: plain ones for those that are known, a reason for the others.

    If `reason` is 0 the others are left out.
    """
    if len(known) != len(ids) // 2:
        raise UsageError(f"{len(known)} of {len(ids) // 2} packet ids are known or not")
    column = u16s(ids)
    is_known = pointer(known)
    block = bytearray(5 * len(known))
    out = pointer(block)
    at = 0
    for i in range(len(known)):
        if not is_known[i] and reason == 0:
            continue
        out[at] = first_byte
        out[at + 1] = 2 if is_known[i] else 3
        out[at + 2] = column[i] >> 8
        out[at + 3] = column[i] & 0xFF
        at += 4
        if not is_known[i]:
            out[at] = reason
            at += 1
    return bytes(block[:at])


def write_answers(run: PublishRun) -> bytes:
    """Write the acks of a run of PUBLISHes, to be sent once it is safe: PUBACK at QoS 1, PUBREC at QoS 2."""
    flags = pointer(run.columns.flags)
    column = u16s(run.columns.packet_ids)
    count = 0
    for i in range(run.start, run.stop):
        if flags[i] & QOS_BITS:
            count += 1
    block = blank(4 * count)
    out = pointer(block)
    at = 0
    for i in range(run.start, run.stop):
        if flags[i] & QOS_BITS:
            packet_id = column[i]
            out[at] = 0x40 if flags[i] & 0x02 else 0x50
            out[at + 1] = 2
            out[at + 2] = packet_id >> 8
            out[at + 3] = packet_id & 0xFF
            at += 4
    return filled(block)
