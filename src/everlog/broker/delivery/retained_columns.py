"""Retained messages in columns: taken from runs, replaced and removed.

An index has the topics, chunks have the messages, a reader finds them. When most slots of the index are of topics that
are gone, the others are moved into a new index, a few with every message that is taken, while both are kept up to date.
What has changed and is to be stored waits in `queue`, each topic once. Owned by the event loop's thread.
"""

import cython

from everlog.base import UsageError

if not cython.compiled:
    from everlog.base import DROPPED, HAS_ALIAS, NOT_KEPT, RETAIN, PublishRun, Records, TopicTable
    from everlog.base.memory import Buffer, copy, get32, get64, pointer, u32s, u64s
    from everlog.broker.delivery.retained_chunks import AT_MASK, ENTRY_BYTES, RetainedChunks, copy_without_alias
    from everlog.broker.delivery.retained_index import NOBODY, NOWHERE, RetainedIndex
    from everlog.broker.delivery.retained_reader import RetainedReader
    from everlog.broker.delivery.slot_queue import SlotQueue

TOPIC_BYTES = 96  # about, of a topic besides its name and its message
_NAME_COPIES = 3  # of a name: one in the index, the tokens of the postings, room to grow
_DOLLAR = 0x24
_ALIAS_BYTES = 3  # of the property
_STORED_FLAGS = 0x17  # DUP and the alias belong to the connection, not to the message
_FEW_GONE = 1024  # slots that are worth no new index
_MOVED_EACH = 4  # slots looked at for the new index with every message that is taken


