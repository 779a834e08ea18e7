"""A server among others on shared storage: beats, claims the shards that are placed on it, and hands over the rest.

Two tasks. One beats: about once a second it tells that it is alive, looks who else is, and coordinates if nobody does
(`Membership`). The other follows: it makes the server serve what the board says. What takes
long there stops no beat.

Nothing here is needed for safety: a write names its epoch, and the journal refuses one that is stale. What is added is
that a server which may have been declared dead answers nothing at all (`serve_until`): after 0.8 of the patience
without a beat that was stored, and so before others act. Time is this process's own monotonic clock.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from msgspec.structs import replace

from everlog.base import EverlogError
from everlog.bus import MOVES, Bus, Delivery, FrameKind, Subscription, Welcome, encode_frame
from everlog.ownership import (
    COORDINATOR,
    NOBODY,
    Board,
    Membership,
    Overruled,
    Replaced,
    Suspicion,
    servers_of,
    things_to_claim,
    things_to_release,
)
from everlog.persist.server import Owner, PersistServer
from everlog.persist.shared_shards import SharedShards
from everlog.persist.shared_storage import SharedStorage, shard_of_thing, thing_of

PATIENCE_S = 5.0
DRAIN_S = 60.0  # for others to take all shards; then they are left without an owner for a moment
_BEAT_S = 1.0  # between two beats, unless the patience is short
_SHORTEST_S = 0.05  # between two beats, however often others say that something moved
_TAKEN_S = 5.0  # in which a shard that was handed over is taken; then the next is
_AGAIN_S = 1.0  # before a shard that failed is claimed anew
_log = logging.getLogger("everlog.persist")
T = TypeVar("T")


class ShardKeeper:
    """Keeps the shards of a server as the board says, until it is drained, replaced or stopped."""

    def __init__(
        self,
        server: PersistServer,
        bus: Bus,
        storage: SharedStorage,
        shards: SharedShards,
        address: str = "",
        *,
        patience_s: float = PATIENCE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._server = server
        self._bus = bus
        self._ownership = storage.ownership
        self._shards = shards
        self._patience_s = patience_s
        self._clock = clock
        self._membership = Membership(
            self._ownership,
            server.name,
            address,
            map(thing_of, range(shards.shards)),
            is_well=self._is_well,
            clock=clock,
            suspicion=Suspicion(patience_s),
        )
        self._threads = ThreadPoolExecutor(1, "everlog-persist-beats")  # so that nothing else delays a beat
        self._changing = asyncio.Lock()  # who changes what this server owns
        self._wake = asyncio.Event()
        self._news = asyncio.Event()
        self._over = asyncio.Event()
        self._error: EverlogError | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._moves: Subscription | None = None
        self._unwatch: Callable[[], None] | None = None
        self._bus_lost_s: float | None = None
        self._beats: list[float] = []  # when the beat that is under way began, if this server is well
        self._troubles: dict[str, str] = {}  # of each task, as it was told
        self._lost: set[int] = set()
        self._not_before: dict[int, float] = {}  # shards that failed -> when they are claimed again
        self._handed: dict[int, float] = {}  # shards that were handed over -> until when they are waited for

    # ---- life ----

    async def start(self) -> None:
        """Join the others; the server is on its bus already."""
        self._server.serve_until = 0.0
        self._server.owner_of, self._server.tell = self._owner_of, self._tell
        self._unwatch = self._bus.watch(self._bus_changed)
        self._moves = await self._bus.subscribe(MOVES, self._moved)
        await self._ask(self._membership.join)
        self._tasks = [asyncio.create_task(self._keep_beating()), asyncio.create_task(self._keep_following())]

    async def wait(self) -> None:
        """Return when the server was drained; raise what ended it otherwise."""
        await self._over.wait()
        if self._error is not None:
            raise self._error

    async def drain(self) -> None:
        """Hand all shards over to others, one after the other; return when that is done, or can't be."""
        try:
            await self._ask(self._ownership.drain, self._membership.incarnation)
            self._say_moved()
            async with asyncio.timeout(DRAIN_S):
                await self._over.wait()
        except (TimeoutError, EverlogError) as error:
            _log.warning("not everything was handed over: %s", str(error) or f"nobody took it in {DRAIN_S:g} s")

    async def stop(self) -> None:
        """Close all shards and leave; others take what is left."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._moves is not None:
            self._moves.cancel()
        if self._unwatch is not None:
            self._unwatch()
        await self._drop_all()
        if not isinstance(self._error, Replaced):
            with contextlib.suppress(EverlogError):
                await self._ask(self._membership.leave)
        self._say_moved()
        self._threads.shutdown()

    # ---- beating ----

    async def _keep_beating(self) -> None:
        while not self._over.is_set():
            begun = self._clock()
            self._wake.clear()
            try:
                await self._beat()
            except Replaced as error:
                self._end(error)
            except Overruled as error:
                _log.error("the others gave this server up, it joins again: %s", error)
                await self._begin_anew()
            except EverlogError as error:
                self._say_trouble("beats", error)
            else:
                self._say_trouble("beats", None)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(begun + min(_BEAT_S, self._patience_s / 5) - self._clock()):
                    await self._wake.wait()
            await asyncio.sleep(begun + _SHORTEST_S - self._clock())

    async def _beat(self) -> None:
        before = self._membership.board
        self._beats.clear()
        board = await self._ask(self._membership.tick)
        for begun in self._beats:
            self._server.serve_until = begun + 0.8 * self._patience_s
        if board.placement != before.placement and self._is_coordinator(board):
            self._say_moved()
        self._news.set()

    def _is_well(self) -> bool:
        """Return whether a beat may say that this server serves; called on the beats' thread."""
        now = self._clock()
        if self._bus_lost_s is not None and now - self._bus_lost_s > self._patience_s:
            return False
        if self._shards.stuck_s(now) > self._patience_s:
            return False
        self._beats.append(now)
        return True

    async def _begin_anew(self) -> None:
        """Let go of everything at once, and join under a new number."""
        self._server.serve_until = 0.0
        async with self._changing:
            await self._drop_all()
            try:
                await self._ask(self._membership.join)
            except EverlogError as error:  # the next beat is overruled again
                self._say_trouble("beats", error)

    async def _drop_all(self) -> None:
        shards = self._server.owned
        await asyncio.gather(*[self._server.disown(shard) for shard in shards])
        for shard in shards:
            self._shards.forget(shard)
        self._lost.clear()
        self._handed.clear()

    # ---- following ----

    async def _keep_following(self) -> None:
        while not self._over.is_set():
            await self._news.wait()
            self._news.clear()
            if self._is_settled(self._membership.board):
                continue
            try:
                async with self._changing:
                    await self._follow()
            except Overruled:
                self._wake.set()  # the next beat finds out, and begins anew
            except EverlogError as error:
                self._say_trouble("moves", error)
            else:
                self._say_trouble("moves", None)

    def _is_settled(self, board: Board) -> bool:
        """Return whether the server serves what a board says, and nothing is to be done: so it is nearly always."""
        me = self._membership.incarnation
        return not (
            self._lost
            or self._handed
            or me not in board.members
            or board.members[me].draining
            or self._mine(board).keys() != self._server.owned
            or things_to_claim(board, me)
            or things_to_release(board, me)
        )

    def _mine(self, board: Board) -> dict[int, int]:
        """Return the epochs of the shards that this server owns."""
        owned = board.owned_by(self._membership.incarnation)
        return {shard: epoch for thing, epoch in owned.items() if (shard := shard_of_thing(thing)) is not None}

    async def _follow(self) -> None:
        """Make the server serve what the board says."""
        me = self._membership.incarnation
        board = await self._ask(self._ownership.read)  # with all that this task has changed
        if me not in board.members:
            raise Overruled(f"incarnation {me} is dead")
        mine = self._mine(board)
        for shard in self._server.owned - mine.keys():
            await self._close(shard)
        await self._give_up_lost(mine)
        await self._hand_over(board, mine)
        if not board.members[me].draining:
            await self._take(board, mine)
        elif not mine or servers_of(board) == []:
            self._end(None)

    async def _give_up_lost(self, mine: dict[int, int]) -> None:
        """Release the shards that failed: they are opened again at another epoch, here or elsewhere."""
        for shard in sorted(self._lost & mine.keys()):
            await self._close(shard)
            await self._ask(self._ownership.release, [thing_of(shard)], self._membership.incarnation)
            del mine[shard]
            self._not_before[shard] = self._clock() + _AGAIN_S
            self._lost.discard(shard)

    async def _hand_over(self, board: Board, mine: dict[int, int]) -> None:
        """Give one shard away that is placed elsewhere, unless the last one is not taken yet."""
        me, now = self._membership.incarnation, self._clock()
        for shard, until in list(self._handed.items()):
            claim = board.claims[thing_of(shard)]
            if claim.owner not in (NOBODY, me) or now > until:
                del self._handed[shard]
                self._server.forget(shard)
        if self._handed:
            return
        for given in [shard_of_thing(thing) for thing in things_to_release(board, me)]:
            if given is not None and given in mine:
                shard = given
                _log.info("shard %d is handed over to %s", shard, board.placement[thing_of(shard)])
                await self._server.retire(shard)
                self._shards.forget(shard)
                await self._ask(self._ownership.release, [thing_of(shard)], me)
                del mine[shard]
                self._handed[shard] = self._clock() + _TAKEN_S
                self._say_moved()
                return

    async def _take(self, board: Board, mine: dict[int, int]) -> None:
        """Claim what is placed here and free, and serve what is owned."""
        now = self._clock()
        free = [
            thing
            for thing in things_to_claim(board, self._membership.incarnation)
            if (shard := shard_of_thing(thing)) is not None and self._not_before.get(shard, 0.0) <= now
        ]
        if free:
            for thing, epoch in (await self._ask(self._ownership.claim, free, self._membership.incarnation)).items():
                mine[int(thing.partition("-")[2])] = epoch
        new = sorted(mine.keys() - self._server.owned)
        for shard in new:
            _log.info("shard %d is served at epoch %d", shard, mine[shard])
            self._handed.pop(shard, None)
            self._shards.claimed(shard, mine[shard])
            await self._server.own(shard, self._on_lost)
        if new:
            self._say_moved()

    async def _close(self, shard: int) -> None:
        await self._server.disown(shard)
        self._shards.forget(shard)

    def _on_lost(self, shard: int) -> None:
        self._lost.add(shard)
        self._wake.set()

    # ---- what others are told ----

    def _owner_of(self, shard: int) -> Owner:
        board = self._membership.board
        claim, member = board.claims.get(thing_of(shard)), board.owner_of(thing_of(shard))
        return ("" if member is None else member.address or member.name, 0 if claim is None else claim.epoch)

    def _tell(self, welcome: Welcome) -> Welcome:
        board, me = self._membership.board, self._membership.incarnation
        owned = self._mine(board)
        return replace(
            welcome,
            epochs={shard: owned[shard] for shard in welcome.owned if shard in owned},
            is_draining=me in board.members and board.members[me].draining,
            is_coordinator=self._is_coordinator(board),
        )

    def _is_coordinator(self, board: Board) -> bool:
        held = board.claims.get(COORDINATOR)
        return held is not None and held.owner == self._membership.incarnation

    def _say_moved(self) -> None:
        self._bus.publish(MOVES, encode_frame(FrameKind.MOVES, 0))
        self._wake.set()

    def _moved(self, deliveries: list[Delivery]) -> None:
        self._wake.set()

    def _bus_changed(self, is_open: bool) -> None:
        self._bus_lost_s = None if is_open else self._clock()
        self._wake.set()

    def _say_trouble(self, task: str, error: EverlogError | None) -> None:
        """Tell of trouble with the storage or the bus once, and when it is over."""
        before, text = self._troubles.get(task, ""), "" if error is None else str(error)
        if text and text != before:
            _log.error("%s can't be done just now: %s", task, text)
        elif before and not text:
            _log.warning("%s can be done again", task)
        self._troubles[task] = text

    def _end(self, error: EverlogError | None) -> None:
        self._server.serve_until = self._server.serve_until if error is None else 0.0
        self._error = error
        self._over.set()

    async def _ask(self, call: Callable[..., T], *arguments: object) -> T:
        """Ask something of the storage, on the beats' thread."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, call, *arguments)
