"""The messages sent to a client at QoS 1 or 2 and not acknowledged: a ring of packet ids in the order of sending.

Ids are assigned in sequence, so an id tells its place in the ring. Acks may come in any order. A message that is not
acknowledged does not hold the ring back: it is parked in a table, and its id is passed over until it is free.
Invariants: the ring holds the ids from `head_id` on, `span` of them; `inflight` counts those not done, parked ones too.
A message that a shared group dealt has a tag, the number of the membership. The column of tags is made with the first
of them. `finished` collects the positions of tagged messages that are done, by tag, for the group to take.
"""

import cython

from everlog.base import PeerError, UsageError
from everlog.mqtt import PacketType, Reason

if not cython.compiled:
    from everlog.base import OFFSET_BITS, AckRun, Records
    from everlog.base.memory import pointer, put64, u16s, u32s, u64s
    from everlog.mqtt import PublishWriter

    # The state of an id. Free and finished are the same to the ring.
    _DONE, _SENT_1, _SENT_2, _RELEASED = range(4)
    IDS = 65_535

RELEASED = 3  # the state of a QoS 2 message that was received and not yet completed
_SMALLEST_RING = 16
_PACKED_BYTES = 11


class Window:
    """The messages under way to one client, at most `limit` at a time."""

    def __init__(self, limit: int) -> None:
        if not 1 <= limit <= IDS:
            raise UsageError(f"a window holds 1 to {IDS} messages, not {limit}")
        self.limit = limit
        self.inflight = 0
        self.head_id = 1
        self.span = 0
        self.head = 0
        self.mask = _SMALLEST_RING - 1
        self.states = bytearray(_SMALLEST_RING)
        self.positions = bytearray(8 * _SMALLEST_RING)
        self.parked: dict[int, tuple[int, int]] = {}
        self.tags = bytearray()
        self.parked_tags: dict[int, int] = {}
        self.finished: dict[int, list[int]] = {}
        self.unknown = 0  # PUBRECs for ids that were not under way

    @property
    def next_id(self) -> int:
        """The id that the next message gets."""
        return (self.head_id - 1 + self.span) % IDS + 1

    def room(self) -> int:
        """Return how many ids from `next_id` on may be used now."""
        free = self.limit - self.inflight
        if free <= 0:
            return 0
        longest = 2 * self.limit if self.limit > _SMALLEST_RING else 2 * _SMALLEST_RING
        if longest > IDS - 1:
            longest = IDS - 1
        if self.span + free > longest:
            self._park(self.span + free - longest)
        if self.parked:
            return self._clear_of_parked(free)
        return free if self.span + free < IDS else IDS - 1 - self.span

    def sent(
        self, writer: PublishWriter, records: Records, rows: bytearray | None, start: int, shard: int, tag: int = 0
    ) -> None:
        """Take in what `writer` has just written of these records, from row `start` on."""
        if tag and len(self.tags) == 0:
            self.tags = bytearray(4 * (self.mask + 1))
        count = writer.stopped_at - start
        used = writer.ids_used
        self._grow(self.span + used)
        lengths = u32s(writer.scratch)
        chosen = u32s(rows if rows is not None else b"")
        every = rows is None
        raw = pointer(records.data)
        base = records.start + records.layout.flags
        states = pointer(self.states)
        positions = u64s(self.positions)
        tags = u32s(self.tags)
        tagged = len(self.tags) > 0
        place = self.head + self.span
        kept = shard << OFFSET_BITS
        for k in range(count):
            i = start + k if every else chosen[start + k]
            qos = raw[base + i] >> 1 & 3
            if lengths[2 * k] == 0 or qos == 0 or writer.max_qos == 0:
                continue
            if qos > writer.max_qos:
                qos = writer.max_qos
            states[place & self.mask] = qos
            positions[place & self.mask] = kept | records.offset(i)
            if tagged:
                tags[place & self.mask] = tag
            place += 1
        self.span += used
        self.inflight += used

    def acked(self, run: AckRun) -> bytes:
        """Take in acks; return the packet ids (as a column) that a PUBREL must be sent for."""
        ids = u16s(run.ids)
        reasons = pointer(run.reasons)
        states = pointer(self.states)
        positions = u64s(self.positions)
        tags = u32s(self.tags)
        tagged = len(self.tags) > 0
        kind = run.packet_type
        released = bytearray(2 * len(run) if kind == 5 else 0)
        out = u16s(released)
        count = 0
        for k in range(len(run)):
            delta = ids[k] - self.head_id
            if delta < 0:
                delta += IDS
            if delta >= self.span:
                if self._acked_parked(ids[k], kind, reasons[k]):
                    out[count] = ids[k]
                    count += 1
                continue
            slot = (self.head + delta) & self.mask
            state = states[slot]
            if state == _DONE:
                if self._acked_parked(ids[k], kind, reasons[k]):
                    out[count] = ids[k]
                    count += 1
            elif kind == 5 and state == _SENT_2 and reasons[k] < 0x80:
                states[slot] = _RELEASED
                out[count] = ids[k]
                count += 1
            elif kind == 5 and state == _RELEASED and reasons[k] < 0x80:
                out[count] = ids[k]
                count += 1
            elif (
                (kind == 4 and state == _SENT_1)
                or (kind == 7 and state == _RELEASED)
                or (kind == 5 and state == _SENT_2)
            ):
                states[slot] = _DONE
                self.inflight -= 1
                if tagged and tags[slot]:
                    self._finish(tags[slot], positions[slot])
            elif reasons[k] < 0x80:
                _refuse(kind, ids[k])
        while self.span > 0 and states[self.head & self.mask] == _DONE:
            self.head += 1
            self.span -= 1
            self.head_id = self.head_id + 1 if self.head_id < IDS else 1
        return bytes(released[: 2 * count]) if count else b""

    def known(self, ids: bytes) -> bytes:
        """Return a byte for each of the packet ids (a column): 1 if it is under way, else 0."""
        column = u16s(ids)
        found = bytearray(len(ids) // 2)
        for k in range(len(ids) // 2):
            if self.state(column[k]) != _DONE:
                found[k] = 1
        return bytes(found)

    def pending(self) -> list[tuple[int, int, int]]:
        """Return (packet id, state, position) of what is under way, oldest first; for the states see `state`."""
        waiting = [(packet_id, state, position) for packet_id, (state, position) in self.parked.items()]
        positions = u64s(self.positions)
        for k in range(self.span):
            slot = (self.head + k) & self.mask
            if self.states[slot] != _DONE:
                waiting.append(((self.head_id - 1 + k) % IDS + 1, self.states[slot], positions[slot]))
        return waiting

    def newest(self, count: int) -> list[int]:
        """Return the positions of the last `count` messages taken in, oldest first."""
        if not 0 <= count <= self.span:
            raise UsageError(f"the newest {count} of {self.span}")
        positions = u64s(self.positions)
        found = []
        for k in range(self.span - count, self.span):
            found.append(positions[(self.head + k) & self.mask])
        return found

    def tagged(self, tag: int) -> list[tuple[int, int, int]]:
        """Return what is under way with a tag, as `pending` does."""
        return [entry for entry in self.pending() if self.tag(entry[0]) == tag]

    def tag(self, packet_id: int) -> int:
        """Return the tag of an id that is under way, 0 for none."""
        delta = packet_id - self.head_id
        if delta < 0:
            delta += IDS
        if delta < self.span:
            slot = (self.head + delta) & self.mask
            if self.states[slot] != _DONE:
                return u32s(self.tags)[slot] if len(self.tags) else 0
        return self.parked_tags.get(packet_id, 0)

    def untag(self, packet_id: int) -> None:
        """Remove the tag of a message under way: it belongs to the session alone from now on."""
        delta = packet_id - self.head_id
        if delta < 0:
            delta += IDS
        if delta < self.span and len(self.tags):
            slot = (self.head + delta) & self.mask
            if self.states[slot] != _DONE:
                u32s(self.tags)[slot] = 0
                return
        self.parked_tags.pop(packet_id, None)

    def take_back(self, packet_id: int, state: int, position: int, tag: int = 0) -> None:
        """Take in a message that is under way again with the id that it had; the id must be free."""
        if self.state(packet_id) != _DONE:
            raise UsageError(f"packet id {packet_id} is in use")
        self.parked[packet_id] = (state, position)
        if tag:
            self.parked_tags[packet_id] = tag
        self.inflight += 1

    def packed(self) -> bytes:
        """Return what is under way in 11 bytes each: id, state, position, lowest byte first.

        Left out is what a shared group would give to another member: the group stores that itself.
        """
        parked = [(packet_id, state, position) for packet_id, (state, position) in self.parked.items()]
        block = bytearray(_PACKED_BYTES * self.inflight)
        out = pointer(block)
        at = 0
        if len(parked) > self.inflight:
            raise UsageError("more messages are parked than are under way")
        for packet_id, state, position in parked:
            if state != _SENT_1 or packet_id not in self.parked_tags:
                at = put_entry(out, at, packet_id, state, position)
        positions = u64s(self.positions)
        states = pointer(self.states)
        tags = u32s(self.tags)
        tagged = len(self.tags) > 0
        for k in range(self.span):
            slot = (self.head + k) & self.mask
            if states[slot] != _DONE and at < len(block) and not (tagged and tags[slot] and states[slot] == _SENT_1):
                at = put_entry(out, at, (self.head_id - 1 + k) % IDS + 1, states[slot], positions[slot])
        return bytes(block) if at == len(block) else bytes(block[:at])

    def restore(self, pending: list[tuple[int, int, int]], next_id: int) -> None:
        """Begin with what was under way before, all of it parked, and with `next_id` as the next id."""
        self.parked = {packet_id: (state, position) for packet_id, state, position in pending}
        self.inflight = len(self.parked)
        self.parked_tags = {}
        self.states = bytearray(len(self.states))
        self.head = 0
        self.span = 0
        self.head_id = next_id

    def state(self, packet_id: int) -> int:
        """Return the state of an id: 1 or 2 is the QoS it was sent at, 3 released, 0 not under way."""
        delta = packet_id - self.head_id
        if delta < 0:
            delta += IDS
        if delta < self.span:
            found = self.states[(self.head + delta) & self.mask]
            if found != _DONE:
                return found
        entry = self.parked.get(packet_id)
        return _DONE if entry is None else entry[0]

    def forget(self, packet_id: int) -> None:
        """Treat a message that can't be sent again as acknowledged."""
        if self.parked.pop(packet_id, None) is not None:
            self.inflight -= 1
            self.parked_tags.pop(packet_id, None)
        elif self.state(packet_id) != _DONE:
            delta = packet_id - self.head_id
            if delta < 0:
                delta += IDS
            self.states[(self.head + delta) & self.mask] = _DONE
            self.inflight -= 1

    def release(self, packet_id: int) -> None:
        """Treat a QoS 2 message that can't be sent again as received, so that its PUBREL is repeated instead."""
        if self.state(packet_id) != _SENT_2:
            return
        if packet_id in self.parked:
            self.parked[packet_id] = (_RELEASED, self.parked[packet_id][1])
            return
        delta = packet_id - self.head_id
        if delta < 0:
            delta += IDS
        self.states[(self.head + delta) & self.mask] = _RELEASED

    def _grow(self, span: int) -> int:
        size = self.mask + 1
        if span <= size:
            return 0
        while size < span:
            size *= 2
        states = bytearray(size)
        positions = bytearray(8 * size)
        for k in range(self.span):
            old = (self.head + k) & self.mask
            states[k] = self.states[old]
            positions[8 * k : 8 * k + 8] = self.positions[8 * old : 8 * old + 8]
        if len(self.tags):
            tags = bytearray(4 * size)
            for k in range(self.span):
                old = (self.head + k) & self.mask
                tags[4 * k : 4 * k + 4] = self.tags[4 * old : 4 * old + 4]
            self.tags = tags
        self.head = 0
        self.mask = size - 1
        self.states = states
        self.positions = positions
        return 0

    def _park(self, count: int) -> int:
        """Shorten the ring by `count` ids at its old end; those not done are parked."""
        positions = u64s(self.positions)
        for _ in range(min(count, self.span)):
            slot = self.head & self.mask
            if self.states[slot] != _DONE:
                self.parked[self.head_id] = (self.states[slot], positions[slot])
                if len(self.tags) and u32s(self.tags)[slot]:
                    self.parked_tags[self.head_id] = u32s(self.tags)[slot]
                self.states[slot] = _DONE
            self.head += 1
            self.span -= 1
            self.head_id = self.head_id + 1 if self.head_id < IDS else 1
        return 0

    def _clear_of_parked(self, free: int) -> int:
        """Return how many of the next ids are free, after passing over parked ones."""
        while self.next_id in self.parked:
            if self.span + 1 + free > IDS - 1:  # the ring must not meet itself
                self._park(1)
            self._grow(self.span + 1)
            if self.span == 0:
                self.head_id = self.head_id + 1 if self.head_id < IDS else 1
            else:
                self.states[(self.head + self.span) & self.mask] = _DONE
                self.span += 1
        if self.span + free > IDS - 1:
            free = IDS - 1 - self.span
        packet_id = self.next_id
        if len(self.parked) < free:
            for each in self.parked:
                delta = each - packet_id
                if delta < 0:
                    delta += IDS
                if delta < free:
                    free = delta
            return free
        for k in range(free):
            if (packet_id - 1 + k) % IDS + 1 in self.parked:
                return k
        return free

    def _acked_parked(self, packet_id: int, kind: int, reason: int) -> int:
        """Take in an ack of an id that is not in the ring; return whether a PUBREL must be sent for it."""
        entry = self.parked.get(packet_id) if self.parked else None
        if entry is None:
            if kind == 5 and reason < 0x80:  # [MQTT-4.3.3-8] a PUBREC is always answered, known or not
                self.unknown += 1
                return 1
            return 0
        state = entry[0]
        if kind == 5 and state >= _SENT_2 and reason < 0x80:
            self.parked[packet_id] = (_RELEASED, entry[1])
            return 1
        if (kind == 4 and state == _SENT_1) or (kind == 7 and state == _RELEASED) or (kind == 5 and state == _SENT_2):
            del self.parked[packet_id]
            self.inflight -= 1
            if packet_id in self.parked_tags:
                self._finish(self.parked_tags.pop(packet_id), entry[1])
        elif reason < 0x80:
            _refuse(kind, packet_id)
        return 0

    def _finish(self, tag: int, position: int) -> int:
        """Note a tagged message as done, for its group."""
        done = self.finished.get(tag)
        if done is None:
            self.finished[tag] = [position]
        else:
            done.append(position)
        return 0


def _refuse(kind: int, packet_id: int) -> None:
    """Raise that an ack is not of the kind that its message waits for: it would stay under way for ever."""
    why = f"a {PacketType(kind).name} for packet id {packet_id}, which waits for another kind of acknowledgement"
    raise PeerError(Reason.PROTOCOL_ERROR, why, clause="MQTT-4.13.1-1")


def put_entry(out: bytearray, at: int, packet_id: int, state: int, position: int) -> int:
    """Write a packed entry; return where the next one goes."""
    out[at] = packet_id & 0xFF
    out[at + 1] = packet_id >> 8
    out[at + 2] = state
    put64(out, at + 3, position)
    return at + 11
