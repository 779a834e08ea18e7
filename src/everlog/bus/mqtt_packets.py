"""MQTT packets as a bus has them: PUBLISHes at QoS 0 in both directions, many in one call.

What is anything else, or looks wrong, is left to the session, which knows every rule.
"""

import cython

from everlog.base import PeerError
from everlog.mqtt import Message, Properties, Publish, encode

if not cython.compiled:
    from everlog.base import TopicTable
    from everlog.base.memory import Buffer, copy, part, pointer, resize
    from everlog.bus.delivery import Delivery, new_delivery

_KNOWN = 100_000  # topics, property sections and heads that are remembered; beyond it all are forgotten
_TABLE_BYTES = 16 << 20  # of topics, and of property sections; beyond it all are forgotten too
_READ_BYTES = 256 << 10  # at once
_SECTION_BYTES = 1024  # longer property sections are not remembered
_CORRELATION_BYTES = 64
_INBOXES = "response/"


class MqttInput:
    """The reading half of one connection: cuts bytes into packets, which are read into its own room."""

    def __init__(self) -> None:
        self.deliveries: list[Delivery] = []  # whoever takes them puts a new list here
        self.others: list[bytes] = []  # packets for the session
        self._topics = TopicTable(0, _KNOWN, _TABLE_BYTES)
        self._names: list[str] = []  # of the topics, by their numbers in the table
        self._sections = TopicTable(0, _KNOWN, _TABLE_BYTES)  # of properties
        self._replies: list[tuple[str, bytes]] = []  # where replies go, by the sections' numbers in the table
        self._room = bytearray(_READ_BYTES)  # larger while a packet needs it
        self._held = 0  # bytes in it
        self._wanted = 0  # before these are there, there is no whole packet

    def place(self) -> memoryview:
        """Return where the next bytes of the broker are to be put."""
        return memoryview(self._room)[self._held :]

    def filled(self, size: int) -> None:
        """Take bytes that were put there; raises PeerError if they are no packets."""
        self._held += size
        if self._held >= self._wanted:
            done = self._parse(pointer(self._room), self._held)
            self._held -= done
            if done and self._held:
                rest = part(pointer(self._room), done, done + self._held)
                copy(pointer(self._room), 0, pointer(rest), 0, self._held)
        if self._held == len(self._room):
            self._move(2 * self._held)
        elif len(self._room) > _READ_BYTES and self._held < _READ_BYTES:
            self._move(_READ_BYTES)

    def _move(self, size: int) -> int:
        """Have another room of that size: the old one may still be lent."""
        room = bytearray(size)
        copy(pointer(room), 0, pointer(self._room), 0, self._held)
        self._room = room
        return 0

    def _parse(self, source: "Buffer", size: int) -> int:
        """Parse what is whole; return where the rest begins, and note how many bytes it needs."""
        at = 0
        while size - at >= 2:
            length = 0
            shift = 0
            body = at + 1
            while body < size and source[body] >= 128 and shift < 21:
                length |= (source[body] & 127) << shift
                shift += 7
                body += 1
            if body == size:
                self._wanted = size - at + 1
                return at
            if source[body] >= 128:
                raise PeerError(0x81, "the broker sends a packet whose length is malformed")
            length |= source[body] << shift
            body += 1
            if size - body < length:
                self._wanted = body - at + length
                return at
            if source[at] != 0x30 or not self._publish(source, body, body + length):
                self.others.append(part(source, at, body + length))
            at = body + length
        self._wanted = 2
        return at

    def _publish(self, source: "Buffer", at: int, end: int) -> bool:
        """Take a PUBLISH at QoS 0; return False if it is not one as most are."""
        if end - at < 3:
            return False
        size = source[at] << 8 | source[at + 1]
        topic = at + 2
        at = topic + size
        if size == 0 or at >= end:
            return False
        length = 0
        shift = 0
        while at < end and source[at] >= 128 and shift < 21:
            length |= (source[at] & 127) << shift
            shift += 7
            at += 1
        if at == end or source[at] >= 128:
            return False
        length |= source[at] << shift
        at += 1
        if end - at < length:
            return False
        number = self._topics.find(source, topic, size)
        if number < 0:
            number = self._learn(source, topic, size)
        name = self._names[number]
        if length == 0:
            self.deliveries.append(new_delivery(name, part(source, at, end), "", b""))
            return True
        number = self._sections.find(source, at, length)
        found = self._replies[number] if number >= 0 else self._learn_reply(source, at, length)
        self.deliveries.append(new_delivery(name, part(source, at + length, end), found[0], found[1]))
        return True

    def _learn(self, source: "Buffer", at: int, size: int) -> int:
        """Return the number of a topic that is new; there is room for each once the others are forgotten."""
        number = self._topics.add(source, at, size)
        if number < 0:
            self._topics.reset()
            self._names.clear()
            number = self._topics.add(source, at, size)
        self._names.append(part(source, at, at + size).decode(errors="replace"))
        return number

    def _learn_reply(self, source: "Buffer", at: int, size: int) -> tuple[str, bytes]:
        """Return what properties say that are new, and remember it unless they are long."""
        found = self.reply_of(part(source, at, at + size))
        if size <= _SECTION_BYTES:
            if self._sections.add(source, at, size) < 0:
                self._sections.reset()
                self._replies.clear()
                self._sections.add(source, at, size)
            self._replies.append(found)
        return found

    def reply_of(self, section: bytes) -> tuple[str, bytes]:
        """Return where a reply goes, as properties say, and the correlation data that goes with it."""
        properties = Message(b"", b"", 0, False, 0, section).properties
        reply = properties.response_topic or ""
        return reply if reply.startswith(_INBOXES) else "", properties.correlation_data or b""


class MqttOutput:
    """The writing half of one connection."""

    def __init__(self) -> None:
        self._heads: dict[tuple[str, str, bytes], bytes] = {}
        self._plain: dict[str, bytes] = {}  # of subjects alone
        self._room = bytearray(1 << 16)

    def head(self, subject: str, reply: str, correlation: bytes) -> bytes:
        """Return topic and properties of a PUBLISH."""
        is_plain = not reply and not correlation
        head = self._plain.get(subject) if is_plain else self._heads.get((subject, reply, correlation))
        if head is not None:
            return head
        properties = Properties(response_topic=reply or None, correlation_data=correlation or None)
        packet = encode(Publish(subject, b"", properties=properties), 5)
        at = 1
        while packet[at] & 128:
            at += 1
        head = packet[at + 1 :]
        if len(self._heads) + len(self._plain) >= _KNOWN:
            self._heads.clear()
            self._plain.clear()
        if is_plain:
            self._plain[subject] = head
        elif len(correlation) <= _CORRELATION_BYTES:
            self._heads[subject, reply, correlation] = head
        return head

    def render(self, messages: "list[Delivery]") -> bytes:
        """Return messages as PUBLISHes at QoS 0."""
        at = 0
        for message in messages:
            head = self.head(message.subject, message.reply, message.correlation)
            size = len(head) + len(message.payload)
            needed = at + 5 + size
            if needed > len(self._room):
                resize(self._room, 2 * needed)
            out = pointer(self._room)
            out[at] = 0x30
            at += 1
            rest = size
            while rest >= 128:
                out[at] = rest & 127 | 128
                rest >>= 7
                at += 1
            out[at] = rest
            at += 1
            copy(out, at, pointer(head), 0, len(head))
            copy(out, at + len(head), pointer(message.payload), 0, len(message.payload))
            at += size
        return part(pointer(self._room), 0, at)
