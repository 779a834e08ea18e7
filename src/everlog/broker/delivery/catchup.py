"""Sessions that are behind pull from the log, as far as they have room, until they have reached what is routed.

[MQTT-4.4.0-1] what was under way on the last connection goes first. Invariant: a session's `lag` for a shard goes in
the same step that finds it at `routed`, so nothing is missed and nothing comes twice. All of them together get a few
milliseconds of a turn of the event loop; who is not done stands in line for the next, so that neither a long history
nor many sessions hold up the others.
"""

import logging
import time
from collections.abc import Callable, Iterator
from logging import WARNING

from everlog.base import NOT_KEPT, EverlogError, unpack_position
from everlog.broker.delivery.cold_reader import ColdReader
from everlog.broker.delivery.fanout import Fanout
from everlog.broker.delivery.overlaps import Mine, in_order
from everlog.broker.delivery.ports import Log, Sink
from everlog.broker.delivery.read_plan import ReadPlan, ReadPlans
from everlog.broker.delivery.redelivery import send_again
from everlog.broker.delivery.retained_messages import RetainedMessages
from everlog.broker.delivery.shared_reads import SharedReads
from everlog.broker.events import event
from everlog.sessions import RELEASED, MergedSubscription, OutgoingRows, Session
from everlog.store import Found, ReadResult
from everlog.topics import parse_filter

_SLICE_BYTES = 256 << 10  # for one session that is behind, before the next one's turn
_SLICE_RECORDS = 8192
_TURN_BYTES = 1 << 20  # for all of them in one turn of the event loop
_TURN_S = 0.002
_log = logging.getLogger("everlog.broker")


