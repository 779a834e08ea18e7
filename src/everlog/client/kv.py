"""A key-value store: the last value of each key, without history."""

from collections.abc import AsyncIterator
from contextlib import aclosing

from msgspec.structs import replace

from everlog.bus import READ
from everlog.client.errors import NotFound, PersistError
from everlog.client.large_values import is_changed, part_bytes, whole_value
from everlog.client.named import Headers, Named, Seconds, Value, to_us
from everlog.client.requester import SeriesLost
from everlog.client.watch import HEARTBEAT_S, Position, Watch
from everlog.streams import (
    AnyRequest,
    DeleteAll,
    Entries,
    Entry,
    Keys,
    Kind,
    KvCas,
    KvCreate,
    KvDelete,
    KvGet,
    KvKeys,
    KvPut,
    Level,
    Written,
)


class KV(Named):
    """A key-value store on the servers; it is made by its first write."""

    kind = Kind.KV

    async def get(self, key: str) -> Entry | None:
        """Return a key's entry: value, revision, time, headers; None if it has none."""
        while True:
            try:
                result = (await self._requester.call(KvGet(self.name, key, part_bytes(self._requester)), READ)).result
            except NotFound:
                return None
            assert isinstance(result, Entries)
            if not result.entries:
                return None
            try:
                return await self._whole(result.entries[0])
            except PersistError as error:
                if not is_changed(error):  # otherwise it is another one by now
                    raise

    async def put(
        self,
        key: str,
        value: Value = None,
        *,
        headers: Headers = None,
        timestamp: float | None = None,
        ttl: Seconds = None,
        message_id: str | None = None,
        level: Level | None = None,
    ) -> Written:
        """Give a key a value, whatever it had; the result's `seq` is the new revision."""
        message, uploaded = await self.message(value, headers, timestamp)
        level = self.level if level is None else level
        return await self._put(KvPut(self.name, key, message, self._id(message_id), to_us(ttl), level, uploaded))

    async def create(
        self,
        key: str,
        value: Value = None,
        *,
        headers: Headers = None,
        timestamp: float | None = None,
        ttl: Seconds = None,
        message_id: str | None = None,
        level: Level | None = None,
    ) -> Written:
        """Give a key a value if it has none; raises Exists."""
        message, uploaded = await self.message(value, headers, timestamp)
        level = self.level if level is None else level
        return await self._put(KvCreate(self.name, key, message, self._id(message_id), to_us(ttl), level, uploaded))

    async def update(
        self,
        key: str,
        value: Value,
        revision: int,
        *,
        headers: Headers = None,
        timestamp: float | None = None,
        ttl: Seconds = None,
        message_id: str | None = None,
        level: Level | None = None,
    ) -> Written:
        """Give a key a value if its revision is this one (0: if it has none); raises WrongRevision."""
        message, uploaded = await self.message(value, headers, timestamp)
        level = self.level if level is None else level
        return await self._put(
            KvCas(self.name, key, message, revision, self._id(message_id), to_us(ttl), level, uploaded)
        )

    async def delete(self, key: str, revision: int | None = None, *, level: Level | None = None) -> bool:
        """Delete a key, if it has the revision where one is given; return whether it was there."""
        level = self.level if level is None else level
        done = await self._write(KvDelete(self.name, key, revision, self._ids.next(), level))
        return isinstance(done, Written) and done.count > 0

    async def delete_all(self, *, level: Level | None = None) -> int:
        """Delete all keys; return how many there were."""
        level = self.level if level is None else level
        done = await self._write(DeleteAll(self.name, None, self._ids.next(), level))
        return done.count if isinstance(done, Written) else 0

    async def keys(self, prefix: str = "", limit: int | None = None) -> AsyncIterator[str]:
        """Yield keys in order."""
        after, left = None, limit
        while True:
            request = KvKeys(self.name, prefix, after, left, False, part_bytes(self._requester))
            try:
                async with aclosing(self._requester.series(request)) as replies:
                    async for reply in replies:
                        assert isinstance(reply.result, Keys)
                        for key in reply.result.keys:
                            after, left = key, None if left is None else left - 1
                            yield key
                return
            except SeriesLost:
                if left == 0:
                    return

    async def entries(self, prefix: str = "", limit: int | None = None) -> AsyncIterator[Entry]:
        """Yield entries in the order of their keys."""
        after, left = None, limit
        while True:
            request = KvKeys(self.name, prefix, after, left, True, part_bytes(self._requester))
            try:
                async with aclosing(self._requester.series(request)) as replies:
                    async for reply in replies:
                        assert isinstance(reply.result, Entries)
                        for entry in reply.result.entries:
                            after, left = entry.key, None if left is None else left - 1
                            whole = await self._whole_or_gone(entry)
                            if whole is not None:
                                yield whole
                return
            except SeriesLost:
                if left == 0:
                    return

    def watch(self, prefix: str = "", after: Position | None = None, heartbeat_s: float = HEARTBEAT_S) -> Watch:
        """Return a feed: all entries, `CaughtUp`, then every change; or from a position that a feed had reached."""
        return self._watch(prefix, after, heartbeat_s)

    async def _put(self, request: AnyRequest) -> Written:
        done = await self._write(request)
        assert isinstance(done, Written)
        return done

    async def _whole(self, entry: Entry) -> Entry:
        if not entry.is_cut:
            return entry
        return replace(entry, value=await whole_value(self._requester, self.name, entry), is_cut=False)

    async def _whole_or_gone(self, entry: Entry) -> Entry | None:
        try:
            return await self._whole(entry)
        except PersistError as error:
            if not is_changed(error):
                raise
        return await self.get(entry.key)
