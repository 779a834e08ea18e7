"""Sessions that are behind pull from the log, as far as they have room, until they have reached what is routed.

[MQTT-4.4.0-1] what was under way on the last connection goes first. Invariant: a session's `lag` for a shard goes in
the same step that finds it at `routed`, so nothing is missed and nothing comes twice. All of them together get a few
milliseconds of a turn of the event loop; who is not done stands in line for the next, so that neither a long history
nor many sessions hold up the others.
"""

import logging
import time
from bisect import bisect_left
from collections.abc import Callable
from functools import partial
from logging import WARNING

from everlog.base import NOT_KEPT, EverlogError, gather, unpack_position
from everlog.broker.coldreading import ColdReading
from everlog.broker.course import Course, Courses
from everlog.broker.delivering import Delivering
from everlog.broker.events import event
from everlog.broker.ports import Log, Sink
from everlog.broker.redelivery import begin, send_again
from everlog.sessions import RELEASED, Delivery, Piece, Session
from everlog.store import Found, ReadResult
from everlog.topics import parse_filter

_SLICE_BYTES = 256 << 10  # for one session that is behind, before the next one's turn
_SLICE_RECORDS = 8192
_TURN_BYTES = 1 << 20  # for all of them in one turn of the event loop
_TURN_S = 0.002
_log = logging.getLogger("everlog.broker")


