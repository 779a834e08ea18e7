"""The list of segments in the bucket, and the tables of the tail that it makes superfluous.

A name is claimed before anything is stored under it, and has a random part, so none is used twice, not even after a
restored backup. Every change is made behind the shard's fence.
"""

import re
import secrets
from typing import TYPE_CHECKING, Any

from everlog.base import Fenced, StorageError
from everlog.cluster.database import ClusterDatabase
from everlog.cluster.ports import TABLES
from everlog.cluster.postgres_tail import read_origins
from everlog.cluster.rows import ListedSegment, State
from everlog.cluster.schema import tail_name

if TYPE_CHECKING:
    import psycopg

    Cursor = psycopg.Cursor[tuple[Any, ...]]

_LISTED = "select base, stop, epoch, size, crc, name from message_segments where shard = %s and state = %s"
_LOCK_WAIT = "100ms"  # for readers of a table that is to be emptied: who comes behind waits as long at most


_NAME = re.compile(r"shard-\d+/\d{20}-\d+-[0-9a-f]{16}\.log")


def segment_folder(shard: int) -> str:
    """Return the folder of the bucket that has a shard's segments."""
    return f"shard-{shard}"


def is_segment_name(name: str) -> bool:
    """Return whether an object is a segment by its name, and not somebody else's in the same folder."""
    return _NAME.fullmatch(name) is not None


def read_list(cursor: "Cursor", shard: int, offset: int) -> list[ListedSegment]:
    """Return the segments that end behind an offset, in order."""
    cursor.execute(f"{_LISTED} and stop > %s order by base".encode(), (shard, State.PRESENT, offset))
    return [ListedSegment(*row) for row in cursor.fetchall()]


