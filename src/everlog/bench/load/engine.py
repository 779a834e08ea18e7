"""The loop of a run: one thread, one epoll set, bounded in time.

A wake-up costs more than the packets of many brokers' small writes, so at full speed the loop naps before it reads
again: long enough for a worthwhile batch, short enough that no more than a quarter of the window comes back meanwhile.
"""

import contextlib
import select
import time
from collections.abc import Callable, Iterable, Sequence

from everlog.bench.load.link import CONTROL, GONE, WAITING, Link
from everlog.bench.load.load_client import Client, Shared, State
from everlog.bench.load.pacing import Pacing
from everlog.bench.load.posix import now_ns

_SECOND_NS = 1_000_000_000
_TURN_S = 0.02  # the longest wait, so that bounds are looked at
_NAP_LEAST_S = 50e-6
_NAP_BYTES = 64 << 10  # a round that read this much needs no nap
_READ = select.EPOLLIN | select.EPOLLRDHUP


class Trouble(Exception):
    """The reason why a run ends early: `status` is timeout, stalled, disconnected or error."""

    def __init__(self, status: str, message: str = "") -> None:
        super().__init__(message)
        self.status = status


class Engine:
    """The loop that serves the clients of one run. A `tolerant` one counts lost connections and goes on."""

    def __init__(self, shared: Shared, timeout_s: float, stall_s: float, tolerant: bool = False) -> None:
        self.shared = shared
        self.tally = shared.tally
        self.tolerant = tolerant
        self.disconnects = 0
        self.naps_s = 0.0  # the longest nap; 0 for none
        self.inflight_limit = 1.0  # unanswered messages that fill every window, for the length of a nap
        self.pacing: Pacing | None = None
        self.slow: Sequence[Client] = ()
        self._deadline_ns = now_ns() + int(timeout_s * _SECOND_NS)
        self._stall_ns = int(stall_s * _SECOND_NS)
        self._epoll = select.epoll()
        self._links: dict[int, Link] = {}
        self._clients: dict[int, Client] = {}
        self._changed = 0  # connections that came up or went
        self._nap_s = _NAP_LEAST_S
        self._bytes_before = self._acked_before = 0
        self._slow_ns = 0
        with contextlib.suppress(OSError), open("/proc/self/timerslack_ns", "w") as slack:
            slack.write("1000")

    # Connections

    def connect(self, clients: Sequence[Client], burst: int) -> None:
        """Open clients, at most `burst` at a time, until all are up."""
        queue = list(reversed(clients))
        pending: list[Client] = []
        while queue or pending:
            while queue and len(pending) < burst:
                client = queue.pop()
                self._add(client)
                pending.append(client)
            self._await_change()
            pending = [c for c in pending if c.state in (State.CONNECTING, State.SUBSCRIBING)]

    def _await_change(self) -> None:
        """Serve until a connection comes up or goes."""
        before = self._changed
        self.until(lambda: self._changed != before)

    def _add(self, client: Client) -> None:
        link = client.open()
        self._links[link.fd] = link
        self._clients[link.fd] = client
        self._epoll.register(link.fd, _READ)
        self.push((client,))

    def push(self, clients: Iterable[Client]) -> None:
        """Send what these clients may send."""
        for client in clients:
            if client.link is not None:
                told = client.link.write()
                if told or client.waiting:
                    self._attend(client, told)

    def drop(self, clients: Iterable[Client]) -> None:
        """Close connections without DISCONNECT."""
        for client in clients:
            if client.link is not None:
                self._forget(client)

    def leave(self, clients: Sequence[Client]) -> None:
        """Close connections with DISCONNECT; the broker has two seconds to close its side."""
        there = [client for client in clients if client.state is State.UP]
        for client in there:
            client.leave()
        self.push(there)
        until = now_ns() + 2 * _SECOND_NS
        while any(client.state is State.LEAVING for client in there) and now_ns() < until:
            self.turn()
        self.drop(clients)

    def _forget(self, client: Client) -> None:
        fd = client.link.fd
        self._epoll.unregister(fd)
        del self._links[fd], self._clients[fd]
        client.close()
        self._changed += 1

    def _attend(self, client: Client, told: int) -> None:
        """Do what a link could not do by itself."""
        if told & CONTROL:
            before = client.state
            client.hear()
            if client.trouble:
                raise Trouble("error", f"{client.name}: {client.trouble}")
            if client.state is not before:
                self._changed += 1
                told |= client.link.write()  # a SUBSCRIBE, or the first messages
        if told & GONE:
            left = client.state is State.LEAVING
            self._forget(client)
            if not left:
                self.disconnects += 1
                if not self.tolerant:
                    raise Trouble("disconnected", f"the broker closed the connection of {client.name}")
            return
        waiting = bool(told & WAITING)
        if waiting != client.waiting:
            client.waiting = waiting
            self._epoll.modify(client.link.fd, _READ | select.EPOLLOUT if waiting else _READ)

    # The loop

    def turn(self, wait_s: float = _TURN_S) -> None:
        """Wait for something to do, and do it."""
        links, clients = self._links, self._clients
        for fd, mask in self._ready(wait_s):
            link = links.get(fd)
            if link is None:
                continue
            told = link.serve(mask != select.EPOLLOUT)
            client = clients[fd]
            if told or client.waiting:
                self._attend(client, told)
        if self.slow:
            self._ack_slowly()
        if self.pacing is not None:
            self.push(self.pacing.advance(now_ns()))

    def _ready(self, wait_s: float) -> list[tuple[int, int]]:
        pacing = self.pacing
        if pacing is None or not pacing.scheduled:
            if self.naps_s:
                self._nap()
            return self._epoll.poll(wait_s, 1024)
        now = now_ns()
        due = pacing.next_ns(now)
        if due is not None:
            wait_s = min(wait_s, max(0, due - now) / _SECOND_NS)
        select.select([self._epoll], [], [], wait_s)  # epoll itself waits whole milliseconds
        return self._epoll.poll(0, 1024)

    def _nap(self) -> None:
        tally = self.tally
        read = tally.read_bytes - self._bytes_before
        part = max(0, tally.acked + tally.received - self._acked_before) / self.inflight_limit
        self._bytes_before = tally.read_bytes
        self._acked_before = tally.acked + tally.received
        if read >= _NAP_BYTES or part > 0.25:
            self._nap_s /= 2
        elif read < _NAP_BYTES // 2 and part < 0.125:
            self._nap_s *= 1.25
        self._nap_s = min(max(self._nap_s, _NAP_LEAST_S), self.naps_s)
        if 0 < read < _NAP_BYTES:
            time.sleep(self._nap_s)

    def _ack_slowly(self) -> None:
        now = now_ns()
        if now - self._slow_ns > _SECOND_NS // 10:
            self._slow_ns = now
            for client in self.slow:
                if client.link is not None:
                    client.link.release(4)

    def until(self, done: Callable[[], bool], quiet_s: float | None = None) -> bool:
        """Serve until a condition holds; return False if nothing was delivered or acked for `quiet_s` before it did."""
        progress = (-1, -1, -1)
        since = now_ns()
        while not done():
            self.turn()
            now = now_ns()
            tally = self.tally
            here = (tally.acked + tally.received, tally.sent, self._changed)
            if here != progress:
                progress, since = here, now
            if now > self._deadline_ns:
                raise Trouble("timeout", "the run took longer than it may")
            if quiet_s is not None and now - since > quiet_s * _SECOND_NS:
                return False
            if now - since > self._stall_ns:
                raise Trouble("stalled", "nothing was sent, acked or delivered any more")
        return True

    def serve_for(self, seconds: float) -> None:
        """Serve for a while."""
        until = now_ns() + int(seconds * _SECOND_NS)
        while (left := until - now_ns()) > 0:
            self.turn(min(_TURN_S, left / _SECOND_NS))
            if now_ns() > self._deadline_ns:
                raise Trouble("timeout", "the run took longer than it may")

    def ping(self, clients: Sequence[Client]) -> None:
        """Wait until the broker has read what these clients sent."""
        there = [client for client in clients if client.link is not None]
        for client in there:
            client.ping()
        self.push(there)
        self.until(lambda: not any(client.pings for client in there))

    def close(self) -> None:
        """Drop every connection."""
        self.drop(list(self._clients.values()))
        self._epoll.close()
