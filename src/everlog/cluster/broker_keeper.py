"""A broker among others: it beats, claims the shards that are placed on it, and hands over the rest.

Two tasks on the event loop. One beats: about once a second it tells that the broker lives, looks who else does, and
coordinates if nobody does (`Membership`). It is the loop that asks for each beat, so a loop that stands beats no more;
nor does a broker whose commits wait for longer than the patience, while the beats themselves go through: that one is
replaced. The other task follows: it makes the broker own what the board says. What takes long there stops no beat.

Nothing here is needed for safety: each write names its epoch or incarnation, and the database refuses a stale one. An
incarnation ends whole: declared dead, or fenced on any shard, `wait` raises `Overruled`, and whoever runs the broker
begins anew with another one. Used on the event loop's thread.
"""

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

from everlog.base import EverlogError, Fenced
from everlog.cluster.session_schema import message_shard
from everlog.ownership import (
    COORDINATOR,
    NOBODY,
    Board,
    Membership,
    Overruled,
    Ownership,
    Suspicion,
    servers_of,
    things_to_claim,
    things_to_release,
)

PATIENCE_S = 5.0
DRAIN_S = 60.0  # for others to take all shards; then they are left without an owner for a moment
_BEAT_S = 1.0  # between two beats
_WATCH_S = 0.25  # while somebody may be dead
_SHORTEST_S = 0.05  # between two beats, however often others say that something moved
_TAKEN_S = 5.0  # in which a shard that was handed over is taken; then the next is
_AGAIN_S = 1.0  # before a shard that could not be opened is claimed anew
_DIAL_S = 0.5
_TAKERS = 4  # shards that are taken over at the same time
_log = logging.getLogger("everlog.cluster")
T = TypeVar("T")


class OwnableLog(Protocol):
    """The log as the keeper uses it; both calls may wait for the database."""

    def own(self, epochs: dict[int, int], incarnation: int) -> None: ...

    def release(self, numbers: list[int]) -> None: ...

    def stuck_s(self, now: float) -> float: ...


class ShardMoves(Protocol):
    """What else happens in a broker when a shard comes or goes."""

    def owned(self, shard: int) -> None:
        """Append to the log of a shard from now on."""

    async def let_go(self, shard: int) -> None:
        """Append to the log of a shard no more; return when all that was appended is committed."""

    def kept(self, shard: int) -> None:
        """Append to it again: it could not be let go of."""


