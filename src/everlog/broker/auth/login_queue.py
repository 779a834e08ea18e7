"""Whose password is checked next: a bounded queue that goes round by address, and in an address by user name.

A check is slow on purpose, so whoever sends many wrong passwords makes others wait. There are two lanes, which take
turns: for names that have logged in from their address before, and for everybody else. Each goes round its addresses
(of IPv6, the first 64 bits), so that many attempts from one place hold up that place alone. A lane that is full gives
up the newest attempt of whoever has most in it. Pure; one thread owns it.
"""

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from typing import Generic, TypeVar

REMEMBERED = 16_384  # names with their addresses that have logged in; the least recently used goes first
_IPV6_SITE_BITS = 64

T = TypeVar("T", bound=Hashable)


def source_of(peer: str) -> str:
    """Return what counts as one place for a peer `address:port`: the address, of IPv6 the first 64 bits."""
    host = peer.rpartition(":")[0]
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return peer  # a Unix socket: all of its peers are one place
    if not isinstance(address, IPv6Address):
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return f"{int(address) >> _IPV6_SITE_BITS:x}/{_IPV6_SITE_BITS}"


class KnownLogins:
    """The names that have logged in, each with the place that it did so from."""

    def __init__(self, most: int = REMEMBERED) -> None:
        self._most = most
        self._known: OrderedDict[tuple[str, str], None] = OrderedDict()

    def __contains__(self, login: tuple[str, str]) -> bool:
        return login in self._known

    def add(self, source: str, name: str) -> None:
        """Note that a name has logged in from a place."""
        self._known[source, name] = None
        self._known.move_to_end((source, name))
        if len(self._known) > self._most:
            self._known.popitem(last=False)


@dataclass(frozen=True, slots=True)
class Attempt(Generic[T]):
    """A login that waits: whose it is, from where, by which name, and the memory that it holds."""

    client: T
    source: str
    name: str
    size_bytes: int


class _Source(Generic[T]):
    """The attempts from one place, by name; the names take turns."""

    __slots__ = ("by_name", "count", "size_bytes")

    def __init__(self) -> None:
        self.by_name: OrderedDict[str, OrderedDict[T, Attempt[T]]] = OrderedDict()
        self.count = self.size_bytes = 0

    def add(self, one: Attempt[T]) -> None:
        self.by_name.setdefault(one.name, OrderedDict())[one.client] = one
        self.count += 1
        self.size_bytes += one.size_bytes

    def remove(self, one: Attempt[T]) -> None:
        of_name = self.by_name[one.name]
        del of_name[one.client]
        if not of_name:
            del self.by_name[one.name]
        self.count -= 1
        self.size_bytes -= one.size_bytes

    def take(self) -> Attempt[T]:
        """Remove and return the oldest attempt of the name whose turn it is."""
        name, of_name = next(iter(self.by_name.items()))
        self.by_name.move_to_end(name)
        one = next(iter(of_name.values()))
        self.remove(one)
        return one

    def newest_of_most(self) -> Attempt[T]:
        """Return the newest attempt of the name that has most."""
        most = max(reversed(self.by_name.values()), key=len)  # of equals, who came last
        return next(reversed(most.values()))


class _Lane(Generic[T]):
    """The attempts of one lane, by source; the sources take turns."""

    def __init__(self) -> None:
        self._sources: OrderedDict[str, _Source[T]] = OrderedDict()
        self.count = self.size_bytes = 0

    def add(self, one: Attempt[T]) -> None:
        source = self._sources.get(one.source)
        if source is None:
            source = self._sources[one.source] = _Source()
        source.add(one)
        self.count += 1
        self.size_bytes += one.size_bytes

    def remove(self, one: Attempt[T]) -> None:
        self._sources[one.source].remove(one)
        self._gone(one)

    def take(self) -> Attempt[T]:
        """Remove and return the next attempt of the source whose turn it is."""
        text, source = next(iter(self._sources.items()))
        self._sources.move_to_end(text)
        one = source.take()
        self._gone(one)
        return one

    def newest_of_most(self, by_bytes: bool) -> Attempt[T]:
        """Return the newest attempt of the source that has most, in number or in bytes."""
        sources = reversed(self._sources.values())  # of equals, who came last
        return max(sources, key=lambda one: one.size_bytes if by_bytes else one.count).newest_of_most()

    def _gone(self, one: Attempt[T]) -> None:
        self.count -= 1
        self.size_bytes -= one.size_bytes
        if not self._sources[one.source].count:
            del self._sources[one.source]


class LoginQueue(Generic[T]):
    """The logins that wait for their check; each lane holds at most so many, of at most so many bytes together."""

    def __init__(self, max_waiting: int, max_bytes: int) -> None:
        self._max_waiting = max_waiting
        self._max_bytes = max_bytes
        self._known: _Lane[T] = _Lane()
        self._others: _Lane[T] = _Lane()
        self._waiting: dict[T, tuple[_Lane[T], Attempt[T]]] = {}
        self._turn_of_others = False

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, client: T) -> bool:
        return client in self._waiting

    def add(self, one: Attempt[T], known: bool) -> list[T]:
        """Let an attempt wait; return the clients that must be refused for it, which may be its own."""
        lane = self._known if known else self._others
        lane.add(one)
        self._waiting[one.client] = lane, one
        refused: list[T] = []
        while lane.count > self._max_waiting or lane.size_bytes > self._max_bytes:
            victim = lane.newest_of_most(by_bytes=lane.size_bytes > self._max_bytes)
            self.remove(victim.client)
            refused.append(victim.client)
        return refused

    def remove(self, client: T) -> None:
        """Forget the attempt of a client that is gone or refused, if it waits."""
        found = self._waiting.pop(client, None)
        if found is not None:
            lane, one = found
            lane.remove(one)

    def take(self) -> Attempt[T] | None:
        """Remove and return the attempt whose turn it is, or None if nobody waits."""
        lane = self._others if self._turn_of_others else self._known
        if not lane.count:
            lane = self._known if self._turn_of_others else self._others
        if not lane.count:
            return None
        self._turn_of_others = lane is self._known
        one = lane.take()
        del self._waiting[one.client]
        return one
