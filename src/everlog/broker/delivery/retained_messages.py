"""The retained message of each topic, found by filter; `changed` is called with every change, for the tables.

A topic gets a number when it is first retained, and keeps it until its message is removed. The number is the base
offset of the message, with the bit RETAINED, so it is stored with it: by numbers a broker that starts knows which
messages a subscription has had, and which were under way.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from everlog.base import (
    DROPPED,
    QOS_BITS,
    RETAIN,
    RETAINED,
    PublishRun,
    RecordBuilder,
    Records,
    StorageError,
    TopicTable,
    rebased,
)
from everlog.mqtt import encode_identifiers
from everlog.sessions import MergedSubscription, OutgoingRows, RetainedFeed, Session, Subscribed
from everlog.topics import Filter, Postings

# What was measured to be taken by a retained message besides its batch and its topic's postings.
_ENTRY_BYTES = 960
_NAME_COPIES = 2


@dataclass(frozen=True, slots=True)
class Retained:
    """A message as it was published, as a batch of one record at the topic's number."""

    topic: str
    records: Records
    publisher: str | None = None  # its client id; unknown after a restart


class RetainedMessages:
    """All retained messages, in memory, with postings to find those that a new subscription asks for."""

    def __init__(self, max_messages: int, max_bytes: int) -> None:
        self.max_messages = max_messages
        self.max_bytes = max_bytes
        self.refused = 0
        self._message_bytes = 0
        self._ids: dict[str, int] = {}
        self._messages: dict[int, Retained] = {}
        self._postings = Postings()
        self._next = 0
        self._builder = RecordBuilder()
        self.changed: Callable[[str, Records | None], None] = lambda topic, records: None

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def size_bytes(self) -> int:
        """The memory of all of it."""
        return self._message_bytes + self._postings.size_bytes

    def take_run(self, run: PublishRun, now_us: int, table: TopicTable, publisher: str | None = None) -> dict[int, int]:
        """Take the messages of a run that ask to be retained; return the rows that can't be, each with its topic id."""
        columns = run.columns
        topics = memoryview(columns.topics).cast("I")
        return {
            row: topics[row]
            for row in range(run.start, run.stop)
            if columns.flags[row] & (RETAIN | DROPPED) == RETAIN
            and not self._take(run, row, now_us, table, table.name(topics[row]).decode(), publisher)
        }

    def _take(
        self, run: PublishRun, row: int, now_us: int, table: TopicTable, topic: str, publisher: str | None
    ) -> bool:
        """Replace the topic's message, or remove it when the new one is empty; return False if that is refused."""
        builder = self._builder
        builder.start_segment()
        if not builder.append(run.columns, row, row + 1, now_us, table):
            return True  # dropped already
        records = builder.take(RETAINED | self._ids.get(topic, self._next))
        records.table = _table_of(topic)  # the builder's has room for more
        if records.payload_bytes == 0:  # [MQTT-3.3.1-6] [MQTT-3.3.1-7]
            if self.remove(topic):
                self.changed(topic, None)
            return True
        if not self.put(topic, records, publisher):
            return False
        self.changed(topic, records)
        return True

    def put(self, topic: str, records: Records, publisher: str | None = None) -> bool:
        """Set a topic's message, which has its number or one that is free; return False if a limit is reached."""
        number = self._ids.get(topic)
        more = _size(topic, records) - (0 if number is None else _size(topic, self._messages[number].records))
        if self.size_bytes + more > self.max_bytes or (number is None and len(self) >= self.max_messages):
            self.refused += 1
            return False
        self.restore(topic, records, publisher)
        return True

    def restore(self, topic: str, records: Records, publisher: str | None = None) -> None:
        """Set a topic's message, whatever the limits: they may have been lowered since it was taken."""
        number = self._ids.get(topic)
        if number is None:
            number = self._ids[topic] = records.base_offset & ~RETAINED
            self.number_from(number + 1)
            self._postings.add(number, topic)
        else:
            self._message_bytes -= _size(topic, self._messages[number].records)
        self._message_bytes += _size(topic, records)
        self._messages[number] = Retained(topic, records, publisher)

    def number_from(self, number: int) -> None:
        """Use no number below this one for a topic that is new."""
        self._next = max(self._next, number)

    def numbered(self, records: Records) -> Records:
        """Return a message that an earlier version has stored without a number, with one."""
        return rebased(records, RETAINED | self._next)

    def find(self, offset: int) -> Records | None:
        """Return the message of the topic with a number, given as the offset that messages of the topic have."""
        message = self._messages.get(offset & ~RETAINED)
        return None if message is None else message.records

    def remove(self, topic: str) -> bool:
        """Forget a topic's message; return whether there was one."""
        number = self._ids.pop(topic, None)
        if number is None:
            return False
        self._message_bytes -= _size(topic, self._messages.pop(number).records)
        self._postings.remove(number, topic)
        return True

    def matching(self, flt: Filter, first: int = 0) -> Iterator[Retained]:
        """Yield the messages of the topics that a filter matches, in the order in which topics were first retained."""
        for number in self._postings.select(flt).iter_equal_or_larger(first):
            message = self._messages.get(number)
            if message is not None:  # else it was removed since
                yield message

    def feed(self, session: Session, flt: Filter, one: Subscribed) -> RetainedFeed:
        """Return what a new subscription gets: RETAIN set, at most at its QoS, and while it lasts."""
        feed = RetainedFeed(one.filter, 0, self._next, one.qos)
        feed.rows = self._rows(session, flt, one, feed)
        return feed

    def go_on(self, session: Session, flt: Filter, one: Subscribed, feed: RetainedFeed) -> None:
        """Have a stored feed go on where it was, without messages of QoS 0: they may have been sent."""
        lasting = (out for out in self._rows(session, flt, one, feed) if out.flags()[0] & QOS_BITS)
        feed.rows, feed.qos = lasting, one.qos

    def _rows(self, session: Session, flt: Filter, one: Subscribed, feed: RetainedFeed) -> Iterator[OutgoingRows]:
        identifiers = encode_identifiers([one.identifier] if one.identifier else [])
        merged = MergedSubscription(session, one.qos, identifiers, True, position=one.position)
        for message in self.matching(flt, feed.at):
            if message.records.base_offset & ~RETAINED >= feed.end:
                return
            if one.filter not in session.subscriptions:  # given up, or not allowed any more
                return
            if not one.no_local or message.publisher != session.client_id:  # [MQTT-3.8.3-3]
                yield OutgoingRows(message.records, None, 0, 1, merged)


def _size(topic: str, records: Records) -> int:
    return _ENTRY_BYTES + records.size + _NAME_COPIES * len(topic)


def stored_message(topic: str, message: bytes) -> Records:
    """Check a stored retained message and return it as a batch."""
    records = Records(message, 0, _table_of(topic))
    if not records.verify() or records.new_names() != [topic.encode()]:
        raise StorageError(f"the retained message of {topic!r} is damaged", hint="restore the file from a backup")
    return records


def _table_of(topic: str) -> TopicTable:
    """Return a table of one topic."""
    name = topic.encode()
    table = TopicTable(0, 1, len(name))
    table.intern(name)
    return table
