"""The retained message of each topic, found by filter; who keeps them across restarts is told of every change."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from everlog.base import PublishRun, RecordBuilder, Records, TopicTable
from everlog.topics import Filter, Postings

_ENTRY_BYTES = 200  # what a retained message takes besides its topic, properties and payload


@dataclass(frozen=True, slots=True)
class Retained:
    """A message as it was published, as a batch of one record."""

    topic: str
    records: Records
    publisher: str | None = None  # its client id; not known any more after a restart


class RetainedMessages:
    """Every retained message in memory, with postings to find those that a new subscription asks for."""

    def __init__(self, max_messages: int, max_bytes: int) -> None:
        self.max_messages = max_messages
        self.max_bytes = max_bytes
        self.bytes = 0
        self.refused = 0
        self._ids: dict[str, int] = {}
        self._messages: dict[int, Retained] = {}
        self._postings = Postings()
        self._next = 0
        self._builder = RecordBuilder()
        self.changed: Callable[[str, Records | None], None] = lambda topic, records: None

    def __len__(self) -> int:
        return len(self._messages)

    def take(
        self, run: PublishRun, row: int, now_us: int, table: TopicTable, topic: str, publisher: str | None = None
    ) -> bool:
        """A PUBLISH with RETAIN: it replaces the topic's message, or removes it when it is empty; False if refused."""
        builder = self._builder
        builder.start_segment()
        if not builder.append(run.columns, row, row + 1, now_us, table):
            return True  # dropped already
        records = builder.take(0)
        if records.payload_bytes == 0:  # [MQTT-3.3.1-6] [MQTT-3.3.1-7]
            if self.remove(topic):
                self.changed(topic, None)
            return True
        if not self.put(topic, records, publisher):
            return False
        self.changed(topic, records)
        return True

    def put(self, topic: str, records: Records, publisher: str | None = None) -> bool:
        """Set a topic's message; False when a limit is reached."""
        number = self._ids.get(topic)
        size = records.size + len(topic) + _ENTRY_BYTES
        old = 0 if number is None else self._messages[number].records.size + len(topic) + _ENTRY_BYTES
        if self.bytes - old + size > self.max_bytes or (number is None and len(self) >= self.max_messages):
            self.refused += 1
            return False
        if number is None:
            number = self._ids[topic] = self._next
            self._next += 1
            self._postings.add(number, topic)
        self.bytes += size - old
        self._messages[number] = Retained(topic, records, publisher)
        return True

    def remove(self, topic: str) -> bool:
        """Forget a topic's message; whether there was one."""
        number = self._ids.pop(topic, None)
        if number is None:
            return False
        self.bytes -= self._messages.pop(number).records.size + len(topic) + _ENTRY_BYTES
        self._postings.remove(number, topic)
        return True

    def matching(self, flt: Filter) -> Iterator[Retained]:
        """The messages of the topics that a filter matches, in the order in which the topics were first retained."""
        for number in self._postings.select(flt):
            message = self._messages.get(number)
            if message is not None:  # else it was removed since
                yield message