class SegmentList:
    """A shard's list, as its owner writes it."""

    def __init__(self, database: ClusterDatabase, shard: int) -> None:
        self._shard = shard
        self._connection = database.connect()

    def read(self, offset: int) -> list[ListedSegment]:
        """Return the segments that end behind an offset, in order."""
        return self._connection.transact(lambda cursor: read_list(cursor, self._shard, offset))

    def claim(self, base: int, epoch: int) -> str:
        """Return a name for a segment that nothing was ever stored under."""
        name = f"{segment_folder(self._shard)}/{base:020d}-{epoch}-{secrets.token_hex(8)}.log"

        def act(cursor: "Cursor") -> None:
            self._fence(cursor, epoch)
            cursor.execute(
                "insert into message_segments (name, shard, base, epoch, state) values (%s, %s, %s, %s, %s)",
                (name, self._shard, base, epoch, State.CLAIMED),
            )

        self._connection.transact(act)
        return name

    def add(self, segment: ListedSegment, epoch: int) -> None:
        """List a segment that is in the bucket under a claimed name, with the last number of each origin."""

        def act(cursor: "Cursor") -> None:
            self._fence(cursor, epoch)
            cursor.execute(
                "update message_segments set state = %s, changed = clock_timestamp(), epoch = %s, stop = %s, "
                "size = %s, crc = %s, origins = %s::jsonb where name = %s and state in (%s, %s)",
                (
                    State.PRESENT, segment.epoch, segment.end, segment.size, segment.crc,
                    _json(self._origins(cursor, segment.end)), segment.name, State.CLAIMED, State.PRESENT,
                ),
            )  # fmt: skip
            if cursor.rowcount != 1:
                raise StorageError(f"{segment.name} was not claimed", hint="store the segment again")

        self._connection.transact(act)

    def _origins(self, cursor: "Cursor", end: int) -> dict[int, int]:
        """Return the last number of each origin below an offset, by the rows of the tail."""
        tables = " union all ".join(
            f"select base, segment from {tail_name(self._shard, table)}" for table in range(TABLES)
        )
        query = f"select segment from ({tables}) as rows where base < %s order by base desc limit 1"
        cursor.execute(query.encode(), (end,))
        found = cursor.fetchone()
        if found is None:
            raise StorageError(f"shard {self._shard} has no rows below {end}, so its origins are not known")
        return read_origins(cursor, self._shard, found[0], end)

    def empty(self, table: int, epoch: int, age_s: float) -> bool:
        """Empty one of the tail's tables if all in it has been listed for so long; return whether it was.

        A reader that looks at it just now is not waited for.
        """
        name = tail_name(self._shard, table)

        def act(cursor: "Cursor") -> bool:
            cursor.execute(f"set local lock_timeout = '{_LOCK_WAIT}'".encode())
            cursor.execute(f"lock table {name} in access exclusive mode".encode())
            self._fence(cursor, epoch)
            cursor.execute(
                f"select 1 from {name} as kept where not exists (select 1 from message_segments as listed "
                "where listed.shard = %s and listed.state <> %s and listed.base <= kept.base and kept.base + "
                "kept.count <= listed.stop and listed.changed <= clock_timestamp() - make_interval(secs => %s)) "
                "limit 1".encode(),
                (self._shard, State.CLAIMED, age_s),
            )
            if cursor.fetchone() is not None:
                return False
            cursor.execute(f"truncate {name}".encode())
            return True

        return self._connection.transact(act)

    def drop(self, below: int, epoch: int) -> None:
        """Let the history begin later: segments that end at or below an offset are looked for no more."""

        def act(cursor: "Cursor") -> None:
            self._fence(cursor, epoch)
            cursor.execute(
                "update message_segments set state = %s, changed = clock_timestamp() where shard = %s and state = %s "
                "and stop <= %s",
                (State.DROPPED, self._shard, State.PRESENT, below),
            )
            cursor.execute(
                "update message_shards set start = greatest(start, (select coalesce(max(stop), 0) from "
                "message_segments where shard = %s and state = %s)) where shard = %s",
                (self._shard, State.DROPPED, self._shard),
            )

        self._connection.transact(act)

    def behind_gap(self, offset: int | None) -> int | None:
        """Return where offsets go on behind a gap that begins at one, or None if none does."""

        def act(cursor: "Cursor") -> int | None:
            cursor.execute("select stop from message_gaps where shard = %s and start = %s", (self._shard, offset))
            found = cursor.fetchone()
            return None if found is None else int(found[0])

        return self._connection.transact(act)

    def with_ages(self) -> list[tuple[ListedSegment, float]]:
        """Return all listed segments in order, each with for how many seconds it has been listed."""

        def act(cursor: "Cursor") -> list[tuple[ListedSegment, float]]:
            cursor.execute(
                "select base, stop, epoch, size, crc, name, extract(epoch from clock_timestamp() - changed)::float8 "
                "from message_segments where shard = %s and state = %s order by base",
                (self._shard, State.PRESENT),
            )
            return [(ListedSegment(*row[:6]), row[6]) for row in cursor.fetchall()]

        return self._connection.transact(act)

    def names(self) -> set[str]:
        """Return all names that were claimed and are not forgotten."""

        def act(cursor: "Cursor") -> set[str]:
            cursor.execute("select name from message_segments where shard = %s", (self._shard,))
            return {name for (name,) in cursor.fetchall()}

        return self._connection.transact(act)

    def forgotten(self, dropped_s: float, claimed_s: float) -> list[str]:
        """Return the names of objects that were dropped, or claimed and never listed, so long ago.

        What was listed when a pin was stored stays as long as the pin holds.
        """

        def act(cursor: "Cursor") -> list[str]:
            cursor.execute(
                "select name from message_segments as old where shard = %s and ((state = %s and stop < (select "
                "max(stop) from message_segments where shard = old.shard) and changed < clock_timestamp() - "
                "make_interval(secs => %s) and not exists (select 1 from message_pins where since <= old.changed and "
                "until > clock_timestamp())) or (state = %s and changed < clock_timestamp() - "
                "make_interval(secs => %s)))",
                (self._shard, State.DROPPED, dropped_s, State.CLAIMED, claimed_s),
            )
            return [name for (name,) in cursor.fetchall()]

        return self._connection.transact(act)

    def forget(self, name: str, epoch: int) -> None:
        """Leave out a name whose object is deleted."""

        def act(cursor: "Cursor") -> None:
            self._fence(cursor, epoch)
            cursor.execute("delete from message_segments where name = %s and state <> %s", (name, State.PRESENT))

        self._connection.transact(act)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _fence(self, cursor: "Cursor", epoch: int) -> None:
        cursor.execute("select 1 from message_shards where shard = %s and epoch = %s for share", (self._shard, epoch))
        if cursor.fetchone() is None:
            raise Fenced(f"epoch {epoch} of shard {self._shard} has been replaced")


def _json(origins: dict[int, int]) -> str:
    return "{" + ", ".join(f'"{origin}": {number}' for origin, number in origins.items()) + "}"
