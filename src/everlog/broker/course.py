"""How a session that is behind reads each shard: by the filters that have begun where it is, up to the next beginning.

A replay of a narrow filter thus costs what it selects, whatever else the session is subscribed to from now on.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from everlog.broker.audience import deliver
from everlog.broker.ports import Log
from everlog.sessions import Delivery, Session
from everlog.store import Reader
from everlog.topics import Filter, parse_filter

NO_BOUND = 1 << 63
_MAX_BOUNDS = 8  # with more beginnings ahead all filters are read at once: rows that are too early are left out later


@dataclass(slots=True)
class Course:
    """A reader that is right below `bound`; None if nothing is wanted there. `time_us` is where it has come to.

    `delivery` is how all that it reads goes to the session, where that is the same whichever of the filters match.
    """

    reader: Reader | None
    bound: int
    filters: tuple[Filter, ...]
    delivery: Delivery | None = None
    time_us: int = 0


@dataclass(slots=True)
class _Way:
    """One session's courses by shard, and the readers they share."""

    courses: dict[int, Course] = field(default_factory=dict)
    readers: dict[tuple[str, ...], tuple[Reader, tuple[Filter, ...]]] = field(default_factory=dict)


class Courses:
    """The courses of sessions that are behind, kept while they are and while their subscriptions stay the same."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._ways: dict[Session, _Way] = {}

    def __len__(self) -> int:
        return len(self._ways)

    def forget(self, session: Session) -> None:
        """Its subscriptions have changed, or it is behind no more."""
        self._ways.pop(session, None)

    def furthest_back(self, session: Session) -> int:
        """The shard to read on in: so several shards come about in the order of time."""
        if len(session.lag) == 1:
            return next(iter(session.lag))
        way = self._ways.get(session)
        courses = way.courses if way is not None else {}
        return min(session.lag, key=lambda shard: courses[shard].time_us if shard in courses else 0)

    def course(self, session: Session, shard: int, at: int) -> Course:
        """How to read a shard at an offset."""
        way = self._ways.setdefault(session, _Way())
        course = way.courses.get(shard)
        if course is None or at >= course.bound:
            texts, bound = _wanted(session, shard, at)
            reader, filters = self._reader(way, texts) if texts else (None, ())
            come_to = course.time_us if course is not None else 0
            course = way.courses[shard] = Course(reader, bound, filters, _alike(session, texts, shard, at), come_to)
        return course

    def _reader(self, way: _Way, texts: tuple[str, ...]) -> tuple[Reader, tuple[Filter, ...]]:
        known = way.readers.get(texts)
        if known is None:
            filters = tuple(map(parse_filter, texts))
            known = way.readers[texts] = (self._log.reader(filters), filters)
        return known


def _wanted(session: Session, shard: int, at: int) -> tuple[tuple[str, ...], int]:
    """The filters that count at an offset, and the offset from which on others count too."""
    begins = {
        text: one.since[shard] if one.since else 0
        for text, one in session.subscriptions.items()
        if not text.startswith("$share/")
    }
    ahead = _ahead(begins.values(), at)
    if len(ahead) > _MAX_BOUNDS:
        return tuple(begins), NO_BOUND
    return tuple(text for text, begin in begins.items() if begin <= at), min(ahead, default=NO_BOUND)


def _alike(session: Session, texts: tuple[str, ...], shard: int, at: int) -> Delivery | None:
    """The one way in which messages of these filters go to the session from an offset on; None if there are several."""
    chosen = [session.subscriptions[text] for text in texts]
    if any(one.since and one.since[shard] > at for one in chosen):
        return None
    ways = {replace(one, filter="", retain_handling=0, since=()) for one in chosen}
    if len(ways) != 1 or (len(chosen) > 1 and chosen[0].identifier):
        return None
    return deliver(session, list(ways))


def _ahead(begins: Iterable[int], at: int) -> set[int]:
    return {begin for begin in begins if begin > at}
