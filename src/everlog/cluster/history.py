"""A shard's committed batches from any offset on, from tail and bucket, with no gap.

The tail is looked at first, then the list: what leaves the tail in between is listed by then. Listed segments win. What
is gone by the time it is read was listed or dropped meanwhile, so all is looked at again.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import crc32c

from everlog.base import Records, StorageError, Unavailable
from everlog.cluster.database import ClusterDatabase
from everlog.cluster.ports import TABLES
from everlog.cluster.row_names import read_alone
from everlog.cluster.rows import ListedSegment, RowFacts, State
from everlog.cluster.schema import tail_name
from everlog.cluster.segment_list import read_list
from everlog.commitlog import HEADER_BYTES, read_segment
from everlog.tiering import Bucket, Database

if TYPE_CHECKING:
    import psycopg

    Cursor = psycopg.Cursor[tuple[Any, ...]]

READ_BYTES = 4 << 20  # of rows at once
_LOOKS = 20  # before a gap is called one
_WRITE_NOTHING = "select pg_logical_emit_message(true, 'everlog', '')"  # a record in the WAL, and in no table


@dataclass(frozen=True, slots=True)
class Stretch:
    """Batches that follow each other in one segment."""

    epoch: int
    segment: int
    bodies: list[bytes]


class Trimmed(Unavailable):
    """What was asked for is no longer kept; `start` is the first offset that is."""

    def __init__(self, shard: int, offset: int, start: int) -> None:
        super().__init__(f"offset {offset} of shard {shard} is no longer kept; it begins at {start}")
        self.start = start


def end_query(shard: int) -> str:
    """Return the query for where all that a shard has committed ends."""
    ends = [
        f"(select base + count as stop from {tail_name(shard, number)} order by base desc limit 1)"
        for number in range(TABLES)
    ]
    ends.append(f"select max(stop) from message_segments where shard = {shard} and state <> {State.CLAIMED}")
    ends.append(f"select max(stop) from message_gaps where shard = {shard}")
    return f"select max(stop) from ({' union all '.join(ends)}) as ends"


class ShardHistory:
    """What a shard has committed, as anybody may read it. For one thread at a time."""

    def __init__(
        self, database: ClusterDatabase, bucket: Bucket, shard: int, connection: Database | None = None
    ) -> None:
        self._bucket = bucket
        self._shard = shard
        self._is_shared = connection is not None
        self._connection = connection or database.connect()
        columns = "base, count, epoch, segment, crc, size"
        tables = [f"select {number} as number, {columns} from {tail_name(shard, number)}" for number in range(TABLES)]
        self._facts = f"select * from ({' union all '.join(tables)}) as rows where base + count > %s order by base"
        self._end = end_query(shard)

    @cached_property
    def gaps(self) -> dict[int, int]:
        """Offsets that were never given out: where each gap begins and what it ends before. No broker makes any."""

        def act(cursor: "Cursor") -> dict[int, int]:
            cursor.execute("select start, stop from message_gaps where shard = %s", (self._shard,))
            return dict(cursor.fetchall())

        return self._connection.call(act)

    def look(self, offset: int) -> tuple[list[RowFacts], list[ListedSegment]]:
        """Return the rows and the listed segments that end behind an offset, of which some may be both."""
        rows = self._connection.call(lambda cursor: self._read_facts(cursor, offset))
        return rows, self._connection.call(lambda cursor: read_list(cursor, self._shard, offset))

    def _read_facts(self, cursor: "Cursor", offset: int) -> list[RowFacts]:
        cursor.execute(self._facts.encode(), (offset,))
        return [RowFacts(*row) for row in cursor.fetchall()]

    def salt(self) -> int:
        """Return the shard's salt, which the checks of its frames begin with."""
        return self._shard_row()[0]

    def start(self) -> int:
        """Return the first offset that is kept."""
        return self._shard_row()[1]

    def end(self) -> int:
        """Return where all that is committed ends."""

        def act(cursor: "Cursor") -> int:
            cursor.execute(self._end.encode())
            found = cursor.fetchone()
            return int(found[0]) if found is not None and found[0] is not None else 0

        return self._connection.call(act)

    def make_certain(self) -> None:
        """Return when all that was seen so far is on the standbys too, which a look alone does not tell.

        A row whose commit was not confirmed can be seen, after a crash of the primary or a wait that was given up, and
        be lost by a failover. A transaction that writes waits for all before it.
        """
        self._connection.call(lambda cursor: cursor.execute(_WRITE_NOTHING))

    def _shard_row(self) -> tuple[int, int]:
        def act(cursor: "Cursor") -> tuple[int, int]:
            cursor.execute("select salt, start from message_shards where shard = %s", (self._shard,))
            found = cursor.fetchone()
            if found is None:
                raise StorageError(f"there is no shard {self._shard}", hint="make the tables first")
            return found[0], found[1]

        return self._connection.call(act)

    def read(self, offset: int) -> Stretch | None:
        """Return batches from the one that begins at an offset on, or None at the end of what is committed."""
        for _ in range(_LOOKS):
            rows, listed = self.look(offset)
            if not rows and not listed:
                return None
            start = self.start()
            if offset < start:
                raise Trimmed(self._shard, offset, start)
            found = self._from_bucket(offset, listed) or self._from_tail(offset, rows)
            if found is not None:
                return found
        raise StorageError(
            f"offset {offset} of shard {self._shard} is in neither tail nor bucket, though later ones are",
            hint="restore database and bucket from backups of the same time",
        )

    def _from_bucket(self, offset: int, listed: list[ListedSegment]) -> Stretch | None:
        segment = next((one for one in listed if one.base <= offset < one.end), None)
        data = None if segment is None else self._bucket.get(segment.name)
        if segment is None or data is None:
            return None
        if len(data) != segment.size or crc32c.crc32c(data[HEADER_BYTES:]) != segment.crc:
            raise StorageError(f"{segment.name} is not what was stored", hint="restore it from a backup")
        _, batches = read_segment(data, segment.name)
        bodies = [body for base, _, body in batches if base >= offset]
        if not any(base == offset for base, _, _ in batches):
            raise StorageError(f"no batch of {segment.name} begins at offset {offset}")
        return Stretch(segment.epoch, segment.base, bodies)

    def _from_tail(self, offset: int, rows: list[RowFacts]) -> Stretch | None:
        wanted: list[RowFacts] = []
        size = 0
        for row in rows:
            follows = row.base == (wanted[-1].end if wanted else offset)
            if follows and (not wanted or (row.segment == wanted[0].segment and size + row.size <= READ_BYTES)):
                wanted.append(row)
                size += row.size
            elif wanted:
                break
        bodies: list[bytes] = []
        for table in dict.fromkeys(row.table for row in wanted):
            bodies += self._bodies(table, [row for row in wanted if row.table == table])
        if not wanted or len(bodies) != len(wanted):
            return None
        return Stretch(wanted[0].epoch, wanted[0].segment, bodies)

    def _bodies(self, table: int, rows: list[RowFacts]) -> list[bytes]:
        query = f"select crc, body from {tail_name(self._shard, table)} where base between %s and %s order by base"

        def act(cursor: "Cursor") -> list[tuple[int, bytes]]:
            cursor.execute(query.encode(), (rows[0].base, rows[-1].base), binary=True)
            return cursor.fetchall()

        found = self._connection.call(act)
        if [crc for crc, _ in found] != [row.crc for row in rows]:
            return []
        if any(crc32c.crc32c(body) != crc for crc, body in found):
            raise StorageError(f"rows of shard {self._shard} from {rows[0].base} on are damaged", hint="restore them")
        return [body for _, body in found]

    def read_row(self, row: RowFacts) -> Records | None:
        """Return one batch of the tail, read without any other; None if it has left the tail."""
        query = f"select body, names from {tail_name(self._shard, row.table)} where base = %s and crc = %s"

        def act(cursor: "Cursor") -> tuple[Any, ...] | None:
            cursor.execute(query.encode(), (row.base, row.crc), binary=True)
            return cursor.fetchone()

        found = self._connection.call(act)
        return None if found is None else read_alone(found[0], found[1])

    def close(self) -> None:
        """Close the connection, unless others use it."""
        if not self._is_shared:
            self._connection.close()
