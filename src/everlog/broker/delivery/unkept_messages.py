"""Messages that nothing keeps: gathered for one turn of the event loop, then handed to whoever is connected.

They are numbered like those of a shard, from the broker's start on. Owned by the event loop's thread.
"""

from typing import Any

import cython

if not cython.compiled:
    from everlog.base import NOT_KEPT, MessageColumns, PublishRun, RecordBuilder, TopicTable
    from everlog.broker.delivery.fanout import Fanout

_BYTES = 1 << 20  # of a turn; what is beyond it is routed at once
_TOPICS = 100_000  # the batches' own names are forgotten beyond this
_NAME_BYTES = 8 << 20  # or beyond this


class UnkeptMessages:
    """What was published in this turn and is in no log."""

    def __init__(self, fanout: Fanout) -> None:
        self._fanout = fanout
        self._builder = RecordBuilder(checked=False)
        self._offset = 0

    def add(self, run: PublishRun, now: int, table: TopicTable, routes: bytearray | None, publisher: Any) -> int:
        """Take what is not kept of a run, which a `publisher` must not get back."""
        builder = self._builder
        taken = builder.append(run.columns, run.start, run.stop, now, table, routes, NOT_KEPT)
        if publisher is not None and taken:
            end = self._offset + len(builder)
            publisher.published(NOT_KEPT, end - taken, end, self._offset)
        if builder.size > _BYTES:
            self.route()
        return 0

    def add_all(self, columns: MessageColumns, count: int, now: int, table: TopicTable) -> int:
        """Take the first messages of columns."""
        self._builder.append(columns, 0, count, now, table)
        if self._builder.size > _BYTES:
            self.route()
        return 0

    def route(self) -> int:
        """Hand on what was taken."""
        builder = self._builder
        if builder.count == 0:
            return 0
        records = builder.take(self._offset)
        self._offset += len(records)
        if builder.table.count > _TOPICS or builder.table.name_bytes > _NAME_BYTES:
            builder.start_segment()
        self._fanout.route(records, 0, NOT_KEPT)
        return 0
