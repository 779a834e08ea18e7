"""The inbound kernel: turns a chunk of bytes into packets, and each run of PUBLISHes into one set of columns.

It takes only what is plainly right. Whatever looks wrong goes to the plain decoder (`decode`), which knows every rule
and its reason code, so that rules are written once. The columns are shared by all decoders of a thread and reused: a
run is valid until the next `feed` of any of them. One long module, since C compilers inline calls within a module.
Where a limit says so, a decoder stops in the middle of a chunk and keeps the rest: what a peer sends at once need not
be handled at once.

What is left of a packet at the end of a read is put ahead of the next read in the buffer that all share, so that its
packets are parsed where they arrived; a packet too large for that is received where the rest of it is held.
"""

from typing import Any

import cython

from everlog.base import PeerError, UsageError
from everlog.mqtt.codec import decode
from everlog.mqtt.connect import version_of
from everlog.mqtt.packet_type import PacketType
from everlog.mqtt.packets import Pingreq
from everlog.mqtt.properties import PROPERTIES, PropertyType
from everlog.mqtt.reasons import Reason

if not cython.compiled:
    from everlog.base import HAS_ALIAS, HAS_EXPIRY, AckRun, MessageColumns, PublishRun, TopicTable
    from everlog.base.memory import Buffer, copy, pointer, resize, text_ok, u16s, u32s
    from everlog.mqtt.lookahead import is_worth_it, look_ahead

    _BAD = -1
    _NO_ID = 0xFFFFFFFF
    # What a property of a PUBLISH holds; 0 means that it has no place there.
    _BYTE, _EXPIRY, _ALIAS, _VARINT, _TEXT, _BINARY, _PAIR, _TOPIC = range(1, 9)

MAX_PACKET_BYTES = 268_435_455 + 5
NO_LIMIT = 1 << 62
_GROWTH = 4  # a buffer of a packet's own has room for so many times what has arrived: a header alone gets none

_KIND_OF = {
    PropertyType.BYTE: _BYTE,
    PropertyType.FOUR_BYTES: _EXPIRY,
    PropertyType.TWO_BYTES: _ALIAS,
    PropertyType.VARINT: _VARINT,
    PropertyType.BINARY: _BINARY,
    PropertyType.STRING: _TEXT,
    PropertyType.STRING_PAIR: _PAIR,
}
_RESPONSE_TOPIC = 0x08


def _kinds(from_client: bool) -> bytes:
    kinds = bytearray(256)
    for rule in PROPERTIES.values():
        if PacketType.PUBLISH in rule.packets:
            kinds[rule.id] = _KIND_OF[rule.type]
    kinds[_RESPONSE_TOPIC] = _TOPIC
    if from_client:
        kinds[0x0B] = 0  # [MQTT-3.3.4-6] only a server sends subscription identifiers
    return bytes(kinds)


_PINGREQ = Pingreq()
_FROM_CLIENT = _kinds(True)
_FROM_SERVER = _kinds(False)


class Carried:
    """The bytes of unfinished packets in all decoders that share it; `on_over` is called beyond `limit`."""

    def __init__(self, limit: int = NO_LIMIT, on_over: Any = None) -> None:
        self.limit = limit
        self.on_over = on_over
        self.total_bytes = 0

    def add(self, size: int) -> int:
        """Count more bytes, or fewer; `on_over` must not act on a decoder within this call."""
        self.total_bytes += size
        if size > 0 and self.total_bytes > self.limit and self.on_over is not None:
            self.on_over()
        return 0


_ALONE = Carried()


