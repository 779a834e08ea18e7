"""A stream: messages with a seq each, that can be appended, written, read, deleted and followed."""

from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing

from msgspec.structs import replace

from everlog.bus import READ
from everlog.client.errors import NotFound, PersistError
from everlog.client.large_values import is_changed, part_bytes, whole_value
from everlog.client.named import Headers, Named, Seconds, Value, to_us
from everlog.client.queue import Queue
from everlog.client.requester import SeriesLost
from everlog.client.watch import HEARTBEAT_S, Position, Watch
from everlog.streams import (
    Delete,
    DeleteAll,
    Get,
    GetAll,
    Level,
    Messages,
    Nothing,
    Set,
    StoredMessage,
    Write,
    Written,
)


class Stream(Named):
    """A stream on the servers; it is made by its first write."""

    async def append(
        self,
        value: Value = None,
        *,
        headers: Headers = None,
        timestamp: float | None = None,
        ttl: Seconds = None,
        message_id: str | None = None,
        level: Level | None = None,
        expected_last_seq: int | None = None,
    ) -> Written:
        """Write a message behind the last one; return its seq, its time and where it is.

        With a `message_id` of your own, a second write with the same id is not done but answered like the first.
        """
        message, uploaded = await self.message(value, headers, timestamp)
        done = await self._write(
            Set(
                self.name,
                message,
                None,
                self._id(message_id),
                to_us(ttl),
                self.level if level is None else level,
                expected_last_seq,
                upload=uploaded,
            )
        )
        assert isinstance(done, Written)
        return done

    async def set(
        self,
        seq: int,
        value: Value = None,
        *,
        headers: Headers = None,
        timestamp: float | None = None,
        ttl: Seconds = None,
        message_id: str | None = None,
        level: Level | None = None,
        must_be_new: bool = False,
    ) -> Written:
        """Write a message at a seq; one that is there is replaced, unless it must be new."""
        message, uploaded = await self.message(value, headers, timestamp)
        done = await self._write(
            Set(
                self.name,
                message,
                seq,
                self._id(message_id),
                to_us(ttl),
                self.level if level is None else level,
                None,
                must_be_new,
                uploaded,
            )
        )
        assert isinstance(done, Written)
        return done

    async def get(self, seq: int) -> StoredMessage:
        """Return a message; raises NotFound."""
        while True:
            result = (await self._requester.call(Get(self.name, seq, part_bytes(self._requester)), READ)).result
            assert isinstance(result, Messages)
            try:
                return await self._whole(result.messages[0])
            except PersistError as error:
                if not is_changed(error):  # otherwise it is another one by now
                    raise

    async def get_all(
        self, start_seq: int = 0, end_seq: int | None = None, limit: int | None = None
    ) -> AsyncIterator[StoredMessage]:
        """Yield messages by rising seq; what is not taken yet waits on the server."""
        left = limit
        while True:
            request = GetAll(self.name, start_seq, end_seq, left, part_bytes(self._requester))
            try:
                async with aclosing(self._requester.series(request)) as replies:
                    async for reply in replies:
                        result = reply.result
                        assert isinstance(result, Messages)
                        for message in result.messages:
                            start_seq = message.seq + 1
                            left = None if left is None else left - 1
                            whole = await self._whole_or_gone(message)
                            if whole is not None:
                                yield whole
                return
            except SeriesLost:
                if left == 0:
                    return  # otherwise the server was replaced: the rest is asked for anew

    async def delete(self, *seqs: int, level: Level | None = None) -> int:
        """Delete messages; return how many there were."""
        level = self.level if level is None else level
        return _count(await self._write(Delete(self.name, list(seqs), self._ids.next(), level)))

    async def delete_all(self, end_seq: int | None = None, level: Level | None = None) -> int:
        """Delete all messages, or those up to a seq, that one included; return how many there were."""
        level = self.level if level is None else level
        return _count(await self._write(DeleteAll(self.name, end_seq, self._ids.next(), level)))

    async def append_all(self, values: Iterable[Value], *, level: Level | None = None) -> Written:
        """Append several messages, all of them or none."""
        writes: list[Write] = []
        for value in values:
            message, uploaded = await self.message(value, None, None)
            writes.append(Set(self.name, message, upload=uploaded))
        return await self.batch(writes, level=level)

    def watch(self, after: Position | None = None, heartbeat_s: float = HEARTBEAT_S) -> Watch:
        """Return a feed: all messages, `CaughtUp`, then every change; or from a position that a feed had reached."""
        return self._watch("", after, heartbeat_s)

    def queue(self, name: str) -> Queue:
        """Return a queue on this stream."""
        return Queue(self._requester, self._ids, self.name, name, self.level)

    async def _whole(self, message: StoredMessage) -> StoredMessage:
        if not message.is_cut:
            return message
        value = await whole_value(self._requester, self.name, message)
        return replace(message, value=value, is_cut=False)

    async def _whole_or_gone(self, message: StoredMessage) -> StoredMessage | None:
        """Return a message with its value, or as it is now if that has changed; None if it is gone."""
        try:
            return await self._whole(message)
        except PersistError as error:
            if not is_changed(error):
                raise
        try:
            return await self.get(message.seq)
        except NotFound:
            return None


def _count(done: Written | Nothing) -> int:
    return done.count if isinstance(done, Written) else 0