class Catchup:
    """The sessions that are behind, and where each of them reads; owned by the event loop's thread."""

    def __init__(
        self,
        log: Log,
        fanout: Fanout,
        routed: list[int],
        soon: Callable[[Callable[[], None]], object],
        retained: RetainedMessages,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.lost = 0  # offsets that sessions asked for and that could not be read any more
        self.on_live: dict[Session, Callable[[], None]] = {}  # what to call once when a session has caught up
        self.cold: ColdReader | None = None
        self._routed = routed
        self._log = log
        self._fanout = fanout
        self._plans = ReadPlans(log)
        self._shared = SharedReads()
        self._soon = soon
        self._retained = retained
        self._clock = clock
        self._line: dict[Session, None] = {}
        self._failed: dict[Session, None] = {}  # could not be read for, and may have nothing under way to come back by
        self.losses: dict[str, list[tuple[int, int, int]]] | None = None  # client id -> what is lost since, if noted
        self._spent = 0  # bytes in this turn of the event loop
        self._until = 0.0
        self._turn_asked = False

    @property
    def read_s(self) -> float:
        """The CPU that reading the log for those who are behind took."""
        return self._shared.read_s

    def read_cold(self, cold: ColdReader) -> None:
        """Have a cold tier behind the log from now on."""
        self.cold = cold
        cold.arrived = self.pump

    def resume(self, session: Session) -> None:
        """Send a session that is back what is under way again, then what it missed."""
        session.begin_redelivery()
        if self.cold is not None and session.is_redelivering:
            self._look_for_cold(self.cold, session)
        self.pump(session)

    def _look_for_cold(self, cold: ColdReader, session: Session) -> None:
        """Look up what is under way and may be in the log no more."""
        places = [unpack_position(position) for _, state, position in session.pending() if state != RELEASED]
        starts = [shard.start for shard in self._log.shards]
        gone = [(shard, offset) for shard, offset in places if shard != NOT_KEPT and offset < starts[shard]]
        if gone:
            filters = (flt for flt in map(parse_filter, session.subscriptions) if flt.group is None)
            cold.find_again(session, gone, tuple(filters))

    def changed(self, session: Session) -> None:
        """Take note that a session has other subscriptions."""
        self._plans.forget(session)

    def forget(self, session: Session) -> None:
        """Let go of a session that has no connection any more."""
        self._plans.forget(session)
        self._line.pop(session, None)
        self._failed.pop(session, None)
        self.on_live.pop(session, None)
        if self.cold is not None:
            self.cold.forget(session)

    def pump(self, session: Session) -> None:
        """Hand over what waited for a session that has room again, first from memory, then from the log."""
        sink = self._fanout.sinks.get(session)
        if sink is None:
            return
        self._fanout.note_moved(session)
        if session.is_redelivering and not self._send_again(session, sink):
            return
        while self._drain(session, sink):
            pass
        if session in self._line:
            return
        if self._has_time():
            self._serve(session, sink)
        elif session.waiting or session in self.on_live:
            self._stand_in_line(session)

    def _send_again(self, session: Session, sink: Sink) -> bool:
        """Send what was under way; return whether all of it is sent."""
        if self.cold is not None and self.cold.is_looking(session):
            return False
        is_done = send_again(self._log, self._fanout, session, sink, self._retained, self.cold)
        if is_done and self.cold is not None:
            self.cold.forget_again(session)
        return is_done

    # Turns

    def _has_time(self) -> bool:
        """Return whether sessions that are behind may have more of this turn."""
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
            sink = self._fanout.sinks.get(session)
            if sink is None or session.is_redelivering:
                continue
            try:
                self._serve(session, sink)
            except EverlogError as error:
                self._failed[session] = None
                event(_log, "read_failed", WARNING, client=session.client_id, reason=error)
        if self._line:
            self._ask_for_turn()

    def retry(self) -> None:
        """Have those that could not be read for stand in line again; called once a second."""
        self._shared.age()
        failed, self._failed = self._failed, {}
        for session in failed:
            self._stand_in_line(session)
        if self.cold is not None:
            self.cold.retry()

    def _serve(self, session: Session, sink: Sink) -> None:
        """Give one slice; a session that could take more stands in line for it."""
        left = _SLICE_BYTES
        while session.ready and left > 0:
            if session.drains_next:
                taken = self._drain(session, sink) or not session.drains_next
            else:
                taken = self._feed(session, sink) or self._step(session)
            if not taken:
                break
            left -= taken
        if left < _SLICE_BYTES:
            self._spent += _SLICE_BYTES - left
            self._ask_for_turn()
        self._settle(session)
        if left <= 0 and session.ready and session.waiting:
            self._stand_in_line(session)

    def _drain(self, session: Session, sink: Sink) -> int:
        """Send what waits in memory and is next; return how many bytes."""
        data = session.drain(self._fanout.now_us())
        if data:
            sink.write(data)
        return len(data)

    def _feed(self, session: Session, sink: Sink) -> int:
        """Send some retained messages; return how many bytes, or what looking for them was worth."""
        data, worth = session.take_feed(self._fanout.now_us())
        if data:
            self._fanout.note_moved(session)
            sink.write(data)
        return worth

    # Reading on

    def _settle(self, session: Session) -> bool:
        """Turn a session that has reached what is routed live; return whether it is live in all shards."""
        if not session.reached(self._routed):  # nothing is routed before this returns: no gap, no repeat
            return False
        self._plans.forget(session)
        if self.cold is not None:
            self.cold.forget(session)
        if session in self.on_live:
            self.on_live.pop(session)()
        return True

    def _step(self, session: Session) -> int:
        """Read on in the shard where the session is furthest back in time; return how many bytes, 0 if it can't."""
        if self._settle(session):
            return 0
        shard = self._plans.furthest_back(session)
        at = session.lag[shard]
        plan = self._plans.plan(session, shard, at)
        end = min(plan.bound, self._routed[shard])
        end = min(end, session.reads_up_to(shard, end))
        if plan.reader is None:  # nothing that it subscribes to begins before `bound`
            session.read_on(shard, end)
            return 1
        result = self._read(session, shard, at, plan)
        if result is None:
            return 0  # it is asked for, and the session is pumped when it is here
        for lost in result.lost:
            self.lose(session, shard, lost.from_offset, min(lost.to_offset, end))
        for found in result.batches:
            stopped = self._pull(session, found, shard, end, plan.merged)
            if stopped >= 0:
                session.read_on(shard, stopped)
                return 0
        session.read_on(shard, min(result.positions[0], end))
        if session.lag[shard] == at:
            return 0
        if result.batches:
            plan.time_us = result.batches[-1].records.last_time
        return 1 + sum(found.records.size for found in result.batches)

    def _read(self, session: Session, shard: int, at: int, plan: ReadPlan) -> ReadResult | None:
        """Read from the log, or what it has no more from the cold tier."""
        assert plan.reader is not None
        start = self._log.shards[shard].start
        if self.cold is not None and at < start:
            return self.cold.read(session, shard, at, plan.filters, start)
        if at < start:  # what the log has dropped since it was read is not handed out either
            return plan.reader.read_shard(shard, at, _SLICE_RECORDS, _SLICE_BYTES)
        named = plan.publishers
        return self._shared.read(plan.reader, plan.filters, shard, at, _SLICE_RECORDS, _SLICE_BYTES, named)

    def lose(self, session: Session, shard: int, first: int, stop: int) -> None:
        """Count offsets that a session asked for and that can't be read any more."""
        if first < stop:
            session.count_lost(stop - first)
            self.lost += stop - first
            if self.losses is not None:
                self.losses.setdefault(session.client_id, []).append((shard, first, stop))
            event(_log, "lost", WARNING, client=session.client_id, shard=shard, first=first, stop=stop)

    def _pull(self, session: Session, found: Found, shard: int, end: int, merged: MergedSubscription | None) -> int:
        """Give a session what was found below `end`; return the offset at which it was full, -1 if it never was.

        `merged` is how all of it goes, or None where the filters that match make a difference.
        """
        out = OutgoingRows(found.records, found.rows, found.start, found.stop, merged or MergedSubscription(session, 0))
        out.cut_at(end)  # a batch may go on where live subscribers are handed it later
        if out.start == out.stop:
            return -1
        now = self._fanout.now_us()
        for part in (out,) if merged is not None else self._by_filters(session, out, shard):
            stopped = self._fanout.pull(part, shard, now)
            if stopped >= 0:
                return stopped
        return -1

    def _by_filters(self, session: Session, out: OutgoingRows, shard: int) -> Iterator[OutgoingRows]:
        """Yield rows by the subscriptions that match each of them."""
        out = out if out.rows is None else out.alone()
        records, audiences = out.records, self._fanout.audiences
        for parts in audiences.split(records, out.start, out.stop):
            mine: list[Mine] = [
                (merged, rows, start, stop)
                for number, rows, start, stop in parts
                if (merged := audiences.merged(number, session)) is not None
            ]
            if mine:
                yield from in_order(records, mine, shard)
