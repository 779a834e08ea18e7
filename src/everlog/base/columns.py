"""The columns that arriving messages are parsed into, and the runs that are ranges of them.

One workspace serves all connections of a thread: the columns are reused, so a run is valid until the next chunk is
fed. Ranges are positions in `source`, the buffer that was parsed. Properties end where the payload starts.
"""

# Bits of the flags column. The low four are those of the PUBLISH fixed header.
RETAIN = 0x01
QOS_BITS = 0x06
QOS_SHIFT = 1
DUP = 0x08
HAS_EXPIRY = 0x10
HAS_ALIAS = 0x20
FOR_SPILL = 0x40  # of a record: kept for nobody but clients that were too slow for what waits in memory
FOR_SESSIONS = 0x08  # of a record: kept for nobody but durable sessions and shared groups, by no setting
DROPPED = 0x80  # set by whoever decides that the message goes nowhere


class MessageColumns:
    """Room for the messages of one chunk, at first for `capacity` of them."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.source: bytes | bytearray = b""
        self.topics = bytearray(4 * capacity)
        self.flags = bytearray(capacity)
        self.packet_ids = bytearray(2 * capacity)
        self.property_starts = bytearray(4 * capacity)
        self.payload_starts = bytearray(4 * capacity)
        self.payload_ends = bytearray(4 * capacity)
        self.ack_capacity = capacity
        self.ack_ids = bytearray(2 * capacity)
        self.ack_reasons = bytearray(capacity)

    def grow(self) -> None:
        """Make room for twice as many messages; a chunk bounds them, as none has fewer than five bytes."""
        more = self.capacity or 1
        self.capacity += more
        for column, width in (
            (self.topics, 4),
            (self.flags, 1),
            (self.packet_ids, 2),
            (self.property_starts, 4),
            (self.payload_starts, 4),
            (self.payload_ends, 4),
        ):
            column.extend(bytes(width * more))

    def grow_acks(self) -> None:
        """Make room for twice as many acks; a chunk bounds them too, at four bytes each."""
        more = self.ack_capacity or 1
        self.ack_ids.extend(bytes(2 * more))
        self.ack_reasons.extend(bytes(more))
        self.ack_capacity += more


class PublishRun:
    """Messages `start` to before `stop` of the columns, as one connection sent them in a row."""

    def __init__(self, columns: MessageColumns, start: int, stop: int, any_flags: int) -> None:
        self.columns = columns
        self.start = start
        self.stop = stop
        self.any_flags = any_flags

    def __len__(self) -> int:
        return self.stop - self.start


class AckRun:
    """Acknowledgements of one packet type in order of arrival: packet ids and reason codes."""

    def __init__(self, packet_type: int, ids: bytes, reasons: bytes) -> None:
        self.packet_type = packet_type
        self.ids = ids
        self.reasons = reasons

    def __len__(self) -> int:
        return len(self.reasons)
