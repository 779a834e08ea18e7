"""Client ids that this broker lets go: another broker has asked for them, or their sessions have ended.

Whoever asks waits until the connection is closed, what its client has published is committed, and all of the session is
stored; then the rows say that nobody holds it, and the registry forgets it. While a client id leaves, who connects with
it here waits. Owned by the event loop's thread.
"""

import asyncio
import logging
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from everlog.base import EverlogError
from everlog.broker import Registry
from everlog.cluster.session_claims import SessionClaims
from everlog.ownership import Overruled
from everlog.sessions import Changes, Refused

RELEASE_S = 0.9  # after which who asks is answered, done or not: it looks at the rows and asks again
GATHER_S = 0.05  # so long ends of sessions are gathered
SETTLE_S = 0.01  # between two looks whether what a client has published is committed
RETRY_S = 0.2
AT_ONCE = 1000  # client ids in one transaction
QUICK_S = 10.0  # a client id that moves again so soon waits for twice as long as the last time
FIRST_PACE_S, MOST_PACE_S = 0.1, 3.0
MOVES = 10_000  # client ids that are remembered to have moved
_log = logging.getLogger("everlog.cluster")


class SessionLeaving:
    """What is let go just now."""

    def __init__(
        self,
        claims: SessionClaims,
        thread: ThreadPoolExecutor,
        left: Callable[[str], None],
        overruled: Callable[[EverlogError], None],
    ) -> None:
        self._claims = claims
        self._thread = thread
        self._on_left = left
        self._overruled = overruled
        self._registry: Registry
        self._held: set[str]
        self._leaving: dict[str, asyncio.Future[None]] = {}
        self._ended: dict[str, None] = {}
        self._ready: dict[str, None] = {}  # stored, to be let go by the next transaction
        self._releasing = False
        self._moves: dict[str, tuple[float, float]] = {}  # client id -> when it was asked for, and how long that waited

    def start(self, registry: Registry, held: set[str]) -> None:
        """Begin on the running event loop, with the set of what is held."""
        self._registry, self._held = registry, held
        self._loop = asyncio.get_running_loop()

    def __contains__(self, client_id: str) -> bool:
        return client_id in self._leaving

    # Sessions that have ended

    def forget(self, client_id: str) -> None:
        """Let go of a client id whose session has ended, with others, unless a new one begins by then."""
        if not self._ended:
            self._loop.call_later(GATHER_S, self._forget_ended)
        self._ended[client_id] = None

    def _forget_ended(self) -> None:
        ended, self._ended = self._ended, {}
        for client_id in ended:
            if self._registry.holds(client_id):
                if client_id not in self._registry.sessions and client_id not in self._registry.asleep:
                    self.forget(client_id)  # its end is being cleared away
            elif client_id in self._held and client_id not in self._leaving:
                self._leaving[client_id] = self._loop.create_future()
                self._when_stored(partial(self._let_go, client_id))

    # Sessions that another broker asks for

    async def release(self, client_ids: Collection[str]) -> None:
        """Let client ids go, and return when they are gone or it has taken long."""
        for client_id in client_ids:
            if client_id not in self._leaving:
                self._leaving[client_id] = self._loop.create_future()
                pace_s = self._pace(client_id)
                if pace_s:
                    self._loop.call_later(pace_s, self._close, client_id)
                else:
                    self._close(client_id)
        waiting = [self._leaving[one] for one in client_ids if one in self._leaving]
        if waiting:
            await asyncio.wait(waiting, timeout=RELEASE_S)

    def _pace(self, client_id: str) -> float:
        """Return how long a client id stays that moves to and fro: two clients throw out each other.

        Who has closed its connection throws out nobody, however often it moves.
        """
        session = self._registry.find(client_id)
        if session is None or session not in self._registry.clients:
            return 0.0
        now = self._loop.time()
        last_s, pace_s = self._moves.pop(client_id, (0.0, 0.0))
        pace_s = min(max(FIRST_PACE_S, 2 * pace_s), MOST_PACE_S) if last_s and now - last_s < QUICK_S else 0.0
        while len(self._moves) >= MOVES:
            del self._moves[next(iter(self._moves))]
        self._moves[client_id] = (now + pace_s, pace_s)
        return pace_s

    def _close(self, client_id: str) -> None:
        gone: list[object] = []
        client = self._registry.part_with(client_id, lambda: gone.append(None))
        self._settle(client_id, lambda: bool(gone) and (client is None or client.is_settled))

    def _settle(self, client_id: str, is_settled: Callable[[], bool]) -> None:
        """Go on when all that the client has published is committed, or refused."""
        if not is_settled() or not self._is_sure(client_id):
            self._loop.call_later(SETTLE_S, self._settle, client_id, is_settled)
            return
        session, write_behind = self._registry.sessions.get(client_id), self._registry.write_behind
        if session is not None and session.kept and write_behind is not None:
            write_behind.mark_session(session)
        self._when_stored(partial(self._let_go, client_id))

    def _is_sure(self, client_id: str) -> bool:
        """Return whether every QoS 2 id that is stored is of a message that is committed."""
        session = self._registry.find(client_id)
        if session is not None and session.unsure:
            session.drop_confirmed(self._registry.router.proven())
            return not session.unsure
        return True

    def _when_stored(self, call: Callable[[], None]) -> None:
        write_behind = self._registry.write_behind
        assert write_behind is not None
        write_behind.when_durable(call)

    # Rows

    def _let_go(self, client_id: str) -> None:
        self._ready[client_id] = None
        if not self._releasing:
            self._releasing = True
            self._loop.call_soon(self._release)

    def _let_go_again(self, client_ids: list[str]) -> None:
        for client_id in client_ids:
            self._let_go(client_id)

    def _release(self) -> None:
        ready = list(self._ready)[:AT_ONCE]
        for client_id in ready:
            del self._ready[client_id]
        asked = self._loop.run_in_executor(self._thread, self._claims.release, ready, Changes())
        asked.add_done_callback(partial(self._released, ready))

    def _released(self, client_ids: list[str], asked: "asyncio.Future[Refused]") -> None:
        self._releasing = False
        if asked.cancelled():
            return
        error = asked.exception()
        if isinstance(error, Overruled):
            self._overruled(error)
            return
        if error is not None:
            _log.warning("sessions could not be let go, trying again: %s", error)
            self._loop.call_later(RETRY_S, self._let_go_again, client_ids)
            return
        for client_id in client_ids:
            self._held.discard(client_id)
            self._registry.let_go(client_id)
            self._leaving.pop(client_id).set_result(None)
            self._on_left(client_id)
        if self._ready and not self._releasing:
            self._releasing = True
            self._loop.call_soon(self._release)

    async def release_all(self) -> None:
        """Let go of all, at the end of the broker; what can't be is left to whoever finds it dead."""
        client_ids = sorted(self._held)
        for at in range(0, len(client_ids), AT_ONCE):
            some = client_ids[at : at + AT_ONCE]
            try:
                await self._loop.run_in_executor(self._thread, self._claims.release, some, Changes())
            except EverlogError as error:
                _log.warning("sessions could not be let go: %s", error)
                return
            self._held.difference_update(some)