class Pulling:
    """Owns who is behind and where in the log each of them reads; one thread."""

    def __init__(
        self,
        log: Log,
        delivering: Delivering,
        routed: list[int],
        soon: Callable[[Callable[[], None]], object],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.routed = routed
        self.lost = 0  # offsets that sessions asked for and that could not be read any more
        self.on_live: dict[Session, Callable[[], None]] = {}  # what to call once when a session has caught up
        self.cold: ColdReading | None = None
        self._log = log
        self._delivering = delivering
        self._courses = Courses(log)
        self._soon = soon
        self._clock = clock
        self._line: dict[Session, None] = {}
        self._failed: dict[Session, None] = {}  # could not be read for, and may have nothing under way to come back by
        self._spent = 0  # bytes in this turn of the event loop
        self._until = 0.0
        self._turn_asked = False

    def read_cold(self, cold: ColdReading) -> None:
        """From now on there is a cold tier behind the log."""
        self.cold = cold
        cold.arrived = self.pump

    def resume(self, session: Session) -> None:
        """A session is back: what is under way goes out again, then what it missed."""
        begin(session)
        if self.cold is not None and session.again:
            self._look_for_cold(self.cold, session)
        self.pump(session)

    def _look_for_cold(self, cold: ColdReading, session: Session) -> None:
        """What is under way may be in the log no more."""
        places = [unpack_position(position) for _, state, position in session.again or () if state != RELEASED]
        starts = [shard.start for shard in self._log.shards]
        gone = [(shard, offset) for shard, offset in places if shard != NOT_KEPT and offset < starts[shard]]
        if gone:
            filters = (flt for flt in map(parse_filter, session.subscriptions) if flt.group is None)
            cold.find_again(session, gone, tuple(filters))

    def changed(self, session: Session) -> None:
        """Its subscriptions are others now."""
        self._courses.forget(session)

    def forget(self, session: Session) -> None:
        """It has no connection any more."""
        self._courses.forget(session)
        self._line.pop(session, None)
        self._failed.pop(session, None)
        self.on_live.pop(session, None)
        if self.cold is not None:
            self.cold.forget(session)

    def pump(self, session: Session) -> None:
        """A session has room again: hand over what waited, first from the queue, then from the log."""
        sink = self._delivering.sinks.get(session)
        if sink is None:
            return
        if self._delivering.moved is not None and session.kept:
            self._delivering.moved.add(session)
        if session.again and not self._send_again(session, sink):
            return
        data = session.drain(self._delivering.now_us())
        if data:
            sink.write(data)
        if session in self._line:
            return
        if self._has_time():
            self._serve(session, sink)
        elif session.waiting or session in self.on_live:
            self._stand_in_line(session)

    def _send_again(self, session: Session, sink: Sink) -> bool:
        """What was under way goes first; whether all of it is sent."""
        if self.cold is not None and self.cold.is_looking(session):
            return False
        return send_again(self._log, self._delivering, session, sink, self.cold)

    # Turns

    def _has_time(self) -> bool:
        """Whether sessions that are behind may have more of this turn."""
        if self._spent == 0:
            self._until = self._clock() + _TURN_S
            return True
        return self._spent < _TURN_BYTES and self._clock() < self._until

    def _stand_in_line(self, session: Session) -> None:
        self._line[session] = None
        self._ask_for_turn()

    def _ask_for_turn(self) -> None:
        if not self._turn_asked:
            self._turn_asked = True
            self._soon(self._turn)

    def _turn(self) -> None:
        """Serve those in line, one slice each, while there is time; between turns everybody else is heard."""
        self._turn_asked = False
        self._spent = 0
        while self._line and self._has_time():
            session = next(iter(self._line))
            del self._line[session]
            sink = self._delivering.sinks.get(session)
            if sink is None or session.again:
                continue
            try:
                self._serve(session, sink)
            except EverlogError as error:
                self._failed[session] = None
                event(_log, "read_failed", WARNING, client=session.client_id, reason=error)
        if self._line:
            self._ask_for_turn()

    def retry(self) -> None:
        """Once a second: who could not be read for stands in line again."""
        failed, self._failed = self._failed, {}
        for session in failed:
            self._stand_in_line(session)

    def _serve(self, session: Session, sink: Sink) -> None:
        """One slice; a session that could take more stands in line for it."""
        left = _SLICE_BYTES
        while session.ready and not session.queued and left > 0:
            taken = self._feed(session, sink) if session.feeds else 0
            taken = taken or self._step(session)
            if not taken:
                break
            left -= taken
        if left < _SLICE_BYTES:
            self._spent += _SLICE_BYTES - left
            self._ask_for_turn()
        self._settle(session)
        if left <= 0 and session.ready and session.waiting:
            self._stand_in_line(session)

    def _feed(self, session: Session, sink: Sink) -> int:
        """Some retained messages; how many bytes."""
        data = session.take_feed(self._delivering.now_us())
        if data:
            sink.write(data)
        return len(data)

    # Reading on

    def _settle(self, session: Session) -> None:
        """Where the session has reached what is routed it is live: nothing is routed before this returns."""
        lag = session.lag
        for shard in tuple(lag):
            if lag[shard] >= self.routed[shard]:
                del lag[shard]  # nothing was routed between this line and the last read: no gap, no repeat
        if not lag:
            self._courses.forget(session)
            if self.cold is not None:
                self.cold.forget(session)
            if session in self.on_live:
                self.on_live.pop(session)()

    def _step(self, session: Session) -> int:
        """Read on in the shard where the session is furthest back in time; how many bytes, 0 if it can't go on."""
        self._settle(session)
        if not session.lag:
            return 0
        shard = self._courses.furthest_back(session)
        at = session.lag[shard]
        course = self._courses.course(session, shard, at)
        end = min(course.bound, self.routed[shard])
        if course.reader is None:  # nothing that it subscribes to begins before `bound`
            session.lag[shard] = end
            return 1
        result = self._read(session, shard, at, course)
        if result is None:
            return 0  # it is asked for, and the session is pumped when it is here
        for lost in result.lost:
            self.lose(session, shard, lost.from_offset, min(lost.to_offset, end))
        hand_over = self._hand_over if course.delivery is None else partial(self._hand_on, course.delivery)
        if not all(hand_over(session, found, shard, end) for found in result.batches):
            return 0  # the session is full, and has said where it stopped
        session.lag[shard] = min(result.positions[0], end)
        if session.lag[shard] == at:
            return 0
        if result.batches:
            course.time_us = result.batches[-1].records.last_time
        return 1 + sum(found.records.size for found in result.batches)

    def _read(self, session: Session, shard: int, at: int, course: Course) -> ReadResult | None:
        """From the log, or what it has no more from the cold tier."""
        assert course.reader is not None
        start = self._log.shards[shard].start
        if self.cold is not None and at < start:
            return self.cold.read(session, shard, at, course.filters, start)
        return course.reader.read_shard(shard, at, _SLICE_RECORDS, _SLICE_BYTES)

    def lose(self, session: Session, shard: int, first: int, stop: int) -> None:
        """A session asked for offsets that can't be read any more."""
        if first < stop:
            session.counters.lost += stop - first
            self.lost += stop - first
            event(_log, "lost", WARNING, client=session.client_id, shard=shard, first=first, stop=stop)

    def _hand_on(self, delivery: Delivery, session: Session, found: Found, shard: int, end: int) -> bool:
        """Give a session rows that all go to it in one way; False when it could not take all, and has noted where."""
        records = found.records
        piece = Piece(records, found.rows, found.start, found.stop, delivery)
        if records.end_offset > end:  # a batch may go on where live subscribers are handed it later
            numbers = found.row_numbers()
            piece.stop = piece.start + bisect_left(numbers, end, key=records.offset)
        session.lag.pop(shard, None)  # so that the session takes them; it sets it again where it stops
        if piece.start < piece.stop:
            self._delivering.push(piece, shard, self._delivering.now_us())
        return shard not in session.lag

    def _hand_over(self, session: Session, found: Found, shard: int, end: int) -> bool:
        """So where the filters that match make a difference."""
        records, first, stop = found.records, found.start, found.stop
        if found.rows is not None:
            records = gather([(records, found.rows[4 * first : 4 * stop])], True)
            first, stop = 0, records.count
        if records.end_offset > end:
            stop = bisect_left(range(stop), end, first, key=records.offset)
        parts = self._delivering.split(records, first, stop)
        now = self._delivering.now_us()
        session.lag.pop(shard, None)
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
