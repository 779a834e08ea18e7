"""The QoS 2 packet ids that a client has used and not released, as a bit set."""

import cython

from everlog.base import UsageError

if not cython.compiled:
    from everlog.base import PublishRun
    from everlog.base.memory import pointer, u16s

ID_SET_BYTES = 8192  # one bit for each packet id


class ReceivedIds:
    """The ids of one session."""

    def __init__(self, bits: bytearray | None = None) -> None:
        self.bits = bytearray(ID_SET_BYTES) if bits is None else bits
        if len(self.bits) != ID_SET_BYTES:
            raise UsageError(f"a set of packet ids has {ID_SET_BYTES} bytes")

    def drop_duplicates(self, run: PublishRun) -> int:
        """Mark QoS 2 messages whose id is in the set as dropped, and put the others' ids in; return how many were.

        One that is dropped already was refused: [MQTT-4.3.3-9] its id stays free.
        """
        flags = pointer(run.columns.flags)
        ids = u16s(run.columns.packet_ids)
        bits = pointer(self.bits)
        dropped = 0
        for i in range(run.start, run.stop):
            if flags[i] & 0x86 == 0x04:
                place = ids[i] >> 3
                bit = 1 << (ids[i] & 7)
                if bits[place] & bit:
                    flags[i] |= 0x80
                    dropped += 1
                else:
                    bits[place] |= bit
        return dropped

    def discard(self, ids: bytes) -> int:
        """Take packet ids (a column) out of the set; return how many were in it."""
        column = u16s(ids)
        bits = pointer(self.bits)
        count = 0
        for k in range(len(ids) // 2):
            place = column[k] >> 3
            bit = 1 << (column[k] & 7)
            if bits[place] & bit:
                bits[place] &= 0xFF ^ bit
                count += 1
        return count

    def release(self, ids: bytes) -> bytes:
        """Take packet ids (a column) out of the set; return a byte for each: 1 if it was in it, else 0."""
        column = u16s(ids)
        bits = pointer(self.bits)
        known = bytearray(len(ids) // 2)
        out = pointer(known)
        for k in range(len(ids) // 2):
            place = column[k] >> 3
            bit = 1 << (column[k] & 7)
            if bits[place] & bit:
                bits[place] &= 0xFF ^ bit
                out[k] = 1
        return bytes(known)

    def count(self, ids: bytes) -> int:
        """Return how many of the packet ids (a column) are in the set."""
        column = u16s(ids)
        bits = pointer(self.bits)
        count = 0
        for k in range(len(ids) // 2):
            if bits[column[k] >> 3] & 1 << (column[k] & 7):
                count += 1
        return count
