"""An application message by itself: as it arrived at a client, or as the log kept it."""

from collections.abc import Container, Iterable
from typing import NamedTuple

from msgspec.structs import replace

from everlog.base import QOS_BITS, QOS_SHIFT, RETAIN, PublishRun, TopicTable
from everlog.mqtt import primitives
from everlog.mqtt.packet_type import PacketType
from everlog.mqtt.properties import Properties, decode_properties, encode_properties

_USER_PROPERTY = b"\x26"  # its identifier, MQTT 5.0 section 2.2.2.2


class Message(NamedTuple):
    """A message; `section` is its undecoded property section."""

    topic: bytes
    payload: bytes
    qos: int
    retain: bool
    packet_id: int
    section: bytes

    @property
    def properties(self) -> Properties:
        """The properties, decoded when they are asked for."""
        data = primitives.varint(len(self.section)) + self.section
        return decode_properties(primitives.Reader(data, 0, len(data)), PacketType.PUBLISH)

    def with_user_properties(self, pairs: Iterable[tuple[str, str]]) -> "Message":
        """Return the message with further user properties behind its own."""
        more = b"".join(_USER_PROPERTY + primitives.string(key) + primitives.string(value) for key, value in pairs)
        return self._replace(section=self.section + more)

    def without_user_properties(self, names: Container[str]) -> "Message":
        """Return the message without its user properties of these names."""
        found = self.properties
        left = replace(found, user_properties=tuple(pair for pair in found.user_properties if pair[0] not in names))
        data = encode_properties(left, PacketType.PUBLISH)
        return self._replace(section=data[len(data) - primitives.Reader(data, 0, len(data)).varint() :])


def unpack_messages(run: PublishRun, table: TopicTable, names: dict[int, bytes]) -> list[Message]:
    """Return the messages of a run; `names` caches the topic names of the table."""
    columns = run.columns
    source = bytes(columns.source)
    topics, ids = memoryview(columns.topics).cast("I"), memoryview(columns.packet_ids).cast("H")
    sections, starts, ends = (
        memoryview(column).cast("I")
        for column in (columns.property_starts, columns.payload_starts, columns.payload_ends)
    )
    messages = []
    for row in range(run.start, run.stop):
        topic, flags, start = topics[row], columns.flags[row], starts[row]
        name = names.get(topic)
        if name is None:
            name = names[topic] = table.name(topic)
        payload, section = source[start : ends[row]], source[sections[row] : start]
        qos = (flags & QOS_BITS) >> QOS_SHIFT
        messages.append(Message(name, payload, qos, bool(flags & RETAIN), ids[row], section))
    return messages
