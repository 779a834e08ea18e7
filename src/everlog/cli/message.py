"""A message as it arrived, cut out of the decoder's columns."""

from typing import NamedTuple

from everlog.base import PublishRun, TopicTable
from everlog.mqtt import NO_PROPERTIES, Properties, Publish, decode


class Message(NamedTuple):
    """A message as it arrived; `section` is its undecoded property section."""

    topic: bytes
    payload: bytes
    qos: int
    retain: bool
    packet_id: int
    section: bytes

    @property
    def properties(self) -> Properties:
        """The properties, decoded when somebody asks."""
        if not self.section:
            return NO_PROPERTIES
        packet = decode(0x30, b"\x00\x01t" + _varint(len(self.section)) + self.section, 5, from_client=False)
        assert isinstance(packet, Publish)
        return packet.properties


def unpack(run: PublishRun, table: TopicTable, names: dict[int, bytes]) -> list[Message]:
    """The messages of a run; `names` remembers the topics of the table."""
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
        messages.append(Message(name, payload, flags >> 1 & 3, bool(flags & 1), ids[row], section))
    return messages


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
