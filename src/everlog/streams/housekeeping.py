"""What time demands of a shard: expiry, rows that waited long enough, dropped uploads, syncs and trims."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from everlog.base import EverlogError
from everlog.streams.effects import Record
from everlog.streams.expiry import find_expired
from everlog.streams.stream_state import StreamState
from everlog.streams.values import Level
from everlog.streams.views import SyncRound

if TYPE_CHECKING:
    from everlog.streams.state_shard import StateShard

MOST_DUE = 100  # streams a tick


class Housekeeping:
    """The work of a shard that nobody asks for; `run` does a piece of it on another thread."""

    def __init__(self, shard: "StateShard", run: Callable[[Callable[[], None]], None]) -> None:
        self._shard = shard
        self._run = run
        self._due: dict[str, int] = {}  # streams in memory -> when something in them expires
        self._is_syncing = False
        self._synced_us = shard.time_us
        self._synced_end = shard.committed

    def be_due(self, state: StreamState) -> None:
        """Note when something in a stream expires."""
        if self._due.get(state.name, 0) != state.next_due_us:
            self._due[state.name] = state.next_due_us

    def tick(self) -> None:
        """Do a little of everything that is due."""
        shard = self._shard
        now_us = shard.now()
        shard.views.apply_old(shard.committed, now_us - shard.settings.apply_us)
        due_us = shard.clock.due_us()
        if due_us:
            self._expire(due_us)
        shard.views.flush(now_us)
        if not self._is_syncing and self._is_sync_due(now_us):
            self._is_syncing = True
            self._synced_us, self._synced_end = now_us, shard.committed
            done = shard.views.begin_sync(now_us)
            self._run(lambda: self._sync(done))
        if shard.tier is not None:
            shard.tier.tick(now_us)
        shard.views.forget_idle()
        shard.turn()

    # ---- expiry ----

    def _expire(self, due_us: int) -> None:
        names = [name for name, when in self._due.items() if when <= due_us][:MOST_DUE]
        names += self._shard.views.catalogue.due(due_us, MOST_DUE)
        for name in dict.fromkeys(names):
            self._due.pop(name, None)
            state = self._shard.views.find(name)
            if state is not None and not state.is_removed and state.next_due_us:
                self._expire_stream(state, due_us)

    def _expire_stream(self, state: StreamState, due_us: int) -> None:
        """Drop what is due in a stream; if something of it is not committed yet, or its file is away, later."""
        shard = self._shard
        if shard.views.must_come(state):
            self._due[state.name] = state.next_due_us
            return
        file = shard.settle(state)
        if state.pending or file is None:
            self._due[state.name] = state.next_due_us
            return
        found = find_expired(state, file, due_us, shard.settings.expire_rows)
        stale, upload_due_us = shard.writes.stale_uploads(state, due_us)
        state.next_due_us = min((one for one in (found.next_due_us, upload_due_us) if one), default=0)
        if found.effects or stale:
            messages, size = state.messages - found.count, state.bytes - found.bytes
            facts = (shard.epoch, state.position, shard.now(), state.last_seq, messages, size)
            record = Record(*facts, [*found.effects, *stale], None, state.last_seq, found.count)
            shard.writes.take(state, record, Level.FSYNC, None)
        else:
            shard.views.note(state)
        if state.next_due_us:
            self.be_due(state)

    # ---- syncs and trims ----

    def _is_sync_due(self, now_us: int) -> bool:
        settings, shard = self._shard.settings, self._shard
        if shard.committed == self._synced_end:
            return False
        waited = now_us - self._synced_us >= settings.sync_us
        return waited or shard.committed - self._synced_end >= settings.sync_records

    def _sync(self, done: SyncRound) -> None:
        """Sync, on another thread; the shard's own then says up to where the journal may go."""
        try:
            done.run()
        except EverlogError as error:
            self._shard.post_failure(error)
            return
        self._shard.post(lambda: self._synced(done))

    def _synced(self, done: SyncRound) -> None:
        shard = self._shard
        whole = shard.views.end_sync(done, shard.committed)
        below = min(whole, shard.committed - shard.settings.keep_records)
        if shard.archive is not None:
            below = min(below, max(shard.archive.end, shard.committed - shard.settings.unarchived_records))
        self._run(lambda: self._trim(whole, below))

    def _trim(self, whole: int, below: int) -> None:
        """Note durably where replay begins, then let the journal go below that, on another thread."""
        shard = self._shard
        try:
            if whole > shard.views.catalogue.whole:
                shard.views.catalogue.set_whole(whole)
                shard.views.catalogue.sync()
            if below > shard.journal.start:
                shard.journal.trim(below)
        except EverlogError as error:
            shard.post_failure(error)
        finally:
            shard.post(self._end_sync)

    def _end_sync(self) -> None:
        self._is_syncing = False

    def close(self) -> None:
        """Apply and sync everything, so that the next owner has nothing to replay."""
        shard = self._shard
        views = shard.views
        views.apply_all(shard.committed)
        views.flush(shard.time_us)
        views.files.close()
        done = views.begin_sync(shard.time_us)
        done.run()
        views.catalogue.set_whole(max(views.catalogue.whole, views.end_sync(done, shard.committed)))
