"""The slow and obvious way to read a stream, which the kernels must agree with, and the vectors to feed to both.

`read_stream` is the plain codec with the rules of a connection around it. `Feeder` drives a twin's decoder and puts
what its columns hold into the same words: packets, then perhaps the reason code of the error that ended it. An ack's
properties are left out, because an `AckRun` has none.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from tests.twins import Twin

from everlog.base import HAS_ALIAS, HAS_EXPIRY, PeerError
from everlog.mqtt import (
    NO_PROPERTIES,
    Packet,
    PacketType,
    Properties,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Reason,
    decode,
    read_fixed_header,
)
from everlog.mqtt.primitives import Reader, varint
from everlog.mqtt.properties import decode_properties

FOLDER = Path(__file__).parents[1] / "vectors" / "mqtt"
MAX_PACKET_BYTES = 268_435_460
ACKS: dict[int, Any] = {4: Puback, 5: Pubrec, 6: Pubrel, 7: Pubcomp}

Outcome = tuple[list[Packet], int | None]


@dataclass(frozen=True, slots=True)
class Vector:
    """One named packet of the files; `reason` is None for a valid one."""

    name: str
    version: int
    from_client: bool
    data: bytes
    reason: int | None
    clause: str

    @property
    def is_connect(self) -> bool:
        return self.data[0] >> 4 == PacketType.CONNECT and self.from_client

    @property
    def start_version(self) -> int:
        """The version that a decoder has when this packet arrives."""
        return 0 if self.is_connect else self.version


def vectors() -> list[Vector]:
    """Every vector of the files."""
    found = [entry for path in sorted(FOLDER.glob("*.json")) for entry in json.loads(path.read_text())]
    return [
        Vector(
            entry["name"],
            entry["version"],
            entry["direction"] == "client",
            bytes.fromhex(entry["hex"]),
            entry.get("reason"),
            entry.get("clause", ""),
        )
        for entry in found
    ]


class _Stream:
    """A connection's state as far as reading needs it."""

    def __init__(self, version: int, from_client: bool, max_packet_bytes: int, max_aliases: int) -> None:
        self.version = version
        self.from_client = from_client
        self.max_packet_bytes = max_packet_bytes
        self.max_aliases = max_aliases
        self.aliases: dict[int, str] = {}

    def next_packet(self, data: bytes) -> tuple[Packet, int] | None:
        """The first packet and its size, or None while bytes of it are missing."""
        header = read_fixed_header(data, self.version)
        if header is None:
            return None
        first_byte, length, size = header
        if size + length > self.max_packet_bytes:
            raise PeerError(Reason.PACKET_TOO_LARGE, "too large")
        if not self.version and first_byte >> 4 != PacketType.CONNECT:
            raise PeerError(Reason.PROTOCOL_ERROR, "no CONNECT")
        if len(data) < size + length:
            return None
        if self.version and self.from_client and first_byte >> 4 == PacketType.CONNECT:
            raise PeerError(Reason.PROTOCOL_ERROR, "second CONNECT")
        packet = decode(first_byte, data[size : size + length], self.version, from_client=self.from_client)
        return self._in_context(packet), size + length

    def _in_context(self, packet: Packet) -> Packet:
        if packet.type is PacketType.CONNECT:
            self.version = packet.version
        if packet.type is PacketType.PUBLISH and packet.properties.topic_alias is not None:
            alias = packet.properties.topic_alias
            if alias > self.max_aliases:
                raise PeerError(Reason.TOPIC_ALIAS_INVALID, "over the limit")
            if packet.topic:
                self.aliases[alias] = packet.topic
            elif alias not in self.aliases:
                raise PeerError(Reason.PROTOCOL_ERROR, "no topic")
            return replace(packet, topic=self.aliases[alias])
        return replace(packet, properties=NO_PROPERTIES) if packet.type in ACKS else packet


