"""Writes a batch to streams and key-value stores so that each row is there once, wherever the writer is stopped.

Rows go out in windows, those of one name in requests with an id that follows from application, batch and row. After
each window it is noted on the disk that the servers have it. A writer that comes back sends the window that it was at
again, with the same ids: the servers know those that they have. If a stream has forgotten the ids of that time, the
writer stops and says so, as it can't know.
"""

import asyncio
import uuid
from collections.abc import Coroutine, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

import everlog
from everlog.base import Unavailable
from everlog.client import KV, Client, PersistError, Stream, connect
from everlog.spark.sink.batch_journal import BatchJournal
from everlog.spark.sink.sink_options import StateTarget
from everlog.spark.sink.staged_rows import unstage
from everlog.spark.sink.state_rows import Numbered, Row, content, groups, request_id, windows
from everlog.streams import KvPut, Set, Write


def write_batch(journal: BatchJournal, target: StateTarget, timeout_s: float) -> int:
    """Write what is left of the journal's batch and return how many rows that was."""
    return asyncio.run(_write(journal, target, timeout_s))


def _open(target: StateTarget, timeout_s: float) -> AbstractAsyncContextManager[Client]:
    if target.bus is not None:
        return connect(target.bus, timeout_s=timeout_s)
    opened: AbstractAsyncContextManager[Client] = everlog.open(target.directory or "")
    return opened


async def _write(journal: BatchJournal, target: StateTarget, timeout_s: float) -> int:
    state = journal.state
    assert state is not None
    first = done = state.received
    try:
        async with _open(target, timeout_s) as client:
            again = dict(state.seen) if state.begun else None
            for window in windows(unstage(journal.paths(), done)):
                await _send(client, journal, window, target, again)
                done, again = window[-1][0] + 1, None
    except PersistError as error:
        assert journal.state is not None
        raise Unavailable(
            f"{error.message}; {journal.state.received} rows of batch {state.batch} are written",
            hint=error.hint or "start the query again: it goes on from there",
        ) from error
    journal.complete()
    return done - first


async def _send(
    client: Client, journal: BatchJournal, window: list[Numbered], target: StateTarget, again: dict[str, int] | None
) -> None:
    """Write a window; `again` has what was seen before it was first sent, if it was."""
    by_name = groups(window, target)
    places = {name: client.stream(name) if target.kind == "streams" else client.kv(name) for name in by_name}
    assert journal.state is not None
    if again is None:
        await _gathered(_see(place) for place in places.values() if place.seen < 0)
        seen = journal.state.seen | _seen(client, places)
        if not journal.state.begun or seen != journal.state.seen:
            journal.look(seen)
    await _gathered(
        _send_all(journal, places[name], requests, None if again is None else again.get(str(client.shard_of(name)), -1))
        for name, requests in by_name.items()
    )
    journal.receive(window[-1][0] + 1, journal.state.seen | _seen(client, places))


async def _see(place: Stream | KV) -> None:
    """Find out where a name's shard is, by a write that changes nothing: whoever writes may not be allowed to read."""
    if isinstance(place, Stream):
        await place.delete(0)
    else:
        await place.delete(uuid.uuid4().hex)


def _seen(client: Client, places: Mapping[str, Stream | KV]) -> dict[str, int]:
    return {str(client.shard_of(name)): place.seen for name, place in places.items()}


async def _send_all(
    journal: BatchJournal, place: Stream | KV, requests: list[list[Numbered]], first_seen: int | None
) -> None:
    """Send the requests to one name, one after the other, as their order is the order of its messages."""
    assert journal.state is not None
    for rows in requests:
        message_id = request_id(journal.app, journal.state.batch, place.name, rows[0][0])
        writes = [await _write_of(place, row) for _, row in rows]
        await place.batch(writes, message_id=message_id, first_seen=first_seen)


async def _write_of(place: Stream | KV, row: Row) -> Write:
    value, headers, timestamp, ttl_us = content(row)
    message, upload = await place.message(value, headers, timestamp)
    if isinstance(place, Stream):
        return Set(place.name, message, ttl_us=ttl_us, upload=upload)
    return KvPut(place.name, row["key"], message, ttl_us=ttl_us, upload=upload)


async def _gathered(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Do things at the same time; when all have ended, raise what the first of them failed with."""
    for result in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
