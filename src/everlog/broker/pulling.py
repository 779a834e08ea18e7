"""Sessions that are behind pull from the log, as far as they have room, until they have reached what is routed.

[MQTT-4.4.0-1] what was under way on the last connection goes first. Invariant: a session's `lag` for a shard goes in
the same step that finds it at `routed`, so nothing is missed and nothing comes twice.
"""

from bisect import bisect_left

from everlog.base import gather
from everlog.broker.delivering import Delivering
from everlog.broker.ports import Log, Sink
from everlog.broker.redelivery import begin, send_again
from everlog.sessions import Piece, Session
from everlog.store import Found, Reader
from everlog.topics import parse_filter

_PULL_BYTES = 256 << 10  # read at a time for one session that is behind
_PULL_RECORDS = 8192


class Pulling:
    """Owns the readers of sessions that are behind; one thread."""

    def __init__(self, log: Log, delivering: Delivering, routed: list[int]) -> None:
        self.readers: dict[Session, tuple[tuple[str, ...], Reader]] = {}
        self._log = log
        self._delivering = delivering
        self.routed = routed

    def resume(self, session: Session) -> None:
        """A session is back: what is under way goes out again, then what it missed."""
        begin(session)
        self.pump(session)

    def pump(self, session: Session) -> None:
        """A session has room again: hand over what waited, first from the queue, then from the log."""
        sink = self._delivering.sinks.get(session)
        if sink is None:
            return
        if self._delivering.moved is not None and session.kept:
            self._delivering.moved.add(session)
        if session.again and not send_again(self._log, self._delivering, session, sink):
            return
        data = session.drain(self._delivering.now_us())
        if data:
            sink.write(data)
        while session.feeds and (data := session.take_feed(self._delivering.now_us())):
            sink.write(data)
        if not session.queued:
            for shard in tuple(session.lag):
                self._catch_up(session, sink, shard)

    def _catch_up(self, session: Session, sink: Sink, shard: int) -> None:
        """Read on from where the session left the log; it is live again when it has reached what is routed."""
        while session.ready and shard in session.lag:
            at = session.lag[shard]
            if at >= self.routed[shard]:
                del session.lag[shard]  # nothing was routed between this line and the last read: no gap, no repeat
                if not session.lag:
                    self.readers.pop(session, None)
                return
            result = self._reader_of(session).read_shard(shard, at, _PULL_RECORDS, _PULL_BYTES)
            session.counters.lost += sum(lost.to_offset - lost.from_offset for lost in result.lost)
            if not all(self._hand_over(session, found, shard) for found in result.batches):
                return  # the session is full, and has said where it stopped
            session.lag[shard] = min(result.positions[0], self.routed[shard])
            if session.lag[shard] == at:
                return

    def _reader_of(self, session: Session) -> Reader:
        """The session's reader of what its own filters match, kept while it is behind."""
        texts = tuple(session.subscriptions)
        known = self.readers.get(session)
        if known is None or known[0] != texts:
            filters = [flt for flt in map(parse_filter, texts) if flt.group is None]
            known = self.readers[session] = (texts, self._log.reader(filters))
        return known[1]

    def _hand_over(self, session: Session, found: Found, shard: int) -> bool:
        """Give a session rows of the log; False when it could not take all, and has noted where it stopped."""
        records, first, stop = found.records, found.start, found.stop
        if found.rows is not None:
            records = gather([(records, found.rows[4 * first : 4 * stop])], True)
            first, stop = 0, records.count
        routed = self.routed[shard]  # a batch may go on behind it, where live subscribers are handed it later
        if records.end_offset > routed:
            stop = bisect_left(range(stop), routed, first, key=records.offset)
        parts = self._delivering.split(records, first, stop)
        now = self._delivering.now_us()
        session.lag.pop(shard, None)  # so that the session takes them; it sets it again where it stops
        mine = [
            (delivery, rows, start, stop)
            for number, rows, start, stop in parts
            if (delivery := self._delivering.audiences.delivery(number, session)) is not None
        ]
        if len(mine) == 1:
            delivery, rows, start, stop = mine[0]
            self._delivering.push(Piece(records, rows, start, stop, delivery), shard, now)
        elif mine:
            self._delivering.push_in_order(records, mine, shard, now)
        return shard not in session.lag