def refuses(address: str) -> bool:
    """Return whether the machine at an address answers that nobody listens there; it may wait."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), _DIAL_S):
            return False
    except ConnectionRefusedError:
        return True
    except (OSError, ValueError):
        return False


class BrokerKeeper:
    """Keeps the shards of a broker as the board says, until it is drained, overruled or stopped."""

    def __init__(
        self,
        ownerships: Sequence[Ownership],
        log: OwnableLog,
        name: str,
        address: str,
        shards: int,
        moves: ShardMoves | None = None,
        *,
        patience_s: float = PATIENCE_S,
        clock: Callable[[], float] = time.monotonic,
        refuses: Callable[[str], bool] = refuses,
    ) -> None:
        self._beating, self._ownership = ownerships[0], ownerships[-1]  # of their own, so that no claim delays a beat
        self._log = log
        self.name = name
        self.moves = moves
        self.on_moved: Callable[[], None] = lambda: None  # so that others look at the board at once
        self.on_board: Callable[[Board], None] = lambda board: None
        self._patience_s = patience_s
        self._clock = clock
        self._shards = {message_shard(number): number for number in range(shards)}
        self._membership = Membership(
            self._beating,
            name,
            address,
            self._shards,
            is_well=self._is_well,
            refuses=refuses,
            clock=clock,
            suspicion=Suspicion(patience_s),
        )
        self._beats = ThreadPoolExecutor(1, "everlog-beats")  # so that nothing else delays a beat
        self._takers = ThreadPoolExecutor(_TAKERS, "everlog-moves")
        self._wake = asyncio.Event()
        self._news = asyncio.Event()
        self._over = asyncio.Event()
        self._error: EverlogError | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._troubles: dict[str, str] = {}  # of each task, as it was told
        self._epochs: dict[int, int] = {}  # of the shards that are appended to here
        self._not_before: dict[int, float] = {}  # shards that could not be opened -> when they are claimed again
        self._handed: dict[int, float] = {}  # shards that were handed over -> until when they are waited for
        self.beaten_at = 0.0  # when the last beat that was stored began
        self.is_draining = False

    # ---- what others ask ----

    @property
    def incarnation(self) -> int:
        """The number of this incarnation, once it has joined."""
        return self._membership.incarnation

    @property
    def board(self) -> Board:
        """All that is known of ownership."""
        return self._membership.board

    @property
    def owned(self) -> dict[int, int]:
        """The shards that are appended to here, with their epochs."""
        return dict(self._epochs)

    @property
    def trouble(self) -> str:
        """Why beats or moves can't be done just now, or nothing."""
        return next((text for text in self._troubles.values() if text), "")

    def is_owner(self, shard: int) -> bool:
        """Return whether this broker appends to the log of a shard."""
        return shard in self._epochs

    def owner_of(self, shard: int) -> int:
        """Return the living incarnation that owns a shard, or `NOBODY`.

        Of others it may be a little old; never does it name this one for a shard that it has let go of, or not opened.
        """
        if shard in self._epochs:
            return self.incarnation
        member = self.board.owner_of(message_shard(shard))
        return NOBODY if member is None or member.incarnation == self.incarnation else member.incarnation

    def epoch_of(self, shard: int) -> int:
        """Return the epoch of a shard's last owner, as far as is known."""
        claim = self.board.claims.get(message_shard(shard))
        return 0 if claim is None else claim.epoch

    def wake(self) -> None:
        """Beat and look at the board at once."""
        self._wake.set()

    def suspect(self, incarnation: int) -> None:
        """Look at once whether a broker is dead, whose link was lost."""
        self._membership.suspect(incarnation)
        self._wake.set()

    # ---- life ----

    async def join(self) -> int:
        """Become a member and return the incarnation; nothing is claimed before `start`."""
        return await self._on_beats(self._membership.join)

    async def start(self) -> None:
        """Begin to beat, and to own what is placed here."""
        assert self.moves is not None
        self._tasks = [asyncio.create_task(self._keep_beating()), asyncio.create_task(self._keep_following())]

    async def wait(self) -> None:
        """Return when the broker was drained; raise `Overruled` if the others have given it up."""
        await self._over.wait()
        if self._error is not None:
            raise self._error

    async def drain(self) -> None:
        """Hand all shards over to others, one after the other; return when that is done, or can't be."""
        try:
            async with asyncio.timeout(DRAIN_S):
                await self._on_takers(self._ownership.drain, self.incarnation)
                self._say_moved()
                await self._over.wait()
        except (TimeoutError, EverlogError) as error:
            _log.warning("not everything was handed over: %s", str(error) or f"nobody took it in {DRAIN_S:g} s")

    async def stop(self) -> None:
        """Let go of everything and leave, unless the others have given this broker up already."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if not isinstance(self._error, Overruled):
            with contextlib.suppress(EverlogError, TimeoutError):
                async with asyncio.timeout(self._patience_s):
                    await self._on_beats(self._membership.leave)
            self.on_moved()
        self._beats.shutdown(wait=False, cancel_futures=True)
        self._takers.shutdown(wait=False, cancel_futures=True)

    def overrule(self, error: EverlogError) -> None:
        """End this incarnation: something of it was fenced."""
        self._end(error if isinstance(error, Overruled) else Overruled(error.message, hint="join again"))

    # ---- beating ----

    async def _keep_beating(self) -> None:
        while True:
            begun = self._clock()
            self._wake.clear()
            try:
                await self._beat()
            except Overruled as error:
                self._end(error)
                return
            except EverlogError as error:
                self._say_trouble("beats", error)
            else:
                self._say_trouble("beats", None)
            period = _WATCH_S if self._membership.is_watching else min(_BEAT_S, self._patience_s / 5)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(begun + period - self._clock()):
                    await self._wake.wait()
            await asyncio.sleep(begun + _SHORTEST_S - self._clock())

    async def _beat(self) -> None:
        before, begun = self.board, self._clock()
        board = await self._on_beats(self._membership.tick)
        self.beaten_at = begun
        me = board.members[self.incarnation]
        if me.draining and not self.is_draining:
            self.is_draining = True
            _log.warning("this broker is drained: its shards and sessions go to others")
        self.on_board(board)
        if board.placement != before.placement and self._is_coordinator(board):
            self.on_moved()
        self._news.set()

    def _is_well(self) -> bool:
        """Return whether a beat may say that this broker serves; called on the beats' thread."""
        return self._log.stuck_s(time.monotonic()) <= self._patience_s

    # ---- following ----

    async def _keep_following(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            if self._is_settled(self.board):
                self._say_trouble("moves", None)
                continue
            try:
                await self._follow()
            except Fenced as error:
                self.overrule(error)
            except Overruled:
                self._wake.set()  # the next beat finds out, and ends this incarnation
            except EverlogError as error:
                self._say_trouble("moves", error)
            else:
                self._say_trouble("moves", None)

    def _is_settled(self, board: Board) -> bool:
        """Return whether the broker owns what a board says, and nothing is to be done: so it is nearly always."""
        me = self.incarnation
        return not (
            self._handed
            or me not in board.members
            or board.members[me].draining
            or self._mine(board) != self._epochs
            or things_to_claim(board, me)
            or things_to_release(board, me)
        )

    def _mine(self, board: Board) -> dict[int, int]:
        """Return the epochs of the shards that this incarnation owns by the board."""
        owned = board.owned_by(self.incarnation)
        return {self._shards[thing]: epoch for thing, epoch in owned.items() if thing in self._shards}

    async def _follow(self) -> None:
        """Make the broker own what the board says."""
        me = self.incarnation
        board = await self._on_takers(self._ownership.read)  # with all that this task has changed
        if me not in board.members:
            raise Overruled(f"incarnation {me} is dead")
        mine = self._mine(board)
        if any(mine.get(shard) != epoch for shard, epoch in self._epochs.items()):
            raise Overruled(f"incarnation {me} lost shards that it owns")
        await self._hand_over(board, mine)
        if not board.members[me].draining:
            await self._take(board, mine)
        elif not mine or servers_of(board) == []:
            self._end(None)

    async def _hand_over(self, board: Board, mine: dict[int, int]) -> None:
        """Give one shard away that is placed elsewhere, unless the last one is not taken yet."""
        me, now = self.incarnation, self._clock()
        for shard, until in list(self._handed.items()):
            if board.claims[message_shard(shard)].owner not in (NOBODY, me) or now > until:
                del self._handed[shard]
        if self._handed:
            return
        for thing in things_to_release(board, me):
            shard = self._shards.get(thing, -1)
            if shard in mine:
                _log.info("shard %d is handed over to %s", shard, board.placement[thing])
                await self._give(shard)
                del mine[shard]
                self._handed[shard] = self._clock() + _TAKEN_S
                self._say_moved()
                return

    async def _give(self, shard: int) -> None:
        """Let go of a shard once all that was appended to it is committed."""
        assert self.moves is not None
        if shard in self._epochs:
            epoch = self._epochs.pop(shard)
            try:
                await self.moves.let_go(shard)
            except BaseException:
                self._epochs[shard] = epoch
                self.moves.kept(shard)
                raise
            await self._on_takers(self._log.release, [shard])
        await self._on_takers(self._ownership.release, [message_shard(shard)], self.incarnation)

    async def _take(self, board: Board, mine: dict[int, int]) -> None:
        """Claim what is placed here and free, and append to what is owned."""
        now = self._clock()
        free = [
            thing
            for thing in things_to_claim(board, self.incarnation)
            if thing in self._shards and self._not_before.get(self._shards[thing], 0.0) <= now
        ]
        if free:
            claimed = await self._on_takers(self._ownership.claim, free, self.incarnation)
            mine |= {self._shards[thing]: epoch for thing, epoch in claimed.items()}
        new = sorted(mine.keys() - self._epochs.keys())
        if new:
            await self._open(new, mine)
            self._say_moved()

    async def _open(self, shards: Iterable[int], epochs: dict[int, int]) -> None:
        """Take shards over, several at a time; what can't be opened is left for another, or a later try."""
        assert self.moves is not None
        waits = {shard: self._on_takers(self._log.own, {shard: epochs[shard]}, self.incarnation) for shard in shards}
        failed: EverlogError | None = None
        for shard, wait in waits.items():
            try:
                await wait
            except Fenced as error:
                self.overrule(error)
            except EverlogError as error:
                failed = error
                self._not_before[shard] = self._clock() + _AGAIN_S
                await self._on_takers(self._ownership.release, [message_shard(shard)], self.incarnation)
            else:
                self._handed.pop(shard, None)
                self._epochs[shard] = epochs[shard]
                self.moves.owned(shard)
                _log.info("shard %d is owned at epoch %d", shard, epochs[shard])
        if failed is not None:
            raise failed

    # ---- what others are told ----

    def _is_coordinator(self, board: Board) -> bool:
        held = board.claims.get(COORDINATOR)
        return held is not None and held.owner == self.incarnation

    def _say_moved(self) -> None:
        self.on_moved()
        self._wake.set()

    def _say_trouble(self, task: str, error: EverlogError | None) -> None:
        """Tell of trouble with the database once, and when it is over."""
        before, text = self._troubles.get(task, ""), "" if error is None else str(error)
        if text and text != before:
            _log.error("%s can't be done just now: %s", task, text)
        elif before and not text:
            _log.warning("%s can be done again", task)
        self._troubles[task] = text

    def _end(self, error: EverlogError | None) -> None:
        if not self._over.is_set():
            self._error = error
            self._over.set()

    async def _on_beats(self, call: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._beats, call, *arguments)

    def _on_takers(self, call: Callable[..., T], *arguments: object) -> "asyncio.Future[T]":
        return asyncio.get_running_loop().run_in_executor(self._takers, call, *arguments)
