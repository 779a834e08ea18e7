"""The retention loop: plans what goes, finds the readers that have not read it, removes it, and reports their loss.

Readers that are behind hold nothing back, except those that were spilled, for which there is a limit of its own; what
no table has is held back if the settings say so, and retained messages are until the session tables have them. What
no setting keeps, left by spills or by durable sessions and groups, goes when nobody reads it any more. Files are
touched in a thread.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from logging import WARNING

from everlog.base import EverlogError, StorageError
from everlog.broker import NOTHING, Doomed, Spills, UnreadLoss, event, run_in_slices
from everlog.commitlog import RetentionPlan, Thinned
from everlog.store import LogStore, Positions, read_lake_record

EVERY_S = 10.0
WARN_EVERY_S = 600.0  # between warnings that limits are exceeded because no table has the data yet
_REST = 20  # a look at all sessions is repeated after this many times as long as it took, unless something goes
_log = logging.getLogger("everlog.retention")


@dataclass(frozen=True, slots=True)
class RetentionOptions:
    """The settings of the loop."""

    data: str  # the data directory, where `lake.json` says how far the table goes
    await_table: bool = False
    reads_table: bool = False  # sessions can read from the table what the log no longer has


class RetentionLoop:
    """Runs the retention of one store, and tells which readers of one broker lose by it."""

    def __init__(
        self,
        store: LogStore,
        unread_loss: UnreadLoss,
        options: RetentionOptions,
        now_us: Callable[[], int],
        clock: Callable[[], float] = time.perf_counter,
        spills: Spills | None = None,
        retained_at: Callable[[], Awaitable[Sequence[int]]] | None = None,
    ) -> None:
        self._spills = spills
        self._retained_at = retained_at
        self._store = store
        self._unread_loss = unread_loss
        self._options = options
        self._now_us = now_us
        self._clock = clock
        self._look_again = 0.0
        self._warn_again = 0.0
        self._collect_again = 0.0
        self._owed: Sequence[int] | None = None  # what sessions and groups needed at the last look, and is stored since

    async def run(self, every_s: float = EVERY_S) -> None:
        """Remove what is to go, again and again."""
        while True:
            await asyncio.sleep(every_s)
            try:
                await self.once()
            except EverlogError as error:  # the next try may succeed
                event(_log, "retention_failed", WARNING, reason=error)

    async def once(self) -> None:
        """Remove what is to go now, and report who lost by it."""
        store, now_us = self._store, self._now_us()
        needed = None if self._spills is None or not len(self._spills) else self._spills.needed()
        stored = None if self._retained_at is None else await self._retained_at()
        plans, tabled = await asyncio.to_thread(self._plan, now_us, _lowest(needed, stored))
        state = self._unread_loss.state
        state.held_bytes = sum(plan.held_bytes for plan in plans)
        state.next_us = min((plan.next_us for plan in plans if plan.next_us is not None), default=None)
        if needed is None:
            self._warn_of_held(plans)
        doomed = self._doomed(plans, tabled)
        goes = any(plan.remove for plan in plans)
        losing: Sequence[tuple[bool, str]] = ()
        if goes or (store.limits_retention and self._clock() >= self._look_again):
            tally, took_s = await run_in_slices(self._unread_loss.look(doomed), self._clock)
            self._look_again = self._clock() + _REST * took_s
            state.next_readers, state.next_named = tally.next_readers, tally.most
            losing = tally.losing
        self._unread_loss.note_losses(bool(losing))
        try:
            await asyncio.to_thread(store.run_retention, now_us, doomed.goes)
            if losing:  # sealing may have made segments smaller meanwhile, so that fewer went
                gone = replace(doomed, goes=tuple(log.start for log in store.shards))
                await run_in_slices(self._unread_loss.tell(losing, gone), self._clock)
        finally:
            self._unread_loss.note_losses(False)
        await self._thin(now_us, _lowest(tabled if self._options.await_table else None, stored))
        if self._spills is not None and store.may_collect:
            await self._collect(self._spills, stored, tabled if self._options.await_table else None)

    async def _collect(self, spills: Spills, stored: Sequence[int] | None, tabled: Positions | None) -> None:
        """Give back the disk of what no setting keeps, as far as nobody may still read it.

        How far sessions and groups are is taken from the round before: by now the tables have it too, so that after a
        crash nobody goes on in what is gone.
        """
        needed, _ = await run_in_slices(spills.look(), self._clock)
        below = _lowest(needed, stored) or ()
        before = self._owed
        if self._clock() >= self._collect_again:
            looked, took_s = await run_in_slices(self._unread_loss.look_owed(), self._clock)
            self._owed, self._collect_again = looked, self._clock() + _REST * took_s
            if before is None and min(looked) < NOTHING:
                before = (0,) * len(below)
        owed = _lowest(below, tabled, before, self._owed)
        for shard, one in await asyncio.to_thread(self._store.collect, below, owed or ()):
            self._told(shard, one, "collected")

    async def _thin(self, now_us: int, below: Positions | None) -> None:
        """Empty what is too old of short-lived topics where other topics keep the segment."""
        state = self._unread_loss.state
        for shard, one in await asyncio.to_thread(self._store.thin, now_us, below):
            state.thinned += one.records
            state.thinned_bytes += one.bytes_before - one.bytes_after
            self._told(shard, one, "retention_thinned")

    def _told(self, shard: int, one: Thinned, name: str) -> None:
        """Report a segment in which records were emptied."""
        span = {"from": one.base_offset, "to": one.end_offset}
        event(_log, name, shard=shard, **span, count=one.records, before=one.bytes_before, after=one.bytes_after)

    def _plan(self, now_us: int, needed: Sequence[int] | None) -> tuple[list[RetentionPlan], Positions]:
        """Return what would go, and how far a table has each shard; runs in a thread."""
        store, ends = self._store, {}
        try:
            record = read_lake_record(self._options.data)
            if record is not None and record.store == store.identity:
                ends = record.ends
        except StorageError as error:  # as if there were no table
            event(_log, "table_unknown", WARNING, reason=error)
        tabled = tuple(ends.get(shard, 0) for shard in range(len(store.shards)))
        keep_from = _lowest(tabled if self._options.await_table else None, needed)
        return store.plan_retention(now_us, keep_from), tabled

    def _doomed(self, plans: list[RetentionPlan], tabled: Positions) -> Doomed:
        return Doomed(
            starts=tuple(log.start for log in self._store.shards),
            goes=tuple(plan.start for plan in plans),
            next=tuple(plan.next_to for plan in plans),
            tabled=tabled if self._options.reads_table else (0,) * len(tabled),
        )

    def _warn_of_held(self, plans: list[RetentionPlan]) -> None:
        held = {shard: plan.held_bytes for shard, plan in enumerate(plans) if plan.held_bytes}
        if not held or self._clock() < self._warn_again:
            return
        self._warn_again = self._clock() + WARN_EVERY_S
        why = "no table has these messages" if self._options.await_table else "retained messages are not stored yet"
        for shard, size in held.items():
            event(_log, "retention_held", WARNING, shard=shard, bytes=size, reason=why)


def _lowest(*positions: Sequence[int] | None) -> Positions | None:
    """Return the lowest offset of each shard; None if there are no positions at all."""
    given = [one for one in positions if one is not None]
    return tuple(map(min, zip(*given, strict=True))) if given else None
