"""What a state shard needs of others: a journal that commits, a clock, an archive, packs. Others implement these.

A **journal** is the log of one state shard as its owner sees it. Only the owner appends, so it knows every position
before it is given: the first record that is appended next has the position `end`. The journal belongs to one epoch; an
owner that lost the shard finds out when a commit fails as fenced, and from then on everything raises `Fenced`.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

from everlog.base import EverlogError
from everlog.streams.feed_events import FeedEvent
from everlog.streams.fresh import Asked
from everlog.streams.plain_requests import PlainRequests
from everlog.streams.replies import Answer
from everlog.streams.requests import Call


class Journal(Protocol):
    """The log of one state shard. Appends come from one thread; reads may come from another one."""

    @property
    def epoch(self) -> int:
        """The epoch of this owner: larger than that of every owner before it, and above 0."""

    @property
    def start(self) -> int:
        """The first position that can still be read."""

    @property
    def end(self) -> int:
        """The position after the last appended record."""

    @property
    def committed(self) -> int:
        """The position after the last committed record."""

    def append(self, records: Sequence[tuple[str, bytes]]) -> int:
        """Append records of (stream name, effect) in this order and return the position of the first.

        Nothing is written yet. Either all are appended or none. Raises `Fenced`, or `StorageError` if the journal can't
        go on at all; waits for nothing.
        """

    def commit(self, done: Callable[[int], None], failed: Callable[[EverlogError], None]) -> None:
        """Ask that all that was appended so far be committed, and return at once.

        `done` is called with the committed end once it is at or above the end of now; `failed` is called instead, once,
        with `Fenced` if another owner has the shard, or `StorageError` if the journal gives up for good. Trouble that
        may pass is settled inside, however long it takes. Both may be called on another thread, or before this
        returns. Calls are answered in the order they were made; one commit may answer many.
        """

    def read(self, position: int, end: int, stream: str | None = None) -> Iterator[tuple[int, str, bytes]]:
        """Yield (position, stream name, effect) of the records from `position` to before `end`, of one stream or all.

        Appended records that are not yet committed may be left out: the shard has those in memory. Raises
        `StorageError` if committed records can't be read, or `position` is below `start`.
        """

    def trim(self, below: int) -> None:
        """Let go of records below a position, now or later, all or some of them; `start` says what is left.

        The owner has them in synced files on its own disk. A journal that may be opened elsewhere lets go of them only
        when they are in the bucket too.
        """

    def close(self) -> None:
        """Commit what was appended, if that is still possible, and let go of everything."""


@runtime_checkable
class SharedJournal(Protocol):
    """A journal that another owner may open on a disk of its own: it is trimmed only as far as that is allowed."""

    def allow_trim(self, below: int) -> None:
        """Allow that records below a position be trimmed: they are in packs, where the next owner finds them."""


class Clock(Protocol):
    """The time. `everlog.broker`'s expiry clock is one."""

    def now_us(self) -> int:
        """Return the wall clock's time in microseconds since 1970."""

    def due_us(self) -> int:
        """Return the time up to which things are due: now, or 0 while the wall clock is in doubt (nothing expires)."""


class Archive(Protocol):
    """How far a shard is in the bucket, for writes at the level `archived`."""

    @property
    def end(self) -> int:
        """Everything below this position is in the bucket."""

    def want(self, end: int, done: Callable[[int], None]) -> None:
        """Ask that everything below `end` reach the bucket soon; `done` is called with the archived end, once it does.

        It may be called on another thread, and not before `commit` answered for `end`.
        """


class PackReader(Protocol):
    """Where the files of streams that are not on the local disk come from."""

    def fetch(self, pack: str, offset: int, length: int, path: str) -> None:
        """Write the checked bytes of one stream's file, which lie in a pack, to a new local file."""


class Shard(Protocol):
    """A state shard as its server sees it; all on one thread, by turns: `handle` what has come, then `turn`, once.

    The server gives the shard a way to post a call to that thread (commits are reported on others) and, if there are
    followers, a function that takes feed events.
    """

    def handle(self, call: Call, answer: Callable[[Answer], None]) -> None:
        """Take a request that has one answer; it comes now, in `turn`, or when what it waits for is committed."""

    def handle_series(self, call: Call, answer: Callable[[Iterator[Answer] | Answer], None]) -> None:
        """Take a request that has a series of answers: a generator that does a bounded piece of work for each of them.

        Pull it as far as the caller's credit goes, over many turns, and `close` it early if the caller is gone.
        """

    def turn(self) -> None:
        """Append the effects of what was handled since the last turn, and ask for one commit of them all."""

    def tick(self) -> None:
        """Do what time demands: expiry, rows that waited long enough for their file, trims. Every second or so."""

    @property
    def is_idle(self) -> bool:
        """Whether nobody waits for a commit: then `close` answers nobody, and may be called on another thread."""

    @property
    def unfiled(self) -> tuple[int, int]:
        """How many records are in the journal alone and not yet in the files of their streams, and their bytes."""

    def post_failure(self, error: EverlogError) -> None:
        """Have everybody who waits told of an error, and refuse everything from then on; from any thread."""

    def follow(self, followed: dict[str, Any], feed: Callable[[list[FeedEvent]], None] | None) -> None:
        """Call `feed` with the events of the streams that are `followed` then, in order, as they reach their level."""

    def answer_plain(self, prefix: bytes, send: Callable[[list[Asked]], None]) -> None:
        """Call `send` with plain requests that have an answer: 8 bytes of prefix, the id of the asker, a `Reply`."""

    @property
    def plain(self) -> PlainRequests | None:
        """Who decides plain requests without a call for each; None if nobody does."""

    def close(self) -> None:
        """Commit and apply what waits, so that the next owner finds it in files, and close the journal."""