class RetainedColumns:
    """All retained messages."""

    def __init__(self) -> None:
        self.live = 0
        self.next_number = 0
        self.stores = False  # changes are asked for, to be stored
        self.unkept: list[int] = []
        self.index = RetainedIndex()
        self.chunks = RetainedChunks()
        self.reader = RetainedReader(self.index, self.chunks)
        self.queue = SlotQueue()  # those whose change is to be stored
        self._is_settled = True
        self._next: RetainedIndex | None = None
        self._moved = bytearray()  # by slot of the index, the slot in the next one
        self._moved_to = 0
        self._table: TopicTable | None = None
        self._generation = -1
        self._known = bytearray()  # by topic id of the table, the slot + 1
        self._knows_all = True  # there is no slot of a topic that has none in `_known`

    @property
    def size_bytes(self) -> int:
        """The memory of all of it."""
        more = 0 if self._next is None else self._next.size_bytes + len(self._moved)
        return self.chunks.size_bytes + self.index.size_bytes + self.queue.size_bytes + len(self._known) + more

    # Taking messages in

    def take_run(
        self,
        run: PublishRun,
        now_us: int,
        table: TopicTable,
        client: bytes,
        max_messages: int,
        max_bytes: int,
        routes: bytearray | None = None,
    ) -> list[int]:
        """Take the messages of a run that ask to be retained; return the rows that there is no room for.

        By `routes` (a byte for each topic id and QoS, at 4 * id + QoS) some are kept in the log. The rows of those
        that are not, and that have changed something, are in `unkept` afterwards.
        """
        columns = run.columns
        topics = u32s(columns.topics)
        flags = pointer(columns.flags)
        begins = u32s(columns.property_starts)
        middles = u32s(columns.payload_starts)
        ends = u32s(columns.payload_ends)
        publisher = self.index.clients.intern(client) if client else NOBODY
        room = max_bytes - self.size_bytes
        refused: list[int] = []
        self.unkept = []
        route = pointer(routes if routes is not None else b"")
        known = len(routes) // 4 if routes is not None else 0
        taken = 0
        self._bind(table)
        for row in range(run.start, run.stop):
            flag = flags[row]
            if flag & (RETAIN | DROPPED) != RETAIN:
                continue
            taken += 1
            slot = self._slot(table, topics[row])
            begin, middle, end = begins[row], middles[row], ends[row]
            is_kept = topics[row] < known and route[4 * topics[row] + (flag >> 1 & 3)] != NOT_KEPT
            if end == middle:  # [MQTT-3.3.1-6] [MQTT-3.3.1-7]
                if slot >= 0:
                    self._remove(slot)
                    if not is_kept:
                        self.unkept.append(row)
                continue
            source = pointer(columns.source)
            if slot >= 0 and self._write_over(slot, source, begin, middle, end, flag, now_us, publisher):
                if not is_kept:
                    self.unkept.append(row)
                continue
            size = ENTRY_BYTES + end - begin
            before = 0 if slot < 0 else self.chunks.entry_size(u64s(self.index.places)[slot])
            more = size - before
            if slot < 0:
                more += self._topic_bytes(table, topics[row])
            if (more > 0 and more > room) or (slot < 0 and self.live >= max_messages):
                refused.append(row)
                continue
            room -= more
            self._put(slot, source, begin, middle, middle, end, flag, now_us, table, topics[row], publisher, -1)
            if not is_kept:
                self.unkept.append(row)
        if taken:
            self.index.names.place_rest()
            self._tidy(_MOVED_EACH * taken)
        return refused

    def restore(self, records: Records, row: int, number: int, changed: bool) -> None:
        """Take a message in at the start, whatever the limits; its topic gets `number` if it is new, -1 for any.

        If `changed` it is to be stored. Until `settle` is called, nothing but this and `remove` may be.
        """
        self._is_settled = False
        if not 0 <= row < records.count:
            raise UsageError(f"no record {row} in a batch of {records.count}")
        plan = records.layout
        base = records.start
        raw = pointer(records.data)
        begin = middle = base + plan.properties
        if records.with_properties:
            middle = begin + get32(raw, base + plan.property_ends + 4 * row + 4)
            begin += get32(raw, base + plan.property_ends + 4 * row)
        start = base + plan.payloads + get32(raw, base + plan.payload_ends + 4 * row)
        end = base + plan.payloads + get32(raw, base + plan.payload_ends + 4 * row + 4)
        flags = raw[base + plan.flags + row]
        time_us = records.first_time + get32(raw, base + plan.times + 4 * row)
        topic = get32(raw, base + plan.topics + 4 * row)
        self._bind(records.table)
        slot = self._slot(records.table, topic)
        stores, self.stores = self.stores, changed
        self._put(slot, raw, begin, middle, start, end, flags, time_us, records.table, topic, NOBODY, number)
        self.stores = stores

    def settle(self) -> None:
        """Bring the slots into the order of their numbers, after messages were restored."""
        count = self.index.names.count
        order: list[int] = sorted(range(count), key=memoryview(self.index.numbers).cast("Q").__getitem__)
        self._next = RetainedIndex()
        self._moved = bytearray(4 * count)
        for slot in order:
            self._move(slot)
        self._swap()
        self._is_settled = True

    def _topic_bytes(self, table: TopicTable, topic: int) -> int:
        ends = u32s(table.ends)
        return TOPIC_BYTES + _NAME_COPIES * (ends[topic + 1] - ends[topic])

    def _bind(self, table: TopicTable) -> int:
        """Make the map from a table's topic ids to slots large enough, or anew for another table."""
        if self._table is not table or self._generation != table.generation:
            self._table = table
            self._generation = table.generation
            self._known = bytearray()
            self._knows_all = self.index.names.count == 0
        if len(self._known) < 4 * table.count:
            self._known.extend(bytes(4 * table.count - len(self._known) + len(self._known) // 16 * 4))
        return 0

    def _slot(self, table: TopicTable, topic: int) -> int:
        """Return the slot of a topic of the bound table; -1 if nothing is retained for it."""
        known = u32s(self._known)
        places = u64s(self.index.places)
        if known[topic] and places[known[topic] - 1] != NOWHERE:
            return known[topic] - 1
        if self._knows_all and known[topic] == 0:
            return -1
        ends = u32s(table.ends)
        slot = self.index.names.find(pointer(table.names), ends[topic], ends[topic + 1] - ends[topic])
        if slot < 0 or places[slot] == NOWHERE:
            return -1
        known[topic] = slot + 1
        return slot

    def _write_over(
        self, slot: int, source: Buffer, begin: int, middle: int, end: int, flags: int, now_us: int, publisher: int
    ) -> bool:
        """Replace a message by one of the same size where it is; return whether that is all that there is to do."""
        if self._next is not None or flags & HAS_ALIAS:
            return False
        place, stored = u64s(self.index.places)[slot], flags & _STORED_FLAGS
        if not self.chunks.write_over(place, source, begin, middle, end, stored, now_us):
            return False
        u32s(self.index.publishers)[slot] = publisher
        self._changed(slot)
        return True

    def _put(
        self,
        slot: int,
        source: Buffer,
        begin: int,
        middle: int,
        start: int,
        end: int,
        flags: int,
        time_us: int,
        table: TopicTable,
        topic: int,
        publisher: int,
        number: int,
    ) -> int:
        """Set the message of a topic, which has a slot or is new: properties from `begin`, the payload from `start`."""
        chunks, index = self.chunks, self.index
        properties = middle - begin
        if flags & HAS_ALIAS:
            properties -= _ALIAS_BYTES
        payload = end - start
        size = ENTRY_BYTES + properties + payload
        place = NOWHERE
        is_new = slot < 0
        if is_new:
            number = self.next_number if number < 0 else number
            self.next_number = max(self.next_number, number + 1)
        else:
            number = u64s(index.numbers)[slot]
            place = u64s(index.places)[slot]
            if chunks.entry_size(place) == size:
                chunks.write_head(place, number, time_us, properties, payload, flags & _STORED_FLAGS)
            else:
                chunks.drop(place)
                place = NOWHERE
        if place == NOWHERE:
            place = chunks.put(number, time_us, properties, payload, flags & _STORED_FLAGS)
        out = pointer(chunks.chunks[place >> 32])
        at = (place & AT_MASK) + ENTRY_BYTES
        if flags & HAS_ALIAS:
            copy_without_alias(out, at, source, begin, middle)
        else:
            copy(out, at, source, begin, properties)
        copy(out, at + properties, source, start, payload)
        if is_new:
            ends = u32s(table.ends)
            name = ends[topic]
            size = ends[topic + 1] - name
            never = self._knows_all and u32s(self._known)[topic] == 0
            slot = index.add(pointer(table.names), name, size, number, place, publisher, never)
            u32s(self._known)[topic] = slot + 1
            self.live += 1
        else:
            self._set_place(slot, place)
            self._set_publisher(slot, publisher)
        return self._changed(slot)

    def remove(self, name: bytes) -> bool:
        """Forget a topic's message; return whether there was one."""
        slot = self.index.names.lookup(name)
        if slot < 0 or u64s(self.index.places)[slot] == NOWHERE:
            return False
        self._remove(slot)
        self._tidy(_MOVED_EACH)
        return True

    def _remove(self, slot: int) -> int:
        self.chunks.drop(u64s(self.index.places)[slot])
        self._set_place(slot, NOWHERE)
        self.live -= 1
        return self._changed(slot)

    def _set_place(self, slot: int, place: int) -> int:
        u64s(self.index.places)[slot] = place
        if self._next is not None and slot < self._moved_to and u32s(self._moved)[slot]:
            u64s(self._next.places)[u32s(self._moved)[slot] - 1] = place
        return 0

    def _set_publisher(self, slot: int, publisher: int) -> int:
        u32s(self.index.publishers)[slot] = publisher
        if self._next is not None and slot < self._moved_to and u32s(self._moved)[slot]:
            u32s(self._next.publishers)[u32s(self._moved)[slot] - 1] = self._client(publisher)
        return 0

    def _client(self, publisher: int) -> int:
        """Return what a publisher is in the next index."""
        assert self._next is not None
        if publisher == NOBODY:
            return NOBODY
        return self._next.clients.intern(self.index.clients.name(publisher))

    # What is to be stored

    def _changed(self, slot: int) -> int:
        """Have the change of a topic stored; those that begin with $ are the broker's own, and are not."""
        marks = pointer(self.index.marks)
        if marks[slot] or not self.stores:
            return 0
        names = self.index.names
        start = u32s(names.ends)[slot]
        if u32s(names.ends)[slot + 1] == start or pointer(names.names)[start] != _DOLLAR:
            marks[slot] = 1
            self.queue.add(slot)
        return 0

    def take_changes(self, most: int) -> list[tuple[bytes, bytes | None]]:
        """Return the topics that have changed first, each with its message as it is stored now, or None."""
        changes: list[tuple[bytes, bytes | None]] = []
        for _ in range(min(most, len(self.queue))):
            slot = self.queue.take()
            pointer(self.index.marks)[slot] = 0
            name = self.index.names.name(slot)
            if u64s(self.index.places)[slot] != NOWHERE:
                changes.append((name, bytes(self.reader.one(slot, True).to_bytes())))
            elif self.index.names.lookup(name) == slot:  # else it came back, which is another change
                changes.append((name, None))
        return changes

    def stored(self, name: bytes) -> bytes | None:
        """Return a topic's message as it is stored, or None if it has none."""
        slot = self.index.names.lookup(name)
        if slot < 0 or u64s(self.index.places)[slot] == NOWHERE:
            return None
        return bytes(self.reader.one(slot, True).to_bytes())

    def number_of(self, name: bytes) -> int:
        """Return the number that a topic has, or had last; -1 if it is not known."""
        slot = self.index.names.lookup(name)
        return -1 if slot < 0 else u64s(self.index.numbers)[slot]

    def find(self, number: int) -> Records | None:
        """Return the message of the topic with a number as a batch."""
        slot = self.index.slot_of(number)
        return None if slot < 0 else self.reader.one(slot, False)

    # Tidying up

    def _tidy(self, steps: int) -> int:
        """Tidy the chunks that are mostly gone, and move some slots if most of the index is."""
        if not self._is_settled:
            return 0
        chunk = self.chunks.take_loose() if len(self.chunks.loose) else -1
        while chunk >= 0:
            self._empty(chunk)
            chunk = self.chunks.take_loose()
        count = self.index.names.count
        if self._next is None:
            if count - self.live <= self.live + _FEW_GONE:
                return 0
            self._next = RetainedIndex()
            self._moved = bytearray(4 * count)
            self._moved_to = 0
        if len(self._moved) < 4 * count:
            self._moved.extend(bytes(4 * (count + count // 4) - len(self._moved)))
        stop = min(count, self._moved_to + steps)
        for slot in range(self._moved_to, stop):
            self._move(slot)
        self._moved_to = stop
        if stop == count:
            self._swap()
        return 0

    def _empty(self, chunk: int) -> int:
        """Put what is left of a chunk elsewhere."""
        chunks = self.chunks
        at = 0
        stop = chunks.used(chunk)
        while at < stop:
            raw = pointer(chunks.chunks[chunk])
            number = get64(raw, at)
            properties = get32(raw, at + 16)
            payload = get32(raw, at + 20)
            slot = self.index.slot_of(number)
            if slot >= 0 and u64s(self.index.places)[slot] == (chunk << 32 | at):
                place = chunks.put(number, get64(raw, at + 8), properties, payload, get32(raw, at + 24))
                raw = pointer(chunks.chunks[chunk])
                out = pointer(chunks.chunks[place >> 32])
                start = (place & AT_MASK) + ENTRY_BYTES
                copy(out, start, raw, at + ENTRY_BYTES, properties + payload)
                self._set_place(slot, place)
            at += ENTRY_BYTES + properties + payload
        return chunks.drop_chunk(chunk)

    def _move(self, slot: int) -> int:
        """Take a slot over into the next index, if its message is there or its end is to be stored."""
        index, following = self.index, self._next
        assert following is not None
        place = u64s(index.places)[slot]
        if place == NOWHERE and not pointer(index.marks)[slot]:
            return 0
        ends = u32s(index.names.ends)
        start = ends[slot]
        size = ends[slot + 1] - start
        publisher = self._client(u32s(index.publishers)[slot])
        number = u64s(index.numbers)[slot]
        u32s(self._moved)[slot] = following.add(pointer(index.names.names), start, size, number, place, publisher) + 1
        return 0

    def _swap(self) -> int:
        """Go on with the next index, which has everything."""
        following = self._next
        assert following is not None
        self.queue.translate(self._moved, following.marks)  # what is queued was moved
        self.index = following
        self.reader.index = following
        self._next = None
        self._moved = bytearray()
        self._known = bytearray()
        self._generation = -1
        return 0
