"""The plain filters of a long SUBSCRIBE, granted a run at a time.

Plain is a filter that nothing but its own text decides on: no rules, no history, no group, and new to the session. What
is not plain is left to `Subscriptions`, which knows every rule and its reason code.
"""

import cython

from everlog.broker.auth import Security
from everlog.broker.limits import Limits
from everlog.broker.metrics import Metrics
from everlog.broker.registry.write_behind import WriteBehind
from everlog.sessions import Subscribed
from everlog.topics import Filter

if not cython.compiled:
    from everlog.base.memory import part, pointer
    from everlog.broker.delivery import RetainedColumns, Router
    from everlog.sessions import Session, SessionMemory, filter_bytes
    from everlog.topics import TokenWalk

_EVERYTHING = 2
_RUN = 64  # filters without wildcards, granted in well below a tenth of a millisecond
_WILD = 8  # of them, what a filter with wildcards counts as: all topics that it matches become unknown


class FilterRuns:
    """Grants runs of plain filters; used by `Subscriptions`."""

    def __init__(
        self,
        router: Router,
        memory: SessionMemory,
        security: Security,
        limits: Limits,
        metrics: Metrics,
        write_behind: WriteBehind | None,
    ) -> None:
        self._router = router
        self._memory = memory
        self._security = security
        self._metrics = metrics
        self._write_behind = write_behind
        self._max_bytes = limits.topic_bytes
        self._max_levels = limits.topic_levels
        self._max_qos = limits.qos
        self._max_filters = limits.subscriptions_per_client
        self._durable_wildcard = limits.durable_wildcard

    def grant(self, session: Session, data: bytes, at: int, identifier: int, reasons: bytearray) -> int:
        """Grant plain filters of a SUBSCRIBE's checked list from `at` on, and append their reason codes; return where
        that ended: after a run, at the end of `data`, or at a filter that is not plain."""
        if self._security.acl.rules is not None or session.mount or session.is_bridge:
            return at
        self._memory.total_bytes += session.take_growth()
        exact: list[Filter] = []
        ones: list[Subscribed] = []
        others: list[tuple[Filter, Subscribed]] = []
        try:
            return self._take(session, data, at, identifier, reasons, exact, ones, others)
        finally:
            self._memory.total_bytes += session.take_growth()
            self._metrics.subscribes += len(ones) + len(others)
            if session.kept:
                self._keep(session, exact, others)
            if exact:  # the last of them by the router, which tells all others who follow
                others.append((exact.pop(), ones.pop()))
                self._router.audiences.subscribe_exact(session, exact, ones)
            for flt, one in others:
                self._router.subscribe(session, flt, one)

    def _take(
        self,
        session: Session,
        data: bytes,
        at: int,
        identifier: int,
        reasons: bytearray,
        exact: list[Filter],
        ones: list[Subscribed],
        others: list[tuple[Filter, Subscribed]],
    ) -> int:
        """Give a session plain filters, until it has a run; return where that ended."""
        source = pointer(data)
        end = len(data)
        kept = session.kept
        subscriptions = session.subscriptions
        retained = self._router.retained.columns
        since = self._router.ends()
        room = self._memory.max_bytes - self._memory.max_bytes // 8 - self._memory.total_bytes
        work = 0
        while at < end and work < _RUN:
            begin = at + 2
            stop = begin + (source[at] << 8 | source[at + 1])
            wild = self._look_at(data, begin, stop)
            if wild < 0 or len(subscriptions) >= self._max_filters:
                break
            if wild == _EVERYTHING and kept and not self._durable_wildcard:
                break
            text = data[begin:stop].decode()
            size = filter_bytes(text, kept)
            room -= size
            if room < 0 or text in subscriptions:
                break
            options = source[stop]
            if retained.live > 0 and self._may_be_retained(retained, part(source, begin, stop), wild):
                break
            qos = min(options & 3, self._max_qos)
            no_local = (options & 4) != 0
            one = Subscribed(text, qos, no_local, (options & 8) != 0, options >> 4, identifier, since)
            session.add(text, one, size, no_local)
            if wild:
                others.append((Filter(text, text, None, False), one))
                work += _WILD
            else:
                exact.append(Filter(text, text, None, True))
                ones.append(one)
                work += 1
            reasons.append(qos)
            at = stop + 1
        return at

    def _may_be_retained(self, retained: RetainedColumns, pattern: bytes, wild: int) -> bool:
        """Return whether a filter may match a retained topic."""
        if wild:
            walk = TokenWalk(pattern)
            retained.index.postings.begin(walk, 0)
            return not walk.is_over
        return retained.number_of(pattern) >= 0

    def _look_at(self, data: bytes, begin: int, stop: int) -> int:
        """Return 1 if a filter has wildcards, EVERYTHING if nothing else is in it, 0 if it has none.

        Return -1 if it is not plain, or perhaps not valid.
        """
        source = pointer(data)
        if stop - begin > self._max_bytes or source[begin] == 0x24:  # "$"
            return -1
        levels = 1
        wild = 0
        everything = _EVERYTHING
        for place in range(begin, stop):
            byte = source[place]
            if byte == 0x2F:  # "/"
                levels += 1
            elif byte == 0x2B or byte == 0x23:  # "+", "#" [MQTT-4.7.1-1] [MQTT-4.7.1-2]
                if place > begin and source[place - 1] != 0x2F:
                    return -1
                if place + 1 < stop and (byte == 0x23 or source[place + 1] != 0x2F):
                    return -1
                wild = 1
            else:
                everything = 1
        return -1 if levels > self._max_levels else wild * everything

    def _keep(self, session: Session, exact: list[Filter], others: list[tuple[Filter, Subscribed]]) -> None:
        """Have what matches filters kept for a session that outlives its connection, and the filters stored."""
        for flt in [*exact, *(flt for flt, _ in others)]:
            self._router.kept.add(flt.text)
            if self._write_behind is not None:
                self._write_behind.mark_filter(session, flt.text)
