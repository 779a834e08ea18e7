"""The retained message of each topic, within limits, and what new subscriptions are owed of them.

A topic gets a number when it is first retained, and keeps it until its message is removed. The number is the offset of
the message, with the bit RETAINED, and is stored with it: by numbers a broker that starts knows which messages a
subscription has had, and which were under way.
"""

from collections.abc import Iterable

from everlog.base import RETAINED, PublishRun, Records, StorageError, TopicTable, rebased
from everlog.broker.delivery.retained_columns import RetainedColumns
from everlog.broker.delivery.retained_reader import RetainedWalk
from everlog.mqtt import encode_identifiers
from everlog.sessions import MergedSubscription, OutgoingRows, RetainedFeed, Session, Subscribed
from everlog.topics import Filter

_ROWS = 512  # of a batch for a subscriber
_BYTES = 64 << 10
_LOOKS = 512  # at topics that a filter may match, before it is another's turn


class RetainedMessages:
    """All retained messages, in memory."""

    def __init__(self, max_messages: int, max_bytes: int) -> None:
        self.max_messages = max_messages
        self.max_bytes = max_bytes
        self.refused = 0
        self.columns = RetainedColumns()

    def __len__(self) -> int:
        return self.columns.live

    @property
    def size_bytes(self) -> int:
        """The memory of all of it."""
        return self.columns.size_bytes

    def take_run(self, run: PublishRun, now_us: int, table: TopicTable, publisher: str | None = None) -> dict[int, int]:
        """Take the messages of a run that ask to be retained; return the rows that can't be, each with its topic id."""
        client = b"" if publisher is None else publisher.encode()
        rows = self.columns.take_run(run, now_us, table, client, self.max_messages, self.max_bytes)
        if not rows:
            return {}
        self.refused += len(rows)
        topics = memoryview(run.columns.topics).cast("I")
        return {row: topics[row] for row in rows}

    def find(self, offset: int) -> Records | None:
        """Return the message of the topic with a number, given as the offset that messages of the topic have."""
        return self.columns.find(offset & ~RETAINED)

    # Storing

    def store_changes(self) -> None:
        """Have changes noted for `take_changes` from now on."""
        self.columns.stores = True

    @property
    def unsaved(self) -> int:
        """How many changes nobody has taken yet."""
        return self.columns.waiting

    def take_changes(self) -> list[tuple[str, bytes | None]]:
        """Return the topics that have changed, each with its message as it is stored, or None if it has none now."""
        return [(name.decode(), message) for name, message in self.columns.take_changes(self.unsaved)]

    def restore(self, stored: Iterable[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
        """Take in what was stored, whatever the limits: they may have been lowered since.

        Return those that got a number now, since an earlier version has stored none.
        """
        columns, without = self.columns, []
        for topic, message in stored:
            records = stored_message(topic, message)
            if records.base_offset & RETAINED:
                columns.restore(records, 0, records.base_offset & ~RETAINED)
            else:
                without.append((topic, records))
        renumbered = []
        for topic, records in without:
            again = rebased(records, RETAINED | columns.next_number)
            columns.restore(again, 0, columns.next_number)
            renumbered.append((topic, bytes(again.to_bytes())))
        columns.settle()
        return renumbered

    def number_from(self, number: int) -> None:
        """Use no number below this one for a topic that is new."""
        self.columns.next_number = max(self.columns.next_number, number)

    # New subscriptions

    def feed(self, session: Session, flt: Filter, one: Subscribed) -> RetainedFeed:
        """Return what a new subscription gets: RETAIN set, at most at its QoS, and while it lasts."""
        feed = RetainedFeed(one.filter, 0, self.columns.next_number, one.qos)
        feed.source = _Source(self.columns, session, flt, one, feed)
        return feed

    def go_on(self, session: Session, flt: Filter, one: Subscribed, feed: RetainedFeed) -> None:
        """Have a stored feed go on where it was, without messages of QoS 0: they may have been sent."""
        feed.qos = one.qos
        feed.source = _Source(self.columns, session, flt, one, feed, min_qos=1)


class _Source:
    """The messages of one feed, as they are when they are asked for."""

    def __init__(
        self,
        columns: RetainedColumns,
        session: Session,
        flt: Filter,
        one: Subscribed,
        feed: RetainedFeed,
        min_qos: int = 0,
    ) -> None:
        identifiers = encode_identifiers([one.identifier] if one.identifier else [])
        self._merged = MergedSubscription(session, one.qos, identifiers, True, position=one.position)
        self._columns = columns
        self._session = session
        self._filter = one.filter
        self._walk = walk = RetainedWalk(flt.pattern.encode(), feed.at, feed.end)
        walk.min_qos = min_qos
        walk.with_times = one.position
        if one.no_local:  # [MQTT-3.8.3-3]
            walk.not_from = session.client_id.encode()

    @property
    def is_over(self) -> bool:
        """Whether there are no more: all were looked at, or the subscription is there no more."""
        return self._walk.is_over or self._filter not in self._session.subscriptions

    def take(self, most: int) -> OutgoingRows | None:
        """Return some messages, None if there are none among those that were looked at."""
        if self.is_over:
            return None
        records = self._columns.reader.collect(self._walk, min(most, _ROWS), _BYTES, _LOOKS)
        return None if records is None else OutgoingRows(records, None, 0, records.count, self._merged)

    def go_back(self, number: int) -> None:
        """Go on with a topic's number that was passed already."""
        self._walk.go_back(number)


def stored_message(topic: str, message: bytes) -> Records:
    """Check a stored retained message and return it as a batch."""
    name = topic.encode()
    table = TopicTable(0, 1, len(name))
    table.intern(name)
    records = Records(message, 0, table)
    if not records.verify() or records.new_names() != [name]:
        raise StorageError(f"the retained message of {topic!r} is damaged", hint="restore the file from a backup")
    return records
