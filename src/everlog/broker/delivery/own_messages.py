"""Messages of the broker's own, such as wills and `$SYS` topics, on the way of any other."""

from everlog.base import MessageColumns, PublishRun, TopicTable
from everlog.mqtt import Decoder, Publish, encode


class OwnMessages:
    """A converter of packets into runs, with the broker's table of topics."""

    def __init__(self, table: TopicTable) -> None:
        self.count = 0  # of messages that became runs
        self._table = table
        self._decoder = self._new()

    def _new(self) -> Decoder:
        return Decoder(MessageColumns(16), self._table, version=5)

    def run(self, packet: Publish) -> PublishRun | None:
        """Return the run of one message; None if the table of topics is full or the message is wrong."""
        events = self._decoder.feed(encode(packet, 5))
        if self._decoder.failed:  # the next one may fare better
            self._decoder = self._new()
        run = next((event for event in events if isinstance(event, PublishRun)), None)
        self.count += run is not None
        return run