class Decoder:
    """The decoder of one direction of one connection; `version` is 0 until a CONNECT has said it.

    A packet larger than `max_packet_bytes`, a PUBLISH than `max_publish_bytes`, is refused at once. A topic name beyond
    `max_topic_bytes` or `max_topic_levels`, or more new ones than `max_topics`, is refused before the table takes it
    in. The last event may be a `PeerError`: what came before it in the chunk counts, nothing after it is read.

    Topic names are taken in with `mount` before them. It stops after `max_events`, after `max_new_topics` or after a
    packet that its receiver may not be done with at once: `has_more` says that the rest waits for a call of `more`.
    """

    def __init__(
        self,
        columns: MessageColumns,
        table: TopicTable,
        max_packet_bytes: int = MAX_PACKET_BYTES,
        max_aliases: int = 0,
        version: int = 0,
        from_client: bool = True,
        max_topic_bytes: int = 65_535,
        max_topic_levels: int = 65_536,
        max_topics: int = NO_LIMIT,
        carried: Carried | None = None,
        max_events: int = NO_LIMIT,
        max_new_topics: int = NO_LIMIT,
        max_publish_bytes: int = 0,
        mount: bytes = b"",
    ) -> None:
        self.columns, self.table = columns, table
        self.max_packet_bytes, self.max_aliases = max_packet_bytes, max_aliases
        self.max_publish_bytes = max_publish_bytes or max_packet_bytes
        self.version, self.from_client = version, from_client
        self.max_topic_bytes, self.max_topic_levels = max_topic_bytes, max_topic_levels
        self.max_topics, self.max_new_topics = max_topics, max_new_topics
        self.max_events, self.mount, self.is_mounted = max_events, mount, len(mount) > 0
        self.topics_made = 0
        self.carried = _ALONE if carried is None else carried
        self.failed = self.has_more = False
        self.kinds = _FROM_CLIENT if from_client else _FROM_SERVER
        self.carry: Any = None
        self.carry_at = self.carry_size = 0  # up to where it is parsed, and filled
        self.arrives_in_carry = False  # the next bytes do, instead of in the shared buffer
        self.need = 0
        self.alias, self.alias_generation = 0, -1
        self.alias_names: Any = None
        self.alias_ids: Any = None

    def feed(self, chunk: Buffer, size: int = -1) -> list[Any]:
        """Return the packets that these bytes complete, in order; `size` if the chunk is a larger buffer."""
        if self.failed:
            return []
        if size < 0:
            size = len(chunk)
        elif size > len(chunk):
            raise UsageError(f"{size} bytes of a chunk of {len(chunk)}")
        if self.carry is None:
            return self._parse(chunk, 0, size)
        self._append(chunk, 0, size)
        if self.carry_size < self.need:
            return []
        return self._parse(self.carry, 0, self.carry_size)

    def room_in(self, shared: bytearray) -> Any:
        """Return where the next bytes are to be put, before a call of `arrived`: most often a part of `shared`.

        That is behind room for what is left of the last read. The rest of a packet that takes more than half of
        `shared` goes to where its beginning is, once that is more than a few bytes.
        """
        self.arrives_in_carry = False
        if self.carry is None or self.has_more:
            return shared
        if self.need > len(shared) // 2 and self.carry_size >= len(shared) // 16:
            if self.carry_size == len(self.carry):
                resize(self.carry, min(self.need, _GROWTH * self.carry_size))
            self.arrives_in_carry = True
            return memoryview(self.carry)[self.carry_size :]
        return memoryview(shared)[self.carry_size :]

    def arrived(self, shared: bytearray, size: int) -> list[Any]:
        """Return the packets that are complete by bytes which were put where `room_in` said."""
        if self.failed:
            return []
        if self.carry is None:
            return self.feed(shared, size)
        whole = self.carry_size + size
        if whole > len(self.carry if self.arrives_in_carry else shared):
            raise UsageError(f"{size} bytes in less room")
        if self.arrives_in_carry:
            self.carry_size = whole
            self.carried.add(size)
            return [] if whole < self.need else self._parse(self.carry, 0, whole)
        if whole < self.need:
            self._append(shared, self.carry_size, whole)
            return []
        copy(pointer(shared), 0, pointer(self.carry), 0, self.carry_size)
        return self._parse(shared, 0, whole)

    def hold(self, chunk: Buffer, size: int) -> None:
        """Keep bytes for a call of `more`, behind what waits for one already."""
        if self.failed:
            return
        self._append(chunk, 0, size)
        self.has_more = True

    def more(self) -> list[Any]:
        """Return the next packets of what was fed, if `has_more`."""
        if self.failed or not self.has_more:
            self.has_more = False
            return []
        return self._parse(self.carry, self.carry_at, self.carry_size)

    def drop(self) -> None:
        """Let go of what was fed and not parsed, and take no more."""
        self.failed = True
        self.has_more = False
        self._forget()

    @property
    def buffered_bytes(self) -> int:
        """How much is held of an unfinished packet: never more than the largest packet and one chunk."""
        return self.carry_size

    def _append(self, chunk: Buffer, start: int, stop: int) -> int:
        """Keep bytes behind those that are kept."""
        if self.carry is None:
            self.carry = bytearray()
        resize(self.carry, self.carry_size + stop - start)
        copy(pointer(self.carry), self.carry_size, pointer(chunk), start, stop - start)
        self.carry_size += stop - start
        self.carried.add(stop - start)
        return 0

    def _forget(self) -> int:
        """Let go of all that is kept."""
        self.carried.add(-self.carry_size)
        self.carry = None
        self.carry_size = 0
        self.carry_at = 0
        return 0

    def _keep(self, data: Buffer, position: int, size: int, need: int) -> int:
        """Keep what is not parsed of a chunk, or of what was kept before; if `need` is 0, to go on with it at once."""
        self.has_more = need == 0
        self.need = need
        if data is self.carry and position < size and need == 0:
            self.carry_at = position
            return 0
        self._forget()
        if position < size:
            self._append(data, position, size)
        else:
            self.has_more = False
        return 0

    def _parse(self, data: Buffer, position: int, size: int) -> list[Any]:
        events: list[Any] = []
        columns = self.columns
        columns.source = data
        source = pointer(data)
        row = run = any_flags = acks = ack_kind = 0
        need = 2
        ahead = size if self.is_mounted or not is_worth_it(self.table) else position
        last_topic = self.topics_made + self.max_new_topics
        while True:
            if len(events) >= self.max_events or self.topics_made >= last_topic:
                need = 0
                break
            if size - position < 2:
                need = 2
                break
            first = source[position]
            length = source[position + 1]
            at = position + 2
            if length & 0x80:
                length &= 0x7F
                shift = 7
                byte = 0x80
                while byte & 0x80 and shift < 28 and at < size:
                    byte = source[at]
                    at += 1
                    length |= (byte & 0x7F) << shift
                    shift += 7
                if byte & 0x80 and shift < 28:
                    need = at - position + 1
                    break
                if byte & 0x80 or (byte == 0 and self.version == 5):  # 3.1.1 does not ask for the shortest form
                    self._flush(events, run, row, any_flags, ack_kind, acks)
                    clause = "MQTT-1.5.5" if byte & 0x80 else "MQTT-1.5.5-1"
                    return self._fail(events, Reason.MALFORMED_PACKET, "bad remaining length", clause)
            end = at + length
            kind = first >> 4
            if end - position > (self.max_publish_bytes if kind == 3 else self.max_packet_bytes):  # not buffered
                self._flush(events, run, row, any_flags, ack_kind, acks)
                return self._fail(events, Reason.PACKET_TOO_LARGE, "packet exceeds the limit", "MQTT-3.2.2-15")
            if self.version == 0 and kind != 1:
                self._flush(events, run, row, any_flags, ack_kind, acks)
                return self._fail(events, Reason.PROTOCOL_ERROR, "the first packet must be CONNECT", "MQTT-3.1.0-1")
            if end > size:
                need = end - position
                break
            if kind == 3:
                if acks:
                    self._flush(events, row, row, 0, ack_kind, acks)
                    acks = 0
                    run = row
                if row == columns.capacity:
                    columns.grow()
                if position >= ahead:
                    ahead = look_ahead(self.table, source, position, size)
                flags = self._publish(source, first, at, end, row)
                if flags != _BAD:
                    any_flags |= flags
                    row += 1
                    position = end
                    continue
            elif 4 <= kind <= 7:
                if row > run or (acks and kind != ack_kind):
                    self._flush(events, run, row, any_flags, ack_kind, acks)
                    acks = 0
                    any_flags = 0
                    run = row
                ack_kind = kind
                if acks == columns.ack_capacity:
                    columns.grow_acks()
                if self._ack(source, first, at, end, acks) != _BAD:
                    acks += 1
                    position = end
                    continue
            self._flush(events, run, row, any_flags, ack_kind, acks)
            acks = 0
            any_flags = 0
            run = row
            if first == 0xC0 and end == at and self.from_client:  # quick, because a peer may send nothing else
                events.append(_PINGREQ)
                position = end
                continue
            if not self._other(events, first, bytes(data[at:end]), kind):
                return events
            position = end
            if self.max_events < NO_LIMIT and (kind == 1 or kind == 8 or kind == 10 or kind == 15):
                need = 0
                break
        self._flush(events, run, row, any_flags, ack_kind, acks)
        self._keep(data, position, size, need)
        return events

    def _flush(self, events: list[Any], run: int, row: int, any_flags: int, ack_kind: int, acks: int) -> int:
        """End the run of PUBLISHes or acks that is under way."""
        if row > run:
            events.append(PublishRun(self.columns, run, row, any_flags))
        elif acks:
            columns = self.columns
            events.append(AckRun(ack_kind, bytes(columns.ack_ids[: 2 * acks]), bytes(columns.ack_reasons[:acks])))
        return 0

    def _fail(self, events: list[Any], reason: int, message: str, clause: str) -> list[Any]:
        """Add the last event of this connection and return all."""
        self.drop()
        events.append(PeerError(reason, message, clause=clause))
        return events

    def _other(self, events: list[Any], first: int, body: bytes, kind: int) -> bool:
        """Decode plainly what is neither a PUBLISH nor an ack, or is doubtful; return whether to go on."""
        if kind == 1 and self.version and self.from_client:  # before it is looked at: it may be of another protocol
            self._fail(events, Reason.PROTOCOL_ERROR, "a second CONNECT", "MQTT-3.1.0-2")
            return False
        try:
            packet: Any = decode(first, body, self.version, from_client=self.from_client)
            if kind == 3:
                self._refuse_topic(packet)
        except PeerError as error:
            if kind == 1 and self.version == 0:
                self.version = version_of(body)  # so that the answer is one that its author can read
            self.drop()
            events.append(error)
            return False
        if kind == 1:
            self.version = packet.version
        if 4 <= kind <= 7:
            ids = packet.packet_id.to_bytes(2, "little")
            events.append(AckRun(kind, ids, bytes((packet.reason,))))
        else:
            events.append(packet)
        return True

    def _refuse_topic(self, packet: object) -> None:
        """Raise why a PUBLISH that is right by itself can't be taken on this connection."""
        alias = packet.properties.topic_alias  # type: ignore[attr-defined]
        if alias is not None and alias > self.max_aliases:
            raise PeerError(Reason.TOPIC_ALIAS_INVALID, f"topic alias {alias} is over the limit", clause="MQTT-3.3.2-9")
        topic = packet.topic  # type: ignore[attr-defined]
        if not topic and not self._knows(alias):
            raise PeerError(Reason.PROTOCOL_ERROR, f"topic alias {alias} has no topic yet", clause="MQTT-3.3.2.3.4")
        size, levels = len(self.mount + topic.encode()), self.mount.count(b"/") + topic.count("/") + 1
        if size > self.max_topic_bytes or levels > self.max_topic_levels:
            why = f"a topic name of {size} bytes and {levels} levels is over the limits"
            raise PeerError(Reason.TOPIC_NAME_INVALID, why)
        if self.topics_made >= self.max_topics:
            raise PeerError(Reason.QUOTA_EXCEEDED, f"more than {self.max_topics} new topics")
        hint = "raise the limit of topics, or use fewer"
        raise PeerError(Reason.QUOTA_EXCEEDED, "too many distinct topics", hint=hint)

    def _publish(self, source: Buffer, first: int, at: int, end: int, row: int) -> int:
        """Parse a PUBLISH into its row; return its flags, or -1 when the plain decoder must judge it."""
        qos = first >> 1 & 3
        if qos == 3 or ((first & 0x0E) == 0x08 and self.version != 3) or end - at < 2:
            return _BAD
        topic_at = at + 2
        topic_size = source[at] << 8 | source[at + 1]
        at = topic_at + topic_size
        if at > end:
            return _BAD
        columns = self.columns
        packet_id = 0
        if qos:
            if end - at < 2:
                return _BAD
            packet_id = source[at] << 8 | source[at + 1]
            at += 2
            if packet_id == 0:
                return _BAD
        flags = first & 0x0F
        properties = at
        self.alias = 0
        if self.version == 5:
            if at >= end:
                return _BAD
            size = source[at]
            at += 1
            if size & 0x80:
                size &= 0x7F
                shift = 7
                byte = 0x80
                while byte & 0x80 and shift < 28 and at < end:
                    byte = source[at]
                    at += 1
                    size |= (byte & 0x7F) << shift
                    shift += 7
                if byte & 0x80 or byte == 0:
                    return _BAD
            if size > end - at:
                return _BAD
            properties = at
            at += size
            if size:
                more = self._properties(source, properties, at)
                if more == _BAD:
                    return _BAD
                flags |= more
        topic = self._topic(source, topic_at, topic_size)
        if topic < 0:
            return _BAD
        u32s(columns.topics)[row] = topic
        pointer(columns.flags)[row] = flags
        u16s(columns.packet_ids)[row] = packet_id
        u32s(columns.property_starts)[row] = properties
        u32s(columns.payload_starts)[row] = at
        u32s(columns.payload_ends)[row] = end
        return flags

    def _topic(self, source: Buffer, at: int, size: int) -> int:
        """Return the id of a topic name, or of the topic that its alias stands for, or -1."""
        alias = self.alias
        if alias > self.max_aliases:
            return _BAD
        if size == 0:
            return self._aliased(alias) if alias else _BAD
        if self.is_mounted:
            return self._mounted(source, at, size)
        topic = self.table.find(source, at, size)
        if topic < 0:
            if not self._may_be_new(source, at, size):
                return _BAD
            topic = self.table.add(source, at, size)
            self.topics_made += 1
        if alias and topic >= 0:
            self._set_alias(alias, topic)
        return topic

    def _mounted(self, source: Buffer, at: int, size: int) -> int:
        name = self.mount + source[at : at + size]
        self.is_mounted = False
        topic = self._topic(name, 0, len(name))
        self.is_mounted = True
        return topic

    def _may_be_new(self, source: Buffer, at: int, size: int) -> bool:
        """Return whether a new topic name is within the limits; a known one was checked when it was new."""
        if size > self.max_topic_bytes or self.topics_made >= self.max_topics or not text_ok(source, at, size):
            return False
        levels = 1
        for i in range(at, at + size):
            if source[i] == 0x23 or source[i] == 0x2B:
                return False
            levels += source[i] == 0x2F
        return levels <= self.max_topic_levels

    def _aliased(self, alias: int) -> int:
        if not self._knows(alias):
            return _BAD
        self._renew_aliases()
        topic = u32s(self.alias_ids)[alias]
        if topic == _NO_ID:
            topic = self.table.intern(self.alias_names[alias])
            if topic >= 0:
                u32s(self.alias_ids)[alias] = topic
        return topic

    def _set_alias(self, alias: int, topic: int) -> int:
        self._renew_aliases()
        if u32s(self.alias_ids)[alias] != topic:
            self.alias_names[alias] = self.table.name(topic)
            u32s(self.alias_ids)[alias] = topic
        return 0

    def _knows(self, alias: int) -> bool:
        names = self.alias_names
        return names is not None and alias < len(names) and names[alias] is not None

    def _renew_aliases(self) -> int:
        """Make room for every alias; if the table was reset since, forget the ids and keep the names."""
        if self.alias_names is None:
            self.alias_names = []
            self.alias_ids = bytearray()
        more = self.max_aliases + 1 - len(self.alias_names)
        if more > 0:
            self.alias_names.extend([None] * more)
            self.alias_ids.extend(b"\xff" * (4 * more))
        if self.alias_generation != self.table.generation:
            self.alias_generation = self.table.generation
            self.alias_ids[:] = b"\xff" * len(self.alias_ids)
        return 0

    def _properties(self, source: Buffer, at: int, end: int) -> int:
        """Return the flags that follow from a PUBLISH property section, or -1 unless it is plainly right."""
        kinds = pointer(self.kinds)
        seen = 0
        one = 1
        flags = 0
        while at < end:
            number = source[at]
            kind = kinds[number]
            at += 1
            if kind == 0:
                return _BAD
            if kind != _PAIR and kind != _VARINT:
                if seen >> number & 1:
                    return _BAD
                seen |= one << number
            if kind == _BYTE:
                if at >= end or source[at] > 1:
                    return _BAD
                at += 1
            elif kind == _EXPIRY:
                flags |= HAS_EXPIRY
                at += 4
            elif kind == _ALIAS:
                if end - at < 2:
                    return _BAD
                self.alias = source[at] << 8 | source[at + 1]
                if self.alias == 0:
                    return _BAD
                flags |= HAS_ALIAS
                at += 2
            elif kind == _VARINT:
                count = 0
                while at < end and source[at] & 0x80 and count < 3:
                    at += 1
                    count += 1
                if at >= end or source[at] & 0x80 or source[at] == 0:
                    return _BAD
                at += 1
            else:
                at = self._string(source, at, end, kind)
                if at == _BAD:
                    return _BAD
                if kind == _PAIR:
                    at = self._string(source, at, end, kind)
                    if at == _BAD:
                        return _BAD
            if at > end:
                return _BAD
        return flags

    def _string(self, source: Buffer, at: int, end: int, kind: int) -> int:
        """Return where a string or binary value ends, or -1."""
        if end - at < 2:
            return _BAD
        size = source[at] << 8 | source[at + 1]
        at += 2
        if size > end - at:
            return _BAD
        if kind != _BINARY and not text_ok(source, at, size):
            return _BAD
        if kind == _TOPIC:
            if size == 0:
                return _BAD
            for i in range(at, at + size):
                if source[i] == 0x23 or source[i] == 0x2B:
                    return _BAD
        return at + size

    def _ack(self, source: Buffer, first: int, at: int, end: int, row: int) -> int:
        """Parse an ack of success without properties into its row; return -1 for the plain decoder."""
        if first != (0x62 if first >> 4 == 6 else first & 0xF0):
            return _BAD
        size = end - at
        if size != 2 and (size != 3 or self.version != 5 or source[at + 2] != 0):
            return _BAD
        packet_id = source[at] << 8 | source[at + 1]
        if packet_id == 0:
            return _BAD
        u16s(self.columns.ack_ids)[row] = packet_id
        pointer(self.columns.ack_reasons)[row] = 0
        return 0
