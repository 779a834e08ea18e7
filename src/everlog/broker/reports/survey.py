"""A count over all sessions, a slice at a time so that a million of them do not hold up the event loop."""

import heapq
import struct
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass

from everlog.broker.delivery import Log
from everlog.broker.metrics import Metrics
from everlog.broker.registry import Registry
from everlog.broker.reports.slices import run_in_slices
from everlog.sessions import SHARED_PREFIX, Session, unpack_session

MOST_BEHIND = 10  # sessions reported by name
_SLICE_SUBSCRIPTIONS = 5_000  # between two turns of the event loop: about a millisecond
_REST = 20  # a survey is used for so many times as long as it took, so that counting takes at most 5 % of a core
_OFFSET = struct.Struct("<q")


@dataclass(slots=True)
class Survey:
    """All sessions in numbers; `sent`, `dropped` and `expired` include sessions that have ended, so they only grow."""

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
    """The source of surveys; with very many sessions it repeats the last one for a while."""

    def __init__(
        self, registry: Registry, metrics: Metrics, log: Log, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._registry = registry
        self._metrics = metrics
        self._log = log
        self._clock = clock
        self._last = Survey()
        self._good_until = 0.0

    async def take(self) -> Survey:
        """Count, letting others run between slices, or return the last survey if it is recent enough."""
        if self._clock() >= self._good_until:
            self._last, took_s = await run_in_slices(self.steps(), self._clock)
            self._good_until = self._clock() + _REST * took_s
        return self._last

    def steps(self) -> Generator[None, None, Survey]:
        """Count as a generator that pauses after each slice and returns the survey."""
        metrics = self._metrics
        found = Survey(
            connected=len(self._registry.clients),
            sent=metrics.sent_to_ended,
            dropped=metrics.dropped_of_ended,
            expired=metrics.expired_of_ended,
        )
        committed = [shard.committed for shard in self._log.shards]
        behind: list[tuple[int, str]] = []
        for awake, asleep in self._registry.walk():
            found.sessions += len(awake) + len(asleep)
            found.durable += len(asleep)
            seen = found.subscriptions
            for session in awake:
                _add(found, session)
                _note(found, behind, lag_of(session, committed), session.client_id)
                if found.subscriptions - seen > _SLICE_SUBSCRIPTIONS:
                    seen = found.subscriptions
                    yield
            for client_id, packed in asleep:
                _note(found, behind, _add_asleep(found, packed, committed), client_id)
                if found.subscriptions - seen > _SLICE_SUBSCRIPTIONS:
                    seen = found.subscriptions
                    yield
            yield
        found.most_behind = tuple(sorted(behind, reverse=True))
        found.max_lag = found.most_behind[0][0] if behind else 0
        return found


def lag_of(session: Session, committed: list[int]) -> int:
    """Return how many committed messages lie between where the session is and the end, whether or not they match it."""
    return sum(max(0, committed[shard] - offset) for shard, offset in session.lag.items())


def _add(found: Survey, session: Session) -> None:
    counters = session.counters
    found.durable += session.durable
    found.subscriptions += len(session.subscriptions)
    found.shared_subscriptions += sum(text.startswith(SHARED_PREFIX) for text in session.subscriptions)
    found.inflight += session.inflight
    found.queued_bytes += session.queued_bytes
    found.sent += counters.sent
    found.dropped += counters.dropped
    found.expired += counters.expired


def _add_asleep(found: Survey, packed: bytes, committed: list[int]) -> int:
    """Count a session that is one byte string; return its lag."""
    stored = unpack_session(packed)
    found.subscriptions += len(stored.subscriptions)
    shared = sum(one.filter.startswith(SHARED_PREFIX) for one in stored.subscriptions)
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
