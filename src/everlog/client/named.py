"""What streams and key-value stores have in common: a name, its limits, its numbers, its feed, its file."""

import os
import secrets
from collections.abc import Callable, Iterable
from contextlib import aclosing
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias

from everlog.base import UsageError
from everlog.bus import ADMINISTER, READ, WRITE
from everlog.client.large_values import part_bytes, upload
from everlog.client.requester import Requester, SeriesLost
from everlog.client.watch import HEARTBEAT_S, Position, Watch
from everlog.streams import (
    MOST,
    AnyRequest,
    Batch,
    Config,
    Configure,
    Download,
    FilePart,
    Fork,
    Info,
    Kind,
    Level,
    Message,
    Nothing,
    Remove,
    StreamInfo,
    Write,
    Written,
    check_name,
)

Value: TypeAlias = bytes | str | None
Headers: TypeAlias = dict[str, str] | None
Seconds: TypeAlias = float | timedelta | None
_ATTEMPTS = 5  # at a download that the server forgets in between


class MessageIds:
    """Ids for writes, so that one that is sent again is done once."""

    def __init__(self) -> None:
        self._token = secrets.token_urlsafe(9)
        self._numbers = count()

    def next(self) -> str:
        """Return an id that nobody else has."""
        return f"{self._token}{next(self._numbers):x}"


class Named:
    """A name on the servers, which is a stream or a key-value store."""

    kind = Kind.STREAM

    def __init__(self, requester: Requester, ids: MessageIds, name: str, level: Level) -> None:
        check_name(name)
        self.name = name
        self.level = level
        self._requester = requester
        self._ids = ids

    async def info(self) -> StreamInfo:
        """Return its numbers and limits; raises NotFound."""
        result = (await self._requester.call(Info(self.name), READ)).result
        assert isinstance(result, StreamInfo)
        return result

    async def configure(self, **limits: Any) -> None:
        """Make it if it is not there, and set its limits: the fields of `Config`."""
        request = Configure(self.name, self.kind, Config(**limits), self.level, self._ids.next())
        await self._requester.call(request, ADMINISTER)

    async def remove(self) -> None:
        """Remove it with all that it has."""
        await self._requester.call(Remove(self.name, self._ids.next(), self.level), ADMINISTER)

    async def fork(self, target: str) -> None:
        """Copy it as it is now to a new name, which must be of the same shard."""
        await self._requester.call(Fork(self.name, target, self._ids.next(), self.level), ADMINISTER)

    async def download(self, path: str | os.PathLike[str], progress: Callable[[int], None] | None = None) -> int:
        """Write it, as it is now, to a plain SQLite file; return its size. The file appears when it is whole.

        `progress` is called with the bytes that are there, from time to time.
        """
        whole = Path(path)
        partial = whole.with_name(whole.name + ".partial")
        try:
            for attempt in range(_ATTEMPTS):
                try:
                    size = await self._download(partial, progress)
                    os.replace(partial, whole)
                    return size
                except SeriesLost:
                    if attempt == _ATTEMPTS - 1:
                        raise
        finally:
            partial.unlink(missing_ok=True)
        raise AssertionError("not reached")

    async def _download(self, path: Path, progress: Callable[[int], None] | None) -> int:
        size = 0
        with path.open("wb") as file:
            request = Download(self.name, part_bytes(self._requester))
            async with aclosing(self._requester.series(request)) as replies:
                async for reply in replies:
                    part = reply.result
                    assert isinstance(part, FilePart)
                    file.seek(part.offset)
                    file.write(part.data)
                    size += len(part.data)
                    if progress is not None:
                        progress(size)
            file.flush()
            os.fsync(file.fileno())
        return size

    @property
    def seen(self) -> int:
        """The highest position of its shard that any reply to this client had, -1 if there was none."""
        return self._requester.seen(self.name)

    async def batch(
        self,
        writes: Iterable[Write],
        *,
        message_id: str | None = None,
        level: Level | None = None,
        first_seen: int | None = None,
    ) -> Written:
        """Do several writes (of `everlog.streams`) here, all of them or none.

        A program that sends a batch again after its restart, with the same `message_id`, says by `first_seen` what
        `seen` was when it first sent it: if the ids of that time are forgotten, StaleRetry is raised.
        """
        level = self.level if level is None else level
        request = Batch(self.name, list(writes), self._id(message_id), level)
        done = (await self._requester.call(request, WRITE, first_seen=first_seen)).result
        assert isinstance(done, Written)
        return done

    def _id(self, message_id: str | None) -> str:
        return self._ids.next() if message_id is None else message_id

    def _watch(self, prefix: str, after: Position | None, heartbeat_s: float = HEARTBEAT_S) -> Watch:
        return Watch(self._requester, self.name, prefix, after, heartbeat_s, self.kind)

    async def _write(self, request: AnyRequest) -> Written | Nothing:
        result = (await self._requester.call(request, WRITE)).result
        assert isinstance(result, Written | Nothing)
        return result

    async def message(self, value: Value, headers: Headers, timestamp: float | None) -> tuple[Message, str | None]:
        """Return a message to write, and the upload that has its value if that is large."""
        data = to_bytes(value)
        if data is not None and len(data) > part_bytes(self._requester):
            return Message(None, headers, timestamp), await upload(self._requester, self.name, self.kind, data)
        return Message(data, headers, timestamp), None


def to_bytes(value: object) -> bytes | None:
    """Return a value as bytes; text is encoded as UTF-8."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise UsageError(f"the text can't be UTF-8: {error}", hint="give bytes") from None
    raise UsageError(f"a value is bytes or text, not {type(value).__name__}", hint="encode it, such as with json.dumps")


def to_us(seconds: Seconds) -> int:
    """Return seconds as microseconds; none is 0."""
    if seconds is None:
        return 0
    if isinstance(seconds, timedelta):
        seconds = seconds.total_seconds()
    if not isinstance(seconds, int | float):
        raise UsageError(f"{seconds!r} is no time", hint="seconds as a number, or a timedelta")
    if not 0 < seconds * 1_000_000 <= MOST:
        raise UsageError(f"{seconds} s is no time to live", hint=f"more than 0 and up to {MOST // 1_000_000}, or None")
    return max(1, round(seconds * 1_000_000))
