"""The streams of a shard: which are in memory, what their files have, what is synced, what the journal may drop.

Records gather per stream and are applied when enough have come, when they have waited long, when the stream is read, or
when there is no room for more. Only committed records are applied. A stream's records leave the journal only when its
file *and* its row in the catalogue are synced: `whole` is the position below which that is true of all streams.
A little above 400 lines: what memory, files, catalogue and journal agree on is decided here alone.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from itertools import chain
from typing import TYPE_CHECKING, Any

from everlog.base import EverlogError, StorageError
from everlog.streams.catalogue import Catalogue, Row, row_of
from everlog.streams.effects import NO_POSITION, DropAll, PutKey, Record, SetConfig, decode_record
from everlog.streams.fresh import Appended
from everlog.streams.open_files import OpenFiles, sync_all
from everlog.streams.plain_requests import PlainViews
from everlog.streams.ports import Journal
from everlog.streams.shard_settings import ShardSettings
from everlog.streams.stream_file import StreamFile
from everlog.streams.stream_state import MOST_POSITION, ROW_BYTES, StreamState
from everlog.streams.values import Kind

if TYPE_CHECKING:
    from everlog.streams.away_files import AwayFiles

APPLY_AT_ONCE = 32  # streams of which enough has gathered, after one commit; others have their turn later
OPENING = 4  # as many as this count one whose file is not open
LONG_REPLAY = 100_000  # records; opening files to learn what they have takes less time than so many


class Views:
    """Streams by name, as memory, catalogue and files together know them. Used by one thread, except where said."""

    def __init__(
        self,
        directory: str,
        settings: ShardSettings,
        run: Callable[[Callable[[], None]], None],
        failed: Callable[[EverlogError], None],
    ) -> None:
        self.settings = settings
        self.catalogue = Catalogue(f"{directory}/catalogue.db")
        self.files = OpenFiles(f"{directory}/files", settings.most_open, run, failed)
        self._whole_before = self.catalogue.whole  # when it was opened: records below it are in files alone
        self.pending_bytes = 0
        self.pending_rows = 0
        self._apply_rows = settings.apply_rows
        self._apply_bytes = settings.apply_bytes
        self._states: OrderedDict[str, StreamState] = OrderedDict()
        self._unapplied: OrderedDict[str, int] = OrderedDict()  # name -> time of its oldest pending record
        self._ripe: dict[str, None] = {}  # names with so many pending records that they are to be applied
        self._unsynced: dict[str, int] = {}  # name -> its records from this position on are in the journal alone
        self._rows: dict[str, Row] = {}  # of the catalogue, to be written
        self._withheld: dict[str, int] = {}  # name -> no row tells yet of records from this position on
        self._gone: dict[str, int] = {}  # names of removed streams -> their last position
        self._written: dict[str, int] = {}  # name -> up to where the row that was written tells
        self.away: set[str] = set()  # streams in memory whose files are in the bucket alone
        self.away_files: AwayFiles | None = None  # where those come from

    # ---- finding ----

    def find(self, name: str) -> StreamState | None:
        """Return a stream, or None if there is none; a removed one that is still in memory is returned too."""
        state = self._states.get(name)
        if state is not None:
            self._states.move_to_end(name)
            return state
        state = self.catalogue.load(name)
        if state is not None:
            self._states[name] = state
            if self.away_files is not None and self.away_files.is_away(state):
                self._be_away(state)
        return state

    def add(self, state: StreamState) -> None:
        """Take in a new stream, which has its first record soon."""
        self._states[state.name] = state

    def file_of(self, state: StreamState) -> StreamFile | None:
        """Return a stream's file, or None if it has none yet."""
        if not state.has_rows:
            return None
        file = self.files.get(state)
        if self.away_files is not None and (file is None or file.applied < state.filed):
            file = self.away_files.bring(state, file)
        if file is None and 0 <= state.born < self._whole_before:
            raise StorageError(
                f"{self.files.path(state.name)}, the file of {state.name}, is missing", hint="restore it from a backup"
            )
        if file is not None and file.applied < state.filed < self._whole_before:
            raise StorageError(
                f"{file.path}, the file of {state.name}, is older than it was", hint="restore it from a backup"
            )
        return file

    def hidden(self) -> list[str]:
        """Return the streams that are being copied."""
        names = [state.name for state in self._states.values() if state.is_hidden and not state.is_removed]
        return list(dict.fromkeys([*names, *self.catalogue.hidden()]))

    # ---- gathering ----

    def plain_views(self) -> PlainViews:
        """Return what plain writes note by themselves; `count` tells the rest."""
        return PlainViews(self._states, self._unapplied, self._ripe, self._unsynced)

    def count(self, rows: int, size: int) -> None:
        """Count plain writes that streams have taken."""
        self.pending_rows += rows
        self.pending_bytes += size

    def take(self, state: StreamState, position: int, record: Record, size: int) -> None:
        """Have a stream take a record, whose encoded size is given."""
        state.take(position, record, size)
        self.pending_bytes += size + ROW_BYTES
        self.pending_rows += 1
        name, rows = state.name, state.pending_rows
        if rows == 1:
            self._unapplied[name] = record.time_us
        if rows >= self._apply_rows or state.pending_bytes >= self._apply_bytes:
            self._ripe[name] = None
        if name not in self._unsynced:
            self._unsynced[name] = position

    def replay(self, journal: Journal) -> int:
        """Take in the records that the files may not have; return the time of the last one."""
        time_us: int = self.catalogue.time_us
        start = self.catalogue.whole
        if start < journal.start:
            raise StorageError(
                f"the files have what is below {start}, and the journal begins at {journal.start}",
                hint="what is between is lost here: restore the shard from its packs or a backup",
            )
        is_long = journal.committed - start > LONG_REPLAY
        filed: dict[str, int] = {}
        for position, name, effect in journal.read(start, journal.committed):
            if is_long:
                if name not in filed:
                    filed[name] = self._filed(name)
                if position <= filed[name]:
                    self._unsynced.setdefault(name, position)
                    continue
            record = decode_record(effect)
            time_us = max(time_us, record.time_us)
            state = self.find(name)
            if state is None:
                state = StreamState(name, _kind_of(record))
                self.add(state)
            self.take(state, position, record, len(effect))
            if self.pending_bytes > self.settings.pending_bytes:
                self.relieve(journal.committed, is_waiting=True)
        for name in self.away:
            self._be_away(self._states[name])
        return time_us

    def _filed(self, name: str) -> int:
        """Return up to where a stream's row and its file, which is open then, tell of all its records, if they do."""
        state = self.find(name)
        if state is None or state.is_hidden or name in self.away:
            return NO_POSITION
        return state.filed if self.files.applied_of(state) >= state.filed else NO_POSITION

    # ---- applying ----

    def apply(self, state: StreamState, committed: int) -> None:
        """Apply a stream's committed records to its file."""
        records = state.records(committed)
        if not records:
            return
        before, rows, first, last = state.pending_bytes, state.pending_rows, state.first_pending()[0], records[-1]
        removal = -1
        if state.has_removal:
            if any(_removes(record) for _, record in state.records(MOST_POSITION)[len(records) :]):
                return  # the state is already that of the stream's next life, whose file must not be made yet
            removal = next((k for k in reversed(range(len(records))) if _removes(records[k][1])), -1)
        if removal >= 0:
            self.away.discard(state.name)
            opened = self.files.unsynced_file(state.name)
            if (opened is not None and opened.born != state.born) or removal == len(records) - 1:
                self.files.remove(state.name)
        if removal < len(records) - 1:
            file = self.file_of(state) or self.files.get(state, create=True)
            assert file is not None
            file.apply(records[removal + 1 :], state.config, state.forgotten)
        state.has_rows = removal < len(records) - 1
        state.applied(len(records))
        self.pending_bytes += state.pending_bytes - before
        self.pending_rows += state.pending_rows - rows
        self._note_applied(state, first, last)

    def _note_applied(self, state: StreamState, first: int, last: tuple[int, Any]) -> None:
        name = state.name
        self._withheld.setdefault(name, first)
        self._ripe.pop(name, None)
        self._unapplied.pop(name, None)
        if state.pending:
            self._unapplied[name] = state.first_pending()[1]
        if not state.has_rows:
            self._rows.pop(name, None)
            self._gone[name] = last[0]
            del self._withheld[name]
        elif not any(_is_whole(effect) for _, one in state.records(MOST_POSITION) for effect in one.effects):
            self._rows[name] = row_of(state, *last)
            self._gone.pop(name, None)
            del self._withheld[name]

    def apply_ripe(self, committed: int) -> None:
        """Apply some of the streams of which enough has gathered, and more if there is no room.

        Those whose files are being synced have their turn later: nobody's answer waits for a disk here.
        """
        left, busy = APPLY_AT_ONCE, []
        while self._ripe and left > 0:
            name = next(iter(self._ripe))
            state = self._states[name]
            del self._ripe[name]
            if self.must_come(state):
                continue
            if self.files.is_busy(name):
                busy.append(name)
                left -= 1
                continue
            left -= 1 if self.files.is_open(name) else OPENING
            self.apply(state, committed)
            if state.pending_rows >= self.settings.apply_rows:  # of what is not committed yet
                self._ripe[name] = None
                left -= 1
        self._ripe.update(dict.fromkeys(busy))
        self.relieve(committed)

    def relieve(self, committed: int, *, is_waiting: bool = False) -> None:
        """Apply streams, those that have waited longest first, until what is pending fits its limits.

        Files that are in the bucket alone are waited for, or asked for. Files that are being synced are waited for if
        nothing else is left.
        """
        for may_wait in (False, True):
            if self._has_room():
                return
            for name in list(self._unapplied):
                if self._has_room():
                    return
                if not may_wait and self.files.is_busy(name):
                    continue
                if is_waiting or not self.must_come(self._states[name]):
                    self.apply(self._states[name], committed)

    def _has_room(self) -> bool:
        settings = self.settings
        return self.pending_bytes <= settings.pending_bytes and self.pending_rows <= settings.pending_rows

    def is_away(self, state: StreamState) -> bool:
        """Return whether a stream's file is in the bucket alone; one that was removed since needs it no more."""
        return state.name in self.away and not state.has_removal

    def must_come(self, state: StreamState) -> bool:
        """Return whether a stream's file has to be fetched before records are applied to it, and ask for it."""
        if not self.is_away(state):
            return False
        assert self.away_files is not None
        self.away_files.want(state)
        return True

    def apply_old(self, committed: int, before_us: int) -> None:
        """Apply the streams whose oldest pending record is older than a time."""
        for name, since_us in list(self._unapplied.items()):
            if since_us > before_us:
                return
            if not self.files.is_busy(name) and not self.must_come(self._states[name]):
                self.apply(self._states[name], committed)

    def apply_all(self, committed: int) -> None:
        """Apply everything that is committed, but for streams whose files are in the bucket alone."""
        for name in list(self._unapplied):
            if not self.is_away(self._states[name]):
                self.apply(self._states[name], committed)

    def note(self, state: StreamState) -> None:
        """Have the row of a stream without pending records written again: when something expires changed."""
        facts = (state.time_us, state.last_seq, state.messages, state.bytes)
        self._rows[state.name] = row_of(state, state.last, Record(0, 0, *facts, []))

    # ---- syncing ----

    def flush(self, time_us: int) -> None:
        """Write the catalogue's rows of what was applied since the last time."""
        if not self._rows and not self._gone:
            return
        self.catalogue.write(self._rows.values(), self._gone, time_us)
        for name, row in self._rows.items():
            self._written[name] = row[4]
        self._written |= self._gone
        for name in self._gone:
            state = self._states.get(name)
            if state is not None and not state.pending and state.is_removed:
                del self._states[name]
        self._rows.clear()
        self._gone.clear()

    def begin_sync(self, time_us: int) -> "SyncRound":
        """Return what is to be synced now, for another thread to do."""
        self.flush(time_us)
        names = list(self._unsynced)
        files = [file for name in names if (file := self.files.unsynced_file(name)) is not None]
        return SyncRound(self.catalogue, files, dict(self._written))

    def end_sync(self, done: "SyncRound", end: int) -> int:
        """Take in what was synced, and return up to where the files have everything; `end` is the journal's."""
        for name, synced in done.synced.items():
            if name not in self._unsynced:
                continue
            state = self._states.get(name)
            if state is None or state.last <= synced:
                del self._unsynced[name]
                self._written.pop(name, None)
            else:
                self._unsynced[name] = max(self._unsynced[name], synced + 1)
        return min(self._unsynced.values(), default=end)

    def filed_below(self, committed: int) -> int:
        """Return the position below which files and rows, as they are now, have everything; after a flush."""
        pending = (self._states[name].first_pending()[0] for name in self._unapplied)
        return min(chain(pending, self._withheld.values()), default=committed)

    def is_settled(self, name: str) -> bool:
        """Return whether a stream's row tells all that there is, and its file is not in use."""
        return name not in self._unapplied and name not in self._rows and self.files.is_idle(name)

    def let_go(self, names: Iterable[str]) -> None:
        """Take note that the files of streams are in the bucket alone from now on."""
        for name in names:
            if name in self._states:
                self._be_away(self._states[name])

    def _be_away(self, state: StreamState) -> None:
        """Note that a stream's file is in the bucket alone: no request on it is a simple one until it has come."""
        self.away.add(state.name)
        state.is_simple = state.is_simple_store = False

    def be_here(self, state: StreamState) -> None:
        """Note that a stream's file is on the disk."""
        self.away.discard(state.name)
        state.set_config(state.config)  # which looks whether requests on it are simple

    def forget_idle(self) -> None:
        """Let go of streams in memory that were not used lately and have nothing pending, beyond the limit."""
        excess = len(self._states) - self.settings.most_states
        if excess <= 0:
            return
        for name in list(self._states):
            state = self._states[name]
            if not state.pending and not state.unfed and name not in self._rows and name not in self._gone:
                del self._states[name]
                self.away.discard(name)
                excess -= 1
                if not excess:
                    return

    def close(self) -> None:
        """Close files and catalogue."""
        try:
            self.files.close()
        finally:
            self.catalogue.close()


class SyncRound:
    """What is synced at once: files that are open, then the catalogue. `run` may be called on any thread.

    A file that was closed was synced then, so each file has all that the rows which were written before say.
    """

    def __init__(self, catalogue: Catalogue, files: list[StreamFile], written: dict[str, int]) -> None:
        self.synced: dict[str, int] = {}  # name -> up to where file and row are synced
        self._catalogue = catalogue
        self._files = files
        self._written = written

    def run(self) -> None:
        """Sync the files and the rows that tell of them."""
        sync_all(self._files)
        self._catalogue.sync()
        self.synced = self._written


def _is_whole(effect: object) -> bool:
    """Return whether an effect is on the stream as a whole: a row written before it is applied would tell too much."""
    return isinstance(effect, SetConfig | DropAll)


def _removes(record: Record | Appended) -> bool:
    return any(isinstance(effect, DropAll) and effect.is_removed for effect in record.effects)


def _kind_of(record: Record) -> Kind:
    """Return the kind of a stream of which only records in the middle of its life are known: it is removed later."""
    for effect in record.effects:
        if isinstance(effect, SetConfig):
            return effect.kind
        if isinstance(effect, PutKey):
            return Kind.KV
    return Kind.STREAM