def read_stream(
    data: bytes,
    version: int,
    from_client: bool = True,
    max_packet_bytes: int = MAX_PACKET_BYTES,
    max_aliases: int = 65_535,
) -> Outcome:
    """The whole packets of a stream, and the reason of the error that ended it or None."""
    stream = _Stream(version, from_client, max_packet_bytes, max_aliases)
    packets: list[Packet] = []
    try:
        while (found := stream.next_packet(data)) is not None:
            packets.append(found[0])
            data = data[found[1] :]
    except PeerError as error:
        return packets, error.reason
    return packets, None


def properties_of(section: bytes) -> Properties:
    """The properties in a PUBLISH's section, given without its length."""
    raw = varint(len(section)) + section
    return decode_properties(Reader(raw, 0, len(raw)), PacketType.PUBLISH)


def rows_of(run: Any, table: Any) -> list[Publish]:
    """The PUBLISHes of a run, out of its columns."""
    columns = run.columns
    topics = memoryview(columns.topics).cast("I")
    ids = memoryview(columns.packet_ids).cast("H")
    starts = memoryview(columns.property_starts).cast("I")
    payloads = memoryview(columns.payload_starts).cast("I")
    ends = memoryview(columns.payload_ends).cast("I")
    packets = []
    for i in range(run.start, run.stop):
        flags = columns.flags[i]
        properties = properties_of(bytes(columns.source[starts[i] : payloads[i]]))
        assert bool(flags & HAS_ALIAS) == (properties.topic_alias is not None)
        assert bool(flags & HAS_EXPIRY) == (properties.message_expiry_interval is not None)
        assert flags & run.any_flags == flags
        topic = table.name(topics[i]).decode()
        payload = bytes(columns.source[payloads[i] : ends[i]])
        packets.append(
            Publish(topic, payload, flags >> 1 & 3, bool(flags & 1), bool(flags & 8), ids[i], properties),
        )
    return packets


def acks_of(run: Any) -> list[Packet]:
    """The acknowledgements of a run."""
    ids = memoryview(run.ids).cast("H")
    assert len(ids) == len(run.reasons) == len(run)
    return [ACKS[run.packet_type](ids[i], Reason(run.reasons[i])) for i in range(len(run))]


class Feeder:
    """One decoder of a twin, and all that it said."""

    def __init__(self, twin: Twin, version: int, **limits: Any) -> None:
        self.twin = twin
        self.table = twin.TopicTable(7)
        limits = {"max_aliases": 65_535, **limits}
        self.decoder = twin.Decoder(twin.MessageColumns(1), self.table, version=version, **limits)
        self.packets: list[Packet] = []
        self.shape: list[tuple[str, int]] = []  # what each event is and how many packets it holds
        self.error: PeerError | None = None

    def feed(self, *chunks: bytes) -> "Feeder":
        """Feed the chunks and note the packets before the next call may overwrite their columns."""
        for chunk in chunks:
            self.note(self.decoder.feed(chunk))
        return self

    def read(self, shared: bytearray, *chunks: bytes) -> "Feeder":
        """Put the chunks where the decoder wants them, as a connection does, in a buffer that others use in between."""
        for chunk in chunks:
            rest = chunk
            while rest:
                room = self.decoder.room_in(shared)
                part, rest = rest[: len(room)], rest[len(room) :]
                room[: len(part)] = part
                del room
                self.note(self.decoder.arrived(shared, len(part)))
                shared[:] = b"\xee" * len(shared)
        return self

    def note(self, events: Iterable[Any]) -> None:
        for event in events:
            assert self.error is None, "nothing comes after an error"
            found: list[Packet] = []
            if isinstance(event, PeerError):
                self.error = event
            elif isinstance(event, self.twin.PublishRun):
                found = rows_of(event, self.table)
            elif isinstance(event, self.twin.AckRun):
                found = acks_of(event)
            else:
                found = [event]
            self.packets += found
            self.shape.append((type(event).__name__, len(found)))

    @property
    def outcome(self) -> Outcome:
        return self.packets, None if self.error is None else self.error.reason
