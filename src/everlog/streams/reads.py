"""Reads: what is committed, from the stream's file after its pending records were applied, or from memory.

Each function answers one request on one stream. Series are generators that do a bounded piece of work at each step;
between steps the stream may change, and the next chunk shows what it is then (a download and a bootstrap do not: they
are as of one position).
"""

import os
import tempfile
from collections.abc import Callable, Iterator

from everlog.streams import requests
from everlog.streams.effects import PutKey
from everlog.streams.fresh import Fresh
from everlog.streams.refusal import Refused
from everlog.streams.replies import Entries, FilePart, Keys, Messages, Result, StreamInfo, ValuePart
from everlog.streams.row_messages import message_of
from everlog.streams.shard_settings import ShardSettings
from everlog.streams.stored_messages import MOST_SEQ, find_row, first_seq, read_messages
from everlog.streams.stored_rows import (
    ENTRIES,
    entry_of,
    fresh_entry,
    fresh_of,
    read_entries,
)
from everlog.streams.stream_file import StreamFile
from everlog.streams.stream_state import FRONT_BYTES, FRONT_KEYS, StreamState
from everlog.streams.values import ErrorCode, Kind

Settle = Callable[[StreamState], StreamFile | None]  # applies what is committed and returns the file


class Reads:
    """The reads of a shard; `settle` applies a stream's committed records and returns its file."""

    def __init__(self, settle: Settle, settings: ShardSettings, directory: str) -> None:
        self._settle = settle
        self._settings = settings
        self._directory = directory

    def get(self, state: StreamState, request: requests.Get) -> Result:
        """Return one message."""
        check_kind(state, Kind.STREAM)
        file = self._settle(state)
        most = request.max_bytes or self._settings.value_bytes
        row = find_row(file, request.seq, most)
        if row is None:
            raise Refused(ErrorCode.NOT_FOUND, f"{state.name} has no message {request.seq}")
        return Messages([message_of(row)])

    def kv_get(self, state: StreamState, request: requests.KvGet) -> Result:
        """Return a key's value, from memory if it is there and nothing newer is under way."""
        check_kind(state, Kind.KV)
        most = request.max_bytes or self._settings.value_bytes
        fresh = self._in_memory(state, request.key)
        if isinstance(fresh, Fresh):
            assert isinstance(fresh.effect, PutKey)
            if fresh.effect.upload is None:
                return Entries([fresh_entry(fresh.position, fresh.time_us, fresh.effect, most)])
        elif fresh is None:
            raise _no_key(state, request.key)
        file = self._settle(state)
        rows = [] if file is None else file.rows(f"{ENTRIES} WHERE key = ?2", (most, request.key))
        if not rows:
            raise _no_key(state, request.key)
        entry = entry_of(rows[0])
        if not entry.is_cut and entry.size <= FRONT_BYTES and not state.pending:
            if len(state.front) >= FRONT_KEYS:
                state.front.clear()
            state.front[entry.key] = fresh_of(entry)
        return Entries([entry])

    def _in_memory(self, state: StreamState, key: str) -> object:
        """Return what memory has of a key (None: that it has no value), or something else if the file has to tell."""
        known = state.overlay.find(key)
        if known is None or isinstance(known, Fresh):
            return known
        return state.front.get(key, known)

    def read_value(self, state: StreamState, request: requests.ReadValue) -> Result:
        """Return a part of a large value."""
        file = self._settle(state)
        table, column, key = (
            ("messages", "seq", request.seq) if request.key is None else ("entries", "key", request.key)
        )
        check_kind(state, Kind.STREAM if request.key is None else Kind.KV)
        query = f"SELECT rowid, position, length(value) FROM {table} WHERE {column} = ?"
        rows = [] if file is None else file.rows(query, (key,))
        value: bytes | None = None
        if not rows and request.seq is not None and (row := find_row(file, request.seq, MOST_SEQ)) is not None:
            value = row[2] or b""
            rows = [(request.seq, row[6], row[7])]
        if not rows or rows[0][1] != request.position:
            raise Refused(
                ErrorCode.CHANGED, "the value was changed or deleted", hint="read it again from the beginning"
            )
        assert file is not None
        rowid, _, size = rows[0]
        if request.offset < 0 or request.length <= 0 or request.offset > (size or 0):
            raise Refused(ErrorCode.BAD_REQUEST, f"no {request.length} bytes at {request.offset} of {size}")
        length = min(request.length, self._settings.value_bytes)
        if value is not None:  # of a block
            return ValuePart(value[request.offset : request.offset + length], len(value))
        return ValuePart(b"" if size is None else file.part_of(table, rowid, request.offset, length), size or 0)

    def info(self, state: StreamState, queues: list[str]) -> Result:
        """Return the numbers of a stream."""
        first = 0
        file = self._settle(state)
        if state.kind is Kind.STREAM and file is not None:
            first = first_seq(file)
        return StreamInfo(
            state.name,
            state.kind,
            state.config,
            state.messages,
            state.bytes,
            first,
            state.last_seq,
            state.time_us,
            state.position,
            queues,
        )

    def get_all(self, state: StreamState, request: requests.GetAll) -> Iterator[Result]:
        """Yield messages by rising seq, in chunks."""
        check_kind(state, Kind.STREAM)
        chunk = self._settings.chunk(request.chunk_bytes)
        left = MOST_SEQ if request.limit is None else request.limit
        last = MOST_SEQ if request.end_seq is None else request.end_seq
        first, more = max(1, request.start_seq), True
        while more:
            file = self._settle(state)
            found, more = read_messages(file, first, last, left, self._settings.value_bytes, chunk)
            left -= len(found)
            more = more and left > 0
            first = found[-1].seq + 1 if found else first
            yield Messages(found, not more, first)

    def keys(self, state: StreamState, request: requests.KvKeys) -> Iterator[Result]:
        """Yield keys, or entries, by rising key, in chunks."""
        check_kind(state, Kind.KV)
        chunk = self._settings.chunk(request.chunk_bytes)
        left = MOST_SEQ if request.limit is None else request.limit
        after, more = request.after or "", True
        most = self._settings.value_bytes if request.with_values else 0
        while more:
            found, more = read_entries(self._settle(state), request.prefix, after, left, most, chunk)
            left -= len(found)
            more = more and left > 0
            after = found[-1].key if found else after
            if request.with_values:
                yield Entries(found, not more)
            else:
                yield Keys([one.key for one in found], not more)

    def download(self, state: StreamState, request: requests.Download) -> Iterator[Result]:
        """Yield a compact SQLite file of the stream as of now, in parts."""
        chunk = self._settings.chunk(request.chunk_bytes)
        with tempfile.TemporaryDirectory(dir=self._directory, prefix="download-") as directory:
            path = f"{directory}/stream.db"
            self.copy_to(state, path)
            size, offset = os.path.getsize(path), 0
            with open(path, "rb") as file:
                while offset < size:
                    data = file.read(chunk)
                    yield FilePart(data, offset, offset + len(data) >= size)
                    offset += len(data)

    def copy_to(self, state: StreamState, path: str) -> int:
        """Write a stream as a new SQLite file, and return the position that it is as of."""
        file = self._settle(state)
        if file is None:
            raise Refused(ErrorCode.NOT_FOUND, f"{state.name} has no file yet", hint="write something first")
        file.copy_to(path)
        return file.applied


def check_kind(state: StreamState, kind: Kind) -> None:
    """Refuse a request that is for the other kind."""
    if state.kind is not kind:
        raise Refused(ErrorCode.WRONG_KIND, f"{state.name} is a {state.kind}", hint="use another name")


def _no_key(state: StreamState, key: str) -> Refused:
    return Refused(ErrorCode.NOT_FOUND, f"{state.name} has no key {key!r}")
