"""The retained message of each topic, within limits, and what new subscriptions are owed of them.

A topic gets a number when it is first retained, and keeps it until its message is removed. The number is the offset of
the message, with the bit RETAINED, and is stored with it: by numbers a broker that starts knows which messages a
subscription has had, and which were under way.
"""

from everlog.base import RETAINED, PublishRun, Records, TopicTable
from everlog.broker.delivery.retained_columns import RetainedColumns
from everlog.broker.delivery.retained_reader import RetainedWalk
from everlog.broker.delivery.retained_saving import RetainedSaving
from everlog.mqtt import TELL_PLACE, encode_identifiers
from everlog.sessions import MergedSubscription, OutgoingRows, RetainedFeed, Session, Subscribed
from everlog.topics import Filter, TokenWalk

_ROWS = 512  # of a batch for a subscriber
_BYTES = 64 << 10
_LOOKS = 8192  # at topics that a filter may match, before it is another's turn


class RetainedMessages:
    """All retained messages, in memory."""

    def __init__(self, max_messages: int, max_bytes: int) -> None:
        self.max_messages = max_messages
        self.max_bytes = max_bytes
        self.refused = 0
        self.columns = RetainedColumns()
        self.saving = RetainedSaving(self.columns)
        self.must_store = False  # something of the last run is to be in the tables before it is acknowledged

    def __len__(self) -> int:
        return self.columns.live

    @property
    def size_bytes(self) -> int:
        """The memory of all of it."""
        return self.columns.size_bytes

    def take_run(
        self,
        run: PublishRun,
        now_us: int,
        table: TopicTable,
        publisher: str | None = None,
        routes: bytearray | None = None,
    ) -> dict[int, int]:
        """Take the messages of a run that ask to be retained; return the rows that can't be, each with its topic id.

        By `routes` some are kept in the log. The others are in the tables alone: `must_store` says that there were any.
        """
        columns = self.columns
        client = b"" if publisher is None else publisher.encode()
        rows = columns.take_run(run, now_us, table, client, self.max_messages, self.max_bytes, routes)
        self.must_store = False
        if not rows and not columns.unkept:
            return {}
        self.refused += len(rows)
        topics = memoryview(run.columns.topics).cast("I")
        self.must_store = self.saving.unkept([table.name(topics[row]) for row in columns.unkept])
        return {row: topics[row] for row in rows}

    def find(self, offset: int) -> Records | None:
        """Return the message of the topic with a number, given as the offset that messages of the topic have."""
        return self.columns.find(offset & ~RETAINED)

    # New subscriptions

    def may_have(self, flt: Filter) -> bool:
        """Return whether a new subscription can get something; for a filter without wildcards that is known.

        Others can't get anything if no topic has one of their levels, such as a client's own name.
        """
        columns = self.columns
        if columns.live == 0:
            return False
        pattern = flt.pattern.encode()
        if flt.is_exact:
            return columns.number_of(pattern) >= 0
        walk = TokenWalk(pattern)
        columns.index.postings.begin(walk, 0)
        return not walk.is_over

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
        self._merged = MergedSubscription(session, one.qos, identifiers, True, tells=one.tells)
        self._columns = columns
        self._session = session
        self._filter = one.filter
        self._walk = walk = RetainedWalk(flt.pattern.encode(), feed.at, feed.end)
        walk.min_qos = min_qos
        walk.with_times = bool(one.tells & TELL_PLACE)
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
