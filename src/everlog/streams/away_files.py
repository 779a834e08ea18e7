"""Files of streams that are in the bucket alone: they come when they are asked for, and go when they were long unused.

A request on such a stream waits until a thread has fetched the file; requests on others do not. Only the shard's own
thread puts a fetched file in its place, or removes one, so no file that is open is ever replaced. A local file goes if
a pack that was named has every record of the stream, and never before.
"""

import os
import uuid
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from everlog.base import EverlogError, StorageError, Unavailable
from everlog.streams.file_copy import make_live
from everlog.streams.pack_index import PackIndex, Place
from everlog.streams.refusal import Refused
from everlog.streams.requests import Call
from everlog.streams.stream_file import StreamFile
from everlog.streams.stream_state import StreamState
from everlog.streams.tier import Tier
from everlog.streams.values import ErrorCode

if TYPE_CHECKING:
    from everlog.streams.state_shard import StateShard

MOST_EVICTED = 200  # files a tick
LOOK_US = 5_000_000  # how often it is looked whether there are too many files

Answers = Callable[[Any], None]
Handle = Callable[[Call, Answers], None]


class AwayFiles:
    """Which streams in memory have no local file, and who waits for them. Used by the shard's thread."""

    def __init__(self, shard: "StateShard", tier: Tier, index: PackIndex) -> None:
        self._shard = shard
        self._tier = tier
        self._index = index
        self._views = shard.views
        self._waiting: dict[str, list[tuple[Handle, Call, Answers]]] = {}  # by stream; those are being fetched
        self._waiting_count = 0
        self._looked_us = 0
        self.fetched = self.evicted = 0  # so far

    def is_away(self, state: StreamState) -> bool:
        """Return whether a stream's file is in the bucket alone."""
        place = self._index.place(state.name)
        if place is None or place.is_local or place.born != state.born:
            return False
        return not os.path.exists(self._views.files.path(state.name))

    # ---- coming ----

    def holds(self, handle: Handle, call: Call, answer: Answers) -> bool:
        """Take a request on a stream whose file is away: it is handled when the file has come. Say whether it was."""
        state = self._views.find(call.request.stream)
        if state is None or not self._views.is_away(state):
            return False
        if self._waiting_count >= self._shard.settings.waiting:
            raise Refused(ErrorCode.BUSY, "too many requests wait for the bucket", hint="try again later")
        self._waiting_count += 1
        self.want(state)
        self._waiting[state.name].append((handle, call, answer))
        return True

    def want(self, state: StreamState) -> None:
        """Have a file fetched, unless that is under way."""
        if state.name in self._waiting:
            return
        place = self._index.place(state.name)
        self._waiting[state.name] = []
        fetched = f"{self._shard.scratch}/{uuid.uuid4().hex}.db"
        self._tier.fetch(partial(self._fetch, state.name, place, fetched))

    def _fetch(self, name: str, place: Place | None, fetched: str) -> None:
        """Fetch a file to where nobody looks, on another thread."""
        failure: EverlogError | None = None
        try:
            self._load(place, fetched)
        except EverlogError as error:
            failure = error
        except OSError as error:
            failure = StorageError(f"{fetched}: {error}", hint="check that the disk has room and is writable")
        self._shard.post(lambda: self._arrived(name, place, fetched, failure))

    def _load(self, place: Place | None, fetched: str) -> None:
        if place is None:
            raise StorageError("no pack has the file", hint="restore it from a backup")
        self._tier.packs.fetch(place.pack, place.offset, place.length, fetched)
        make_live(fetched)

    def _arrived(self, name: str, place: Place | None, fetched: str, failure: EverlogError | None) -> None:
        """Put a file in its place, on the shard's thread, and handle what waits for it."""
        waiting = self._waiting.pop(name, [])
        self._waiting_count -= len(waiting)
        state = self._views.find(name)
        if failure is None and state is not None and self._views.is_away(state) and not self._shard.is_closed:
            assert place is not None
            if place.born == state.born:
                self._place(state, fetched)
            self._views.away.discard(name)
        if os.path.exists(fetched):
            os.unlink(fetched)
        for handle, call, answer in waiting:
            if failure is not None:
                answer(self._shard.failure_of(_told(name, failure)))
            else:
                handle(call, answer)
        if waiting:
            self._shard.turn()

    def _place(self, state: StreamState, fetched: str) -> None:
        self._views.files.place(state.name, fetched)
        self._views.away.discard(state.name)
        self._index.set_local([state.name], is_local=True, now_us=self._shard.time_us)
        self.fetched += 1

    def bring(self, state: StreamState, file: StreamFile | None) -> StreamFile | None:
        """Return a stream's file, fetched now if the local one is missing or older than the one in the bucket."""
        place = self._index.place(state.name)
        if place is None or place.born != state.born or (file is not None and place.position - 1 <= file.applied):
            return file
        fetched = f"{self._shard.scratch}/{uuid.uuid4().hex}.db"
        self._load(place, fetched)
        if file is not None:
            self._views.files.remove(state.name)
        self._place(state, fetched)
        return self._views.files.get(state)

    # ---- going ----

    def tick(self, now_us: int) -> None:
        """Note which files were used, and remove the least recently used beyond the limits; after rows were flushed."""
        if abs(now_us - self._looked_us) < LOOK_US:
            return
        self._looked_us = now_us
        touched, self._views.files.touched = self._views.files.touched, {}
        if touched:
            self._index.use(touched, now_us)
        settings = self._shard.settings
        if not settings.most_files and not settings.files_bytes:
            return
        count, size = self._index.local()
        excess = count - settings.most_files if settings.most_files else 0
        if settings.files_bytes and size > settings.files_bytes:
            excess = max(excess, 1 + (size - settings.files_bytes) * count // size)
        if excess > 0:
            self._looked_us = 0  # there may be more at the next tick
            self._evict(min(excess, MOST_EVICTED))

    def _evict(self, count: int) -> None:
        views = self._views
        names = [name for name in self._index.idle(count + len(views.files)) if views.is_settled(name)][:count]
        for name in names:
            views.files.discard(name)
        self._index.set_local(names, is_local=False)
        views.let_go(names)
        self.evicted += len(names)

    def close(self) -> None:
        """Tell everybody who waits that nothing will come."""
        waiting, self._waiting = list(self._waiting.values()), {}
        self._waiting_count = 0
        failure = self._shard.failure or Unavailable("the shard is closed", hint="try again")
        for several in waiting:
            for _, _, answer in several:
                answer(self._shard.failure_of(failure))


def _told(name: str, failure: EverlogError) -> EverlogError:
    """Return what a caller is told of a file that could not be fetched: it may be tried again, unless it is damaged."""
    kind = Unavailable if isinstance(failure, Unavailable) else StorageError
    return kind(f"the file of {name} can't be fetched: {failure.message}", hint=failure.hint)
