"""A count over all sessions, a slice at a time so that a million of them do not hold up the event loop."""

import asyncio
import heapq
from collections.abc import Generator
from dataclasses import dataclass

from everlog.broker.broker import Broker
from everlog.sessions import Session

SLICE = 1000  # sessions between two turns of the event loop
MOST_BEHIND = 10  # sessions that are named


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


async def take_survey(broker: Broker) -> Survey:
    """Count, letting others run between slices."""
    steps = survey_in_steps(broker)
    try:
        while True:
            next(steps)
            await asyncio.sleep(0)
    except StopIteration as done:
        result: Survey = done.value
        return result


def survey_in_steps(broker: Broker) -> Generator[None, None, Survey]:
    """The count as a generator that pauses after each slice and returns the survey."""
    metrics = broker.metrics
    sessions = list(broker.clients.sessions.values())
    # Taken together with the list: a session that ends from here on is counted once, as one of the list.
    found = Survey(
        sessions=len(sessions),
        connected=len(broker.clients.connections),
        sent=metrics.sent_to_ended,
        dropped=metrics.dropped_of_ended,
        expired=metrics.expired_of_ended,
    )
    committed = [shard.committed for shard in broker.log.shards]
    behind: list[tuple[int, str]] = []
    for start in range(0, len(sessions), SLICE):
        for session in sessions[start : start + SLICE]:
            _add(found, session)
            lag = lag_of(session, committed)
            if lag:
                found.behind += 1
                heapq.heappush(behind, (lag, session.client_id))
                if len(behind) > MOST_BEHIND:
                    heapq.heappop(behind)
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
