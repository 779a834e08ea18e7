"""How a session that is behind reads each shard: by the filters that have begun where it is, up to the next beginning.

A replay of a narrow filter thus costs what it selects, whatever else the session is subscribed to from now on.
"""

from dataclasses import dataclass, field

from msgspec.structs import replace

from everlog.broker.delivery.overlaps import merge
from everlog.broker.delivery.ports import Log
from everlog.mqtt import TELL_PUBLISHER
from everlog.sessions import SHARED_PREFIX, MergedSubscription, Session
from everlog.store import Reader
from everlog.topics import Filter, known_filter

NO_BOUND = 1 << 63
_MAX_BOUNDS = 8  # with more beginnings ahead all filters are read at once: rows that are too early are left out later


@dataclass(slots=True)
class ReadPlan:
    """A reader that is right below `bound`; None if nothing is wanted there. `time_us` is where it has come to.

    `merged` is how all that it reads goes to the session, where that is the same whichever of the filters match.
    """

    reader: Reader | None
    bound: int
    filters: tuple[Filter, ...]
    merged: MergedSubscription | None = None
    publishers: bool = False  # what it reads says who has published it
    time_us: int = 0


@dataclass(slots=True)
class _Plans:
    """One session's plans by shard, and the readers they share."""

    by_shard: dict[int, ReadPlan] = field(default_factory=dict)
    readers: dict[tuple[str, ...], tuple[Reader, tuple[Filter, ...]]] = field(default_factory=dict)


class ReadPlans:
    """The plans of sessions that are behind, kept while they are and while their subscriptions stay the same."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._plans: dict[Session, _Plans] = {}

    def __len__(self) -> int:
        return len(self._plans)

    def forget(self, session: Session) -> None:
        """Let go of a session's plans: its subscriptions have changed, or it is behind no more."""
        self._plans.pop(session, None)

    def furthest_back(self, session: Session) -> int:
        """Return the shard to read on in, so that several shards come about in the order of time."""
        if len(session.lag) == 1:
            return next(iter(session.lag))
        plans = self._plans.get(session)
        by_shard = plans.by_shard if plans is not None else {}
        shards = [shard for shard, at in session.lag.items() if session.reads_up_to(shard, at + 1) > at]
        return min(shards, key=lambda shard: by_shard[shard].time_us if shard in by_shard else 0)

    def plan(self, session: Session, shard: int, at: int) -> ReadPlan:
        """Return how to read a shard at an offset."""
        plans = self._plans.setdefault(session, _Plans())
        plan = plans.by_shard.get(shard)
        if plan is None or at >= plan.bound:
            texts, bound = _begun(session, shard, at)
            names = any(session.subscriptions[text].tells & TELL_PUBLISHER for text in texts)
            reader, filters = self._reader(plans, texts, names) if texts else (None, ())
            come_to = plan.time_us if plan is not None else 0
            merged = _alike(session, texts, shard, at)
            plan = plans.by_shard[shard] = ReadPlan(reader, bound, filters, merged, names, come_to)
        return plan

    def _reader(self, plans: _Plans, texts: tuple[str, ...], names: bool) -> tuple[Reader, tuple[Filter, ...]]:
        known = plans.readers.get(texts)
        if known is None:
            filters = tuple(map(known_filter, texts))
            known = plans.readers[texts] = (self._log.reader(filters, publishers=names), filters)
        return known


def _begun(session: Session, shard: int, at: int) -> tuple[tuple[str, ...], int]:
    """Return the filters that count at an offset, and the offset from which on others count too."""
    begins = {
        text: one.since[shard] if one.since else 0
        for text, one in session.subscriptions.items()
        if not text.startswith(SHARED_PREFIX)
    }
    ahead = {begin for begin in begins.values() if begin > at}
    if len(ahead) > _MAX_BOUNDS:
        return tuple(begins), NO_BOUND
    return tuple(text for text, begin in begins.items() if begin <= at), min(ahead, default=NO_BOUND)


def _alike(session: Session, texts: tuple[str, ...], shard: int, at: int) -> MergedSubscription | None:
    """Return the one way in which messages of these filters go to the session; None if there are several."""
    chosen = [session.subscriptions[text] for text in texts]
    if any(one.since and one.since[shard] > at for one in chosen):
        return None
    ways = {(one.qos, one.no_local, one.retain_as_published, one.identifier, one.tells) for one in chosen}
    if len(ways) != 1 or (len(chosen) > 1 and chosen[0].identifier):
        return None
    return merge(session, [replace(chosen[0], filter="", retain_handling=0, since=())])
