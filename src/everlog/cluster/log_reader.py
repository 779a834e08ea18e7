"""All of a cluster's messages as somebody reads them who is no broker: where each shard's segments and rows are.

One connection, on one thread. The tail is looked at before the list, listed segments win, and offsets must join; what
was looked at is certain once a pin is stored, since that commit covers all commits before it. While the pin holds, no
object is deleted that was listed when it was stored.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from everlog.base import StorageError, Unavailable
from everlog.cluster.database import ClusterDatabase
from everlog.cluster.ports import TABLES
from everlog.cluster.rows import ListedSegment, State
from everlog.cluster.schema import Store, read_store, tail_name

if TYPE_CHECKING:
    import psycopg

    Cursor = psycopg.Cursor[tuple[Any, ...]]

READ_BYTES = 4 << 20  # of rows at once
_LOOKS = 20  # before a gap is called one
_HEAD_BYTES = 64  # of a batch, in which its times are


@dataclass(frozen=True, slots=True)
class TailSegment:
    """A segment of which the bucket has nothing yet: so many rows of the tail, from `base` to before `end`."""

    base: int
    end: int
    size: int
    rows: int


@dataclass(frozen=True, slots=True)
class ShardExtent:
    """What there is of a shard: segments in the bucket, then segments in the tail; `gaps` were never given out."""

    shard: int
    salt: int
    start: int
    end: int
    listed: tuple[ListedSegment, ...]
    tail: tuple[TailSegment, ...]
    gaps: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class RowRun:
    """Rows that follow each other in one segment, each as its body and its names: they can be read without others."""

    base: int
    end: int
    rows: tuple[tuple[bytes, bytes], ...]

    @property
    def size(self) -> int:
        """How many bytes they have."""
        return sum(len(body) + len(names) for body, names in self.rows)


class LogReader:
    """Reads the tables of a cluster's log, by one connection. For one thread at a time."""

    def __init__(self, database: ClusterDatabase) -> None:
        self._connection = database.connect()
        try:
            self.store: Store = read_store(database)
        except BaseException:
            self._connection.close()
            raise

    def look(self) -> list[ShardExtent]:
        """Return what each shard has now."""
        for _ in range(_LOOKS):
            tails = [self._connection.call(partial(_read_tail, shard=n)) for n in range(self.store.shards)]
            listed = self._connection.call(_read_lists)
            shards = self._connection.call(_read_shards)
            gaps = self._connection.call(_read_gaps)
            found = [_join(n, *shards[n], listed.get(n, []), tail, gaps.get(n, [])) for n, tail in enumerate(tails)]
            extents = [one for one in found if one is not None]
            if len(extents) == len(found):
                return extents
        raise StorageError(
            f"shard {found.index(None)} has offsets that are in neither tail nor bucket, though later ones are",
            hint="restore database and bucket from backups of the same time",
        )

    def runs(self, shard: int, segment: TailSegment, start: int, stop: int) -> Iterator[RowRun]:
        """Yield the rows of a segment that hold these offsets; raise `Left` if some are no longer in the tail."""
        tables = " union all ".join(
            f"select base, count, body, names from {tail_name(shard, table)} where segment = %(segment)s"
            for table in range(TABLES)
        )
        query = f"select * from ({tables}) as rows where base + count > %(start)s and base < %(stop)s order by base"
        at, stop = max(start, segment.base), min(stop, segment.end)
        several = max(1, READ_BYTES * segment.rows // max(1, segment.size))
        while at < stop:
            values = {"segment": segment.base, "start": at, "stop": stop, "limit": several}
            found = self._connection.call(partial(_read_rows, query=query, values=values))
            if not found or found[0][0] > at or any(one[0] + one[1] != two[0] for one, two in pairwise(found)):
                raise Left(f"rows of shard {shard} from {at} on have left the tail")
            end = found[-1][0] + found[-1][1]
            yield RowRun(found[0][0], end, tuple((body, names) for _, _, body, names in found))
            at = end

    def first_head(self, shard: int, segment: TailSegment) -> bytes | None:
        """Return the first bytes of the first batch of a segment; None if it has left the tail."""
        tables = " union all ".join(
            f"select base, substring(body from 1 for {_HEAD_BYTES}) as head from {tail_name(shard, table)} "
            "where segment = %(segment)s"
            for table in range(TABLES)
        )
        query = f"select head from ({tables}) as rows order by base limit 1"

        def act(cursor: "Cursor") -> bytes | None:
            cursor.execute(query.encode(), {"segment": segment.base}, binary=True)
            found = cursor.fetchone()
            return None if found is None else bytes(found[0])

        return self._connection.call(act)

    def place_of(self, shard: int, offset: int) -> ListedSegment | None:
        """Return the object that holds an offset, though it may be dropped by now; None if no object does."""

        def act(cursor: "Cursor") -> list[tuple[Any, ...]]:
            cursor.execute(
                "select base, stop, epoch, size, crc, name from message_segments where shard = %s and state <> %s "
                "and base <= %s and stop > %s order by state limit 1",
                (shard, State.CLAIMED, offset, offset),
            )
            return cursor.fetchall()

        found = self._connection.call(act)
        return ListedSegment(*found[0]) if found else None

    def pin(self, reader: str, seconds: float) -> int:
        """Have all objects that are listed now stay for so long; what was read before is certain when it returns."""

        def act(cursor: "Cursor") -> int:
            cursor.execute(
                "insert into message_pins (reader, until) values (%s, clock_timestamp() + make_interval(secs => %s)) "
                "returning number",
                (reader, seconds),
            )
            found = cursor.fetchone()
            assert found is not None
            return int(found[0])

        return self._connection.transact(act)

    def renew(self, pin: int, seconds: float) -> bool:
        """Let a pin hold for so long from now on; return False if it is gone."""

        def act(cursor: "Cursor") -> bool:
            cursor.execute(
                "update message_pins set until = clock_timestamp() + make_interval(secs => %s) where number = %s",
                (seconds, pin),
            )
            return cursor.rowcount == 1

        return self._connection.transact(act)

    def unpin(self, pin: int) -> None:
        """Take a pin away."""

        def act(cursor: "Cursor") -> None:
            cursor.execute("delete from message_pins where number = %s", (pin,))

        self._connection.transact(act)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def pin_folder(pin: int) -> str:
    """Return the folder of the bucket whose objects go with a pin."""
    return f"pins/{pin}"


class Left(Unavailable):
    """Rows were moved to the bucket while they were read: look again."""


def _read_tail(cursor: "Cursor", shard: int) -> list[tuple[int, int, int, int, int]]:
    tables = " union all ".join(
        f"select segment, base, count, size from {tail_name(shard, table)}" for table in range(TABLES)
    )
    query = (
        "select min(base), max(base + count), sum(size)::bigint, count(*), sum(count)::bigint "
        f"from ({tables}) as rows group by segment order by segment"
    )
    cursor.execute(query.encode())
    return cursor.fetchall()


def _read_lists(cursor: "Cursor") -> dict[int, list[ListedSegment]]:
    cursor.execute(
        "select shard, base, stop, epoch, size, crc, name from message_segments where state = %s order by shard, base",
        (State.PRESENT,),
    )
    found: dict[int, list[ListedSegment]] = {}
    for shard, *rest in cursor.fetchall():
        found.setdefault(shard, []).append(ListedSegment(*rest))
    return found


def _read_shards(cursor: "Cursor") -> dict[int, tuple[int, int]]:
    cursor.execute("select shard, salt, start from message_shards")
    return {shard: (salt, start) for shard, salt, start in cursor.fetchall()}


def _read_gaps(cursor: "Cursor") -> dict[int, list[tuple[int, int]]]:
    cursor.execute("select shard, start, stop from message_gaps order by shard, start")
    found: dict[int, list[tuple[int, int]]] = {}
    for shard, start, stop in cursor.fetchall():
        found.setdefault(shard, []).append((start, stop))
    return found


def _read_rows(cursor: "Cursor", query: str, values: dict[str, int]) -> list[tuple[Any, ...]]:
    cursor.execute(f"{query} limit %(limit)s".encode(), values, binary=True)
    return cursor.fetchall()


def _join(
    shard: int,
    salt: int,
    start: int,
    listed: list[ListedSegment],
    tail: list[tuple[int, int, int, int, int]],
    gaps: list[tuple[int, int]],
) -> ShardExtent | None:
    """Return what a shard has, or None if something is missing between its start and its end."""
    skips = dict(gaps)
    kept = [one for one in listed if one.end > start]
    at = skips.get(start, start)
    for one in kept:
        if one.base > at:
            return None
        at = skips.get(one.end, one.end)
    segments = []
    for base, end, size, rows, count in tail:
        if end <= at:
            continue
        if base > at or end - base != count:
            return None
        segments.append(TailSegment(base, end, size, rows))
        at = skips.get(end, end)
    return ShardExtent(shard, salt, start, at, tuple(kept), tuple(segments), tuple(gaps))
