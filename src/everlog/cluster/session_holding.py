"""The client ids that this broker holds, of a cluster's: claimed at CONNECT, let go when another broker asks.

Claims are gathered by turns of the event loop and made in a thread. A client id of a living holder is asked for over
the link, again and again until it is let go or its holder is dead; a CONNECT waits so long, up to `WAIT_S`. A session
that was taken is served when the log here has all that it was sent. Owned by the event loop's thread.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import msgspec

from everlog.base import EverlogError, PeerError, Unavailable, is_retained, unpack_position
from everlog.broker import Claimed, ConnectTerms, Registry
from everlog.cluster.background import Background
from everlog.cluster.cluster_log import ClusterLog
from everlog.cluster.origin_closing import OriginClosing
from everlog.cluster.ports import LinkKind, Peers
from everlog.cluster.session_claims import CLAIMS_AT_ONCE, ClaimAnswer, Claimant, SessionClaims
from everlog.cluster.session_leaving import SessionLeaving
from everlog.cluster.session_sweep import SessionSweep
from everlog.mqtt import Reason
from everlog.ownership import Overruled
from everlog.sessions import Refused, StoredSession, unpack_inflight, unpack_offsets

WAIT_S = 5.0  # of a CONNECT for its client id
ASK_S = 1.0  # until a holder that does not answer is looked at again: it may be dead by then
AGAIN_S = 0.05  # between two questions for the same client id
RETRY_S = 0.2  # after the database could not be asked
_log = logging.getLogger("everlog.cluster")


@dataclass(slots=True)
class _Waiter:
    claimant: Claimant
    then: Claimed
    timer: asyncio.TimerHandle


@dataclass(slots=True)
class _Wanted:
    """A client id that is being claimed, and the connections that wait for it, the first one first."""

    waiters: list[_Waiter] = field(default_factory=list)
    is_sweep: bool = False
    was_asked: bool = False  # its holder


class SessionHolding:
    """The broker's `Holding` over the rows of one incarnation."""

    def __init__(
        self,
        claims: SessionClaims,
        peers: Peers,
        follow: Callable[[], object],
        on_overruled: Callable[[EverlogError], None],
        *,
        wait_s: float = WAIT_S,
    ) -> None:
        """Take in `follow`, which reads what others have committed and may wait."""
        self.held: set[str] = set()
        self.is_over = False
        self._claims = claims
        self._peers = peers
        self._follow = follow
        self._on_overruled = on_overruled
        self._closing: OriginClosing | None = None
        self._wait_s = wait_s
        self._registry: Registry
        self._loop: asyncio.AbstractEventLoop
        self._wanted: dict[str, _Wanted] = {}
        self._gathered: dict[str, None] = {}  # of these, what the next round claims
        self._claiming = False
        self._arriving: set[str] = set()  # taken, and not in the registry yet
        self._background = Background()
        self._do = self._background.do
        self._thread = self._background.thread("everlog-claims")
        self._follower = self._background.thread("everlog-reach")
        self._leaving = SessionLeaving(claims, self._thread, self._left, self.overruled)

    def start(self, registry: Registry) -> None:
        """Begin on the running event loop."""
        self._registry = registry
        self._loop = asyncio.get_running_loop()
        self._leaving.start(registry, self.held)
        self._peers.answer(LinkKind.RELEASE_SESSION, self._asked)
        log = registry.router.log
        if isinstance(log, ClusterLog):
            self._closing = OriginClosing(log, self._peers)
            sweep = SessionSweep(self._claims, log, registry, self._thread, self.sweep, self.overruled)
            self._do(sweep.run())

    # Claiming

    def claim(self, terms: ConnectTerms, then: Claimed) -> None:
        """Hold the client id of a client that connects; what is held already costs nothing."""
        client_id = terms.client_id
        if self.is_over:
            then(Unavailable("this broker was overruled"))
        elif client_id in self.held and client_id not in self._leaving:
            then(None)
        else:
            claimant = Claimant(client_id, terms.session.user, terms.clean_start)
            waiter = _Waiter(claimant, then, self._loop.call_later(self._wait_s, self._too_late, client_id, then))
            self._want(client_id).waiters.append(waiter)

    def sweep(self, client_ids: list[str]) -> None:
        """Take sessions that nobody living holds, to do what is due about them."""
        for client_id in client_ids:
            if client_id not in self.held and client_id not in self._wanted:
                self._want(client_id).is_sweep = True

    def _want(self, client_id: str) -> _Wanted:
        wanted = self._wanted.get(client_id)
        if wanted is None:
            wanted = self._wanted[client_id] = _Wanted()
            if client_id not in self._leaving:  # else when it has left
                self._gather(client_id)
        return wanted

    def _too_late(self, client_id: str, then: Claimed) -> None:
        wanted = self._wanted.get(client_id)
        if wanted is not None:
            wanted.waiters = [one for one in wanted.waiters if one.then is not then]
        then(Unavailable(f"the session of {client_id!r} could not be taken within {self._wait_s} s"))

    def _gather(self, client_id: str) -> None:
        """Claim with all others of this turn, or of as long as the round before takes."""
        self._gathered[client_id] = None
        if not self._claiming:
            self._claiming = True
            self._loop.call_soon(self._claim)

    def _claim(self) -> None:
        claimants: list[Claimant] = []
        while self._gathered and len(claimants) < CLAIMS_AT_ONCE:  # the others meanwhile go on with what they have
            client_id = next(iter(self._gathered))
            del self._gathered[client_id]
            wanted = self._wanted[client_id]
            if wanted.waiters:
                claimants.append(wanted.waiters[0].claimant)
            elif wanted.is_sweep:
                claimants.append(Claimant(client_id, is_sweep=True))
            else:
                del self._wanted[client_id]
        if not claimants or self.is_over:
            self._claiming = False
            return
        ends = [shard.committed for shard in self._registry.router.log.shards]
        asked = self._loop.run_in_executor(self._thread, self._claims.claim, claimants, ends)
        asked.add_done_callback(partial(self._answered, claimants))

    def _answered(self, claimants: list[Claimant], asked: "asyncio.Future[ClaimAnswer]") -> None:
        self._claiming = False
        if asked.cancelled() or self.is_over:
            return
        error = asked.exception()
        if error is None:
            self._take(asked.result(), claimants)
        elif isinstance(error, Overruled):
            self.overruled(error)
        else:
            _log.warning("sessions could not be claimed, trying again: %s", error)
            self._again([one.client_id for one in claimants], RETRY_S)
        if self._gathered and not self._claiming:
            self._claiming = True
            self._loop.call_soon(self._claim)

    def _again(self, client_ids: list[str], after_s: float) -> None:
        self._loop.call_later(after_s, self._gather_wanted, client_ids)

    def _gather_wanted(self, client_ids: list[str]) -> None:
        for client_id in client_ids:
            if client_id in self._wanted:
                self._gather(client_id)

    def _take(self, answer: ClaimAnswer, claimants: list[Claimant]) -> None:
        for one in claimants:
            if one.client_id in answer.anothers:
                self._refuse(one)
        holders: dict[int, list[str]] = {}
        for client_id, holder in answer.held.items():
            if self._wanted[client_id].waiters:
                holders.setdefault(holder, []).append(client_id)
            else:
                del self._wanted[client_id]  # a sweep leaves to the living what they have
        for holder, client_ids in holders.items():
            self._do(self._ask(holder, client_ids))
        stored = {one: found for one, found in answer.taken.items() if found is not None}
        if stored:
            self._arriving.update(stored)
            self._do(self._arrive(stored, answer.unproven))
        for client_id, found in answer.taken.items():
            if found is None:
                self._have(client_id)

    def _refuse(self, refused: Claimant) -> None:
        """Refuse whoever has asked as this user; another may be the session's own."""
        wanted = self._wanted[refused.client_id]
        theirs = [one for one in wanted.waiters if one.claimant == refused]
        wanted.waiters = [one for one in wanted.waiters if one.claimant != refused]
        self._gather(refused.client_id)
        for one in theirs:
            one.timer.cancel()
            one.then(PeerError(Reason.NOT_AUTHORIZED, "the client id has a session of another user"))

    async def _ask(self, holder: int, client_ids: list[str]) -> None:
        """Ask a living holder to let go; whatever it answers, only the rows say who holds what."""
        wanted = [self._wanted[client_id] for client_id in client_ids]
        if any(one.was_asked for one in wanted):
            await asyncio.sleep(AGAIN_S)
        for one in wanted:
            one.was_asked = True
        body = msgspec.msgpack.encode(client_ids)
        try:
            await asyncio.wait_for(self._peers.ask(holder, LinkKind.RELEASE_SESSION, body), ASK_S)
        except (EverlogError, TimeoutError):
            self._again(client_ids, RETRY_S)
        else:
            self._again(client_ids, 0)

    # Taking in

    async def _arrive(self, stored: dict[str, StoredSession], unproven: dict[str, int]) -> None:
        """Take sessions into the registry as soon as the log here has all that they were sent: nothing is set back."""
        for client_id, origin in unproven.items():
            stored[client_id] = await self._proven(stored[client_id], origin)
        needs = {client_id: needed(found) for client_id, found in stored.items()}
        routed = self._registry.router.routed
        while not self.is_over:
            for client_id in [one for one, need in needs.items() if has_reached(routed, need)]:
                del needs[client_id]
                self._registry.adopt(stored[client_id])
                if client_id in unproven:
                    self._store(client_id)
                self._arriving.discard(client_id)
                self._have(client_id)
            if not needs:
                return
            await asyncio.sleep(0.005)  # what was followed is routed in a turn of its own
            try:
                await self._loop.run_in_executor(self._follower, self._follow)
            except EverlogError as error:
                _log.warning("what sessions were sent can't be read yet: %s", error)
                await asyncio.sleep(RETRY_S)

    async def _proven(self, found: StoredSession, origin: int) -> StoredSession:
        """Return a session with those QoS 2 ids whose messages have arrived."""
        while self._closing is not None:
            try:
                return await self._closing.prove(found, origin)
            except EverlogError as error:
                _log.warning("what %r has published is not decided yet: %s", found.row.client_id, error)
                await asyncio.sleep(RETRY_S)
        return found

    def _store(self, client_id: str) -> None:
        session, write_behind = self._registry.find(client_id), self._registry.write_behind
        if session is not None and write_behind is not None:
            write_behind.mark_session(session)

    def _have(self, client_id: str) -> None:
        """Let those go on who waited for a client id, which is held from now on."""
        self.held.add(client_id)
        wanted = self._wanted.pop(client_id, None)
        for one in () if wanted is None else wanted.waiters:
            one.timer.cancel()
            one.then(None)
        if not self._registry.holds(client_id):
            self.ended(client_id)  # whoever wanted it has left

    # Letting go

    def ended(self, client_id: str) -> None:
        """Hold a client id no longer than until its session's end is stored."""
        self._leaving.forget(client_id)

    async def _asked(self, asker: int, body: bytes) -> bytes:
        client_ids = msgspec.msgpack.decode(body, type=list[str])
        # What is neither held nor wanted may be a claim whose answer was lost: its row is let go too.
        await self._leaving.release([one for one in client_ids if one in self.held or one not in self._wanted])
        return b""

    def _left(self, client_id: str) -> None:
        if client_id in self._wanted:
            self._gather(client_id)

    def refused(self, refused: Refused) -> None:
        """Give up sessions that another broker has: their connections are closed before anything that waited leaves.

        If a message was taken in whose QoS 2 id could not be stored, the next holder would take it again: then all
        that is not committed is given up, and this broker with it.
        """
        for client_id in refused.sessions:
            self.held.discard(client_id)
            session = self._registry.find(client_id)
            if session is None:
                continue
            session.take_will()
            if session.unsure:
                self.overruled(Overruled(f"another broker has the session of {client_id!r}", hint="join again"))
                return
            _log.error("another broker has the session of %r: it is given up", client_id)
            self._registry.part_with(client_id, partial(self._give_up, client_id))

    def _give_up(self, client_id: str) -> None:
        self._loop.call_soon(self._registry.let_go, client_id)  # when what its connection left is cleared away

    def overruled(self, error: EverlogError) -> None:
        """Claim and release nothing any more, and tell the whole broker that it is over."""
        if not self.is_over:
            self.is_over = True
            self._on_overruled(error)

    async def stop(self) -> None:
        """Let go of everything: all is stored."""
        self._background.cancel()
        if self._closing is not None:
            self._closing.stop()
        if not self.is_over:
            await self._leaving.release_all()
        self.is_over = True
        self._background.close()


def needed(found: StoredSession) -> list[int]:
    """Return up to where each shard must be routed before a session goes on: all that it was sent is below."""
    need = list(unpack_offsets(found.cursor.positions))
    for row in found.subscriptions:
        for shard, at in enumerate(unpack_offsets(row.since)):
            need[shard] = max(need[shard], at)
    for _, _, position in unpack_inflight(found.cursor.inflight):
        shard, offset = unpack_position(position)
        if shard < len(need) and not is_retained(position):
            need[shard] = max(need[shard], offset + 1)
    return need


def has_reached(routed: list[int], need: list[int]) -> bool:
    """Return whether every shard is as far as that."""
    return all(at >= wanted for at, wanted in zip(routed, need, strict=False))
