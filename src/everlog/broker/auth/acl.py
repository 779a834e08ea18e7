"""Who may publish, subscribe to and replay what: deny beats allow, and what no rule allows is not allowed.

`Acl.access(user, client_id)` resolves the rules for a client once, so that its connection asks a short list of
filters. A subscription that overlaps a denied filter is refused as a whole, and given up as a whole when a reload
denies some of it: so all that its filter matches may be read. `may_receive` is for messages that were taken off
already, such as those under way. Immutable; a reload makes another.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from everlog.base import PeerError
from everlog.broker.auth.acl_rules import READ, REPLAY, WRITE, Rule
from everlog.topics import Filter, covers, matches, overlap, parse_filter

ACCESS_CACHE = 4096  # clients whose resolved rules are cached; the least recently used goes first


@dataclass(frozen=True, slots=True)
class Access:
    """The rights of one client."""

    read: tuple[Filter, ...]
    write: tuple[Filter, ...]
    deny_read: tuple[Filter, ...] = ()
    deny_write: tuple[Filter, ...] = ()
    replay: tuple[Filter, ...] | None = None  # None: whatever it may read
    deny_replay: tuple[Filter, ...] = ()
    unlimited: bool = False

    def may_publish(self, topic: str) -> bool:
        """Return whether a message or a will may be published to this valid topic name."""
        if self.unlimited:
            return True
        if any(matches(flt, topic) for flt in self.deny_write):
            return False
        return any(matches(flt, topic) for flt in self.write)

    def may_receive(self, topic: str) -> bool:
        """Return whether a message of this valid topic name may be sent to the client."""
        if self.unlimited:
            return True
        if any(matches(flt, topic) for flt in self.deny_read):
            return False
        return any(matches(flt, topic) for flt in self.read)

    def may_subscribe(self, filter_text: str) -> bool:
        """Return whether an allowed filter covers this one and no denied one overlaps it; a share name is ignored."""
        if self.unlimited:
            return True
        try:
            asked = parse_filter(filter_text)
        except PeerError:
            return False
        if any(overlap(flt, asked) for flt in self.deny_read):
            return False
        return any(covers(flt, asked) for flt in self.read)

    def may_replay(self, filter_text: str) -> bool:
        """Return whether the history of this filter, which the client may subscribe to, is allowed."""
        if self.unlimited:
            return True
        asked = parse_filter(filter_text)
        if any(overlap(flt, asked) for flt in self.deny_replay):
            return False
        return self.replay is None or any(covers(flt, asked) for flt in self.replay)


EVERYTHING = Access((), (), unlimited=True)
INNER_USER = "\0everlog"  # parts of this process; no client can have this name, as MQTT allows no U+0000


class Acl:
    """The rules of one file; with None instead of rules everything is allowed."""

    def __init__(self, rules: Iterable[Rule] | None) -> None:
        self.rules = None if rules is None else tuple(rules)
        self._names_replay = any(rule.action & REPLAY and not rule.is_deny for rule in self.rules or ())
        self.access = lru_cache(ACCESS_CACHE)(self._access)  # (user, client_id) -> Access

    def may_publish(self, user: str | None, client_id: str, topic: str) -> bool:
        """Return whether this client may publish to the topic."""
        return self.access(user, client_id).may_publish(topic)

    def may_subscribe(self, user: str | None, client_id: str, filter_text: str) -> bool:
        """Return whether this client may subscribe to the filter."""
        return self.access(user, client_id).may_subscribe(filter_text)

    def may_replay(self, user: str | None, client_id: str, filter_text: str) -> bool:
        """Return whether this client, which may subscribe to the filter, may replay its history."""
        return self.access(user, client_id).may_replay(filter_text)

    def _access(self, user: str | None, client_id: str) -> Access:
        if self.rules is None or user == INNER_USER:
            return EVERYTHING
        allowed: dict[int, list[Filter]] = {READ: [], WRITE: [], REPLAY: []}
        denied: dict[int, list[Filter]] = {READ: [], WRITE: [], REPLAY: []}
        closed = 0
        for rule in self.rules:
            if not rule.is_for(user, client_id):
                continue
            flt = rule.filter_for(user, client_id)
            if flt is None:
                closed |= rule.action if rule.is_deny else 0  # it is unknown what the rule would deny: deny all
                continue
            for action in (READ, WRITE, REPLAY):
                if rule.action & action:
                    (denied if rule.is_deny else allowed)[action].append(flt)
        return Access(
            read=() if closed & READ else tuple(allowed[READ]),
            write=() if closed & WRITE else tuple(allowed[WRITE]),
            deny_read=tuple(denied[READ]),
            deny_write=tuple(denied[WRITE]),
            replay=() if closed & REPLAY else tuple(allowed[REPLAY]) if self._names_replay else None,
            deny_replay=tuple(denied[REPLAY]),
        )
