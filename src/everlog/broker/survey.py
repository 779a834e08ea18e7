"""A count over all sessions, a slice at a time so that a million of them do not hold up the event loop."""

import asyncio
import heapq
import struct
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass

from everlog.broker.broker import Broker
from everlog.sessions import Session, unpack_session

SLICE = 200  # sessions between two turns of the event loop: less than a millisecond
MOST_BEHIND = 10  # sessions that are named
_REST = 20  # a survey stands for so many times as long as it took, so counting takes 5 % of a core at most
_OFFSET = struct.Struct("<q")


@dataclass(slots=True)
class Survey:
    """All sessions in numbers; `sent`, `dropped` and `expired` also have those that ended, so they only grow."""

    sessions: int = 0
    durable: int = 0
    connected: int = 0
    subscriptions: int = 0
    shared_subscriptions: int = 0
    inflight: int = 0
    queued_bytes: int = 0
    behind: int = 0
    max_lag: int = 0
    sent: int = 0
    dropped: int = 0
    expired: int = 0
    most_behind: tuple[tuple[int, str], ...] = ()  # (lag, client id), the most behind first


class Surveyor:
    """Takes surveys of one broker for one user; with very many sessions not each time that it is asked."""

    def __init__(self, broker: Broker, clock: Callable[[], float] = time.perf_counter) -> None:
        self._broker = broker
        self._clock = clock
        self._last = Survey()
        self._good_until = 0.0

    async def take(self) -> Survey:
        """Count, letting others run between slices, or the last survey if it has to stand for longer."""
        if self._clock() < self._good_until:
            return self._last
        took_s = 0.0
        steps = survey_in_steps(self._broker)
        while True:
            began = self._clock()
            try:
                next(steps)
            except StopIteration as done:
                took_s += self._clock() - began
                self._last = done.value
                self._good_until = self._clock() + _REST * took_s
                return self._last
            took_s += self._clock() - began
            await asyncio.sleep(0)


def survey_in_steps(broker: Broker) -> Generator[None, None, Survey]:
    """The count as a generator that pauses after each slice and returns the survey."""
    metrics, clients = broker.metrics, broker.clients
    # All taken together: a session that ends, sleeps or wakes from here on is counted once, as what it was.
    sessions, asleep = list(clients.sessions.values()), list(clients.asleep.items())
    found = Survey(
        sessions=len(sessions) + len(asleep),
        durable=len(asleep),
        connected=len(clients.connections),
        sent=metrics.sent_to_ended,
        dropped=metrics.dropped_of_ended,
        expired=metrics.expired_of_ended,
    )
    committed = [shard.committed for shard in broker.log.shards]
    behind: list[tuple[int, str]] = []
    for start in range(0, len(sessions), SLICE):
        for session in sessions[start : start + SLICE]:
            _add(found, session)
            _note(found, behind, lag_of(session, committed), session.client_id)
        yield
    for start in range(0, len(asleep), SLICE):
        for client_id, packed in asleep[start : start + SLICE]:
            _note(found, behind, _add_asleep(found, packed, committed), client_id)
        yield
    found.most_behind = tuple(sorted(behind, reverse=True))
    found.max_lag = found.most_behind[0][0] if behind else 0
    return found


def lag_of(session: Session, committed: list[int]) -> int:
    """How many committed messages lie between where the session is and the end, whether or not they match it."""
    return sum(max(0, committed[shard] - offset) for shard, offset in session.lag.items())


def _add(found: Survey, session: Session) -> None:
    counters = session.counters
    found.durable += session.durable
    found.subscriptions += len(session.subscriptions)
    found.shared_subscriptions += sum(text.startswith("$share/") for text in session.subscriptions)
    found.inflight += session.inflight
    found.queued_bytes += session.queued_bytes
    found.sent += counters.sent
    found.dropped += counters.dropped
    found.expired += counters.expired


def _add_asleep(found: Survey, packed: bytes, committed: list[int]) -> int:
    """A session that is one byte string: what it has, and its lag."""
    stored = unpack_session(packed)
    found.subscriptions += len(stored.subscriptions)
    shared = sum(one.filter.startswith("$share/") for one in stored.subscriptions)
    found.shared_subscriptions += shared
    if shared == len(stored.subscriptions):
        return 0  # what its groups have before them is theirs
    offsets = (offset for (offset,) in _OFFSET.iter_unpack(stored.cursor.positions))
    return sum(max(0, end - offset) for end, offset in zip(committed, offsets, strict=False) if offset >= 0)


def _note(found: Survey, behind: list[tuple[int, str]], lag: int, client_id: str) -> None:
    """Keep the sessions most behind, in a heap with the least of them first."""
    if lag:
        found.behind += 1
        heapq.heappush(behind, (lag, client_id))
        if len(behind) > MOST_BEHIND:
            heapq.heappop(behind)
