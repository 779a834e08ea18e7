"""The tail of a message shard in PostgreSQL: a row is a batch that can be read alone, the shard's row is the fence.

Each insert locks the shard's row (`for share`) and names its epoch, in one statement; a takeover raises the epoch,
which waits for the insert under way. One connection writes a shard.
"""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from everlog.base import Fenced, StorageError
from everlog.cluster.database import ClusterDatabase
from everlog.cluster.ports import TABLES, TableFill, Takeover
from everlog.cluster.rows import State, TailRow
from everlog.cluster.schema import tail_name

if TYPE_CHECKING:
    import psycopg

    Cursor = psycopg.Cursor[tuple[Any, ...]]

_INSERT = """
with fence as (select epoch from message_shards where shard = %(shard)s for share)
insert into {table} (base, count, epoch, segment, nonce, crc, size, origins, names, body)
select %(base)s, %(count)s, %(epoch)s, %(segment)s, %(nonce)b, %(crc)s, %(size)s, %(origins)s::jsonb, %(names)b,
    %(body)b
from fence where epoch = %(epoch)s
on conflict do nothing returning current_setting('synchronous_standby_names')
"""


class PostgresTail:
    """A shard's tables, as one owner writes them."""

    insert_statement = _INSERT
    lock_statement = "select epoch, probe from message_shards where shard = %s for update"

    def __init__(self, database: ClusterDatabase, shard: int) -> None:
        self._database = database
        self._shard = shard
        self._writing = database.connect()
        self._inserts = [self.insert_statement.format(table=tail_name(shard, one)).encode() for one in range(TABLES)]

    def take_over(self, epoch: int, probe: int) -> Takeover:
        """Raise the shard's epoch, then look what is there."""
        standbys = self._writing.transact(lambda cursor: self._raise_epoch(cursor, epoch, probe))
        self._database.check_standbys(standbys)
        # Read after the new epoch is known to be stored: what is seen now is stored too, and nothing can come after.
        return self._writing.transact(lambda cursor: self._find(cursor, epoch))

    def _raise_epoch(self, cursor: "Cursor", epoch: int, probe: int) -> str:
        cursor.execute(self.lock_statement.encode(), (self._shard,))
        stored, by = _one(cursor)
        if stored > epoch or (stored == epoch and by != probe):
            raise Fenced(f"epoch {stored} of shard {self._shard} is not before {epoch}", hint="claim it again")
        cursor.execute(
            "update message_shards set epoch = %s, probe = %s where shard = %s "
            "returning current_setting('synchronous_standby_names')",
            (epoch, probe, self._shard),
        )
        return str(_one(cursor)[0])

    def _find(self, cursor: "Cursor", epoch: int) -> Takeover:
        cursor.execute("select epoch, start from message_shards where shard = %s for share", (self._shard,))
        stored, end = _one(cursor)
        if stored != epoch:
            raise self._replaced(epoch)
        fills, last_table, last_base, segment = [], 0, -1, 0
        for table in range(TABLES):
            name = tail_name(self._shard, table)
            cursor.execute(f"select coalesce(sum(size), 0), count(*), max(base + count) from {name}".encode())
            size, rows, stop = _one(cursor)
            fills.append(TableFill(size, rows, stop or 0))
            cursor.execute(f"select base, segment from {name} order by base desc limit 1".encode())
            found = cursor.fetchone()
            if found is not None and found[0] > last_base:
                last_table, last_base, segment = table, found[0], found[1]
            end = max(end, stop or 0)
        cursor.execute(
            "select stop, origins from message_segments where shard = %s and state <> %s order by stop desc limit 1",
            (self._shard, State.CLAIMED),
        )
        listed = cursor.fetchone()
        origins = _numbers(listed[1]) if listed is not None else {}
        end = max(end, listed[0] if listed is not None else 0)
        cursor.execute("select max(stop) from message_gaps where shard = %s", (self._shard,))
        end = max(end, _one(cursor)[0] or 0)
        if last_base >= 0:
            origins = self._origins(cursor, segment) or origins
        cursor.execute("select origin, final from message_origins where shard = %s", (self._shard,))
        closed = {int(origin): int(final) for origin, final in cursor.fetchall()}
        open_ones = {origin: number for origin, number in origins.items() if origin not in closed}
        return Takeover(end, open_ones, closed, fills, last_table)

    def _origins(self, cursor: "Cursor", segment: int, below: int | None = None) -> dict[int, int]:
        """Return the last number of each origin in a segment's rows, of which the first has all."""
        return read_origins(cursor, self._shard, segment, below)

    def insert(self, table: int, rows: Sequence[TailRow]) -> None:
        """Commit rows, by one round trip."""
        values = [self._values(row) for row in rows]
        statement = self._inserts[table]

        def act(cursor: "Cursor") -> str:
            if len(values) == 1:
                cursor.execute(statement, values[0])
                found = cursor.fetchone()
            else:
                cursor.executemany(statement, values, returning=True)
                found = cursor.fetchone()
                while found is not None and cursor.nextset():
                    found = cursor.fetchone()
            if found is None:
                raise self._replaced(rows[0].epoch)
            return str(found[0])

        self._database.check_standbys(self._writing.call(act))

    def settle(self, table: int, rows: Sequence[TailRow]) -> None:
        """Insert the rows that are missing, and write the shard's row in any case: that waits for all before it."""
        self._database.check_standbys(self._writing.transact(lambda cursor: self._settle(cursor, table, rows)))

    def _settle(self, cursor: "Cursor", table: int, rows: Sequence[TailRow]) -> str:
        for row in rows:
            cursor.execute(self._inserts[table], self._values(row))
        name = tail_name(self._shard, table)
        query = f"select base, nonce from {name} where base = any(%s)".encode()
        cursor.execute(query, ([row.base for row in rows],))
        found: dict[int, bytes] = dict(cursor.fetchall())
        cursor.execute(
            "update message_shards set probe = probe where shard = %s and epoch = %s "
            "returning current_setting('synchronous_standby_names')",
            (self._shard, rows[0].epoch),
        )
        written = cursor.fetchone()
        if written is None or any(found.get(row.base) != row.nonce for row in rows):
            raise self._replaced(rows[0].epoch)
        return str(written[0])

    def _values(self, row: TailRow) -> dict[str, Any]:
        return {
            "shard": self._shard,
            "base": row.base,
            "count": row.count,
            "epoch": row.epoch,
            "segment": row.segment,
            "nonce": row.nonce,
            "crc": row.crc,
            "size": row.size,
            "origins": json.dumps(row.origins),
            "names": row.names,
            "body": row.body,
        }

    def close_origin(self, origin: int, final: int, epoch: int) -> None:
        """Store the final number of an origin."""

        def act(cursor: "Cursor") -> None:
            cursor.execute(
                "select 1 from message_shards where shard = %s and epoch = %s for share", (self._shard, epoch)
            )
            if cursor.fetchone() is None:
                raise self._replaced(epoch)
            cursor.execute(
                "insert into message_origins (shard, origin, final) values (%s, %s, %s) "
                "on conflict (shard, origin) do update set final = message_origins.final returning final",
                (self._shard, origin, final),
            )
            if _one(cursor)[0] != final:
                raise StorageError(f"origin {origin} was closed with another number than {final}")

        self._writing.transact(act)

    def interrupt(self) -> None:
        """Make a commit that waits for a standby end soon, in doubt."""
        self._writing.interrupt()

    def close(self) -> None:
        """Close the connection."""
        self._writing.close()

    def _replaced(self, epoch: int) -> Fenced:
        return Fenced(f"epoch {epoch} of shard {self._shard} has been replaced", hint="another broker owns the shard")


def read_origins(cursor: "Cursor", shard: int, segment: int, below: int | None = None) -> dict[int, int]:
    """Return the last number of each origin in a segment's rows that begin below an offset; the first row has all."""
    numbers: dict[int, int] = {}
    tables = " union all ".join(
        f"select base, origins from {tail_name(shard, table)} where segment = %(segment)s" for table in range(TABLES)
    )
    query = f"select origins from ({tables}) as rows where base < %(below)s order by base"
    cursor.execute(query.encode(), {"segment": segment, "below": (1 << 62) if below is None else below})
    for (origins,) in cursor.fetchall():
        numbers.update(_numbers(origins))
    return numbers


def _numbers(origins: dict[str, int] | None) -> dict[int, int]:
    return {int(origin): number for origin, number in (origins or {}).items()}


def _one(cursor: "Cursor") -> tuple[Any, ...]:
    found = cursor.fetchone()
    assert found is not None
    return found
