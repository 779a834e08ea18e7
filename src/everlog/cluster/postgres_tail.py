"""The tails of message shards in PostgreSQL: a row is a batch that can be read alone, the shard's own row is the fence.

Each insert locks the shard's row (`for share`) and names its epoch, in one statement; a takeover raises the epoch,
which waits for the insert under way. One connection writes all shards of a broker, so no shard's row is locked by two
transactions, and rows of several shards go in one: a transaction never waits for a shard's row, it skips the shard
that is being taken over (`skip locked`). So one takeover holds up nobody else, and there is no order to deadlock in.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from everlog.base import Fenced, StorageError
from everlog.cluster.database import ClusterDatabase
from everlog.cluster.ports import TABLES, Outcome, ShardRows, TableFill, Takeover
from everlog.cluster.rows import State, TailRow
from everlog.cluster.schema import tail_name
from everlog.tiering import Statement

if TYPE_CHECKING:
    import psycopg

    Cursor = psycopg.Cursor[tuple[Any, ...]]

_INSERT = """
with fence as (select epoch from message_shards where shard = $1::integer for share skip locked),
written as (
    insert into {table} (base, count, epoch, segment, nonce, crc, size, origins, names, body)
    select $2::bigint, $3::integer, $4::bigint, $5::bigint, $6::bytea, $7::bigint, $8::integer, $9::jsonb, $10::bytea,
        $11::bytea
    from fence where epoch = $4 and ($12::bigint < 0 or exists (select from {table} where base = $12))
    on conflict do nothing returning 1
)
select (select epoch from fence), (select count(*) from written), current_setting('synchronous_standby_names')
"""
_FORMATS = (0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 1, 0)


class PostgresTail:
    """The tables of shards, as one broker writes them."""

    insert_statement = _INSERT
    lock_statement = "select epoch, probe from message_shards where shard = %s for update"

    def __init__(self, database: ClusterDatabase) -> None:
        self._database = database
        self._writing = database.connect()
        self._asking = database.connect()  # for what may wait for a shard's row
        self._inserts: dict[tuple[int, int], tuple[bytes, bytes]] = {}  # by shard and table: name, statement

    def take_over(self, shard: int, epoch: int, probe: int) -> Takeover:
        """Raise the shard's epoch, then look what is there."""
        standbys = self._asking.transact(lambda cursor: self._raise_epoch(cursor, shard, epoch, probe))
        self._database.check_standbys(standbys)
        # Read after the new epoch is known to be stored: what is seen now is stored too, and nothing can come after.
        return self._asking.transact(lambda cursor: self._find(cursor, shard, epoch))

    def _raise_epoch(self, cursor: "Cursor", shard: int, epoch: int, probe: int) -> str:
        cursor.execute(self.lock_statement.encode(), (shard,))
        stored, by = _one(cursor)
        if stored > epoch or (stored == epoch and by != probe):
            raise Fenced(f"epoch {stored} of shard {shard} is not before {epoch}", hint="claim it again")
        cursor.execute(
            "update message_shards set epoch = %s, probe = %s where shard = %s "
            "returning current_setting('synchronous_standby_names')",
            (epoch, probe, shard),
        )
        return str(_one(cursor)[0])

    def _find(self, cursor: "Cursor", shard: int, epoch: int) -> Takeover:
        cursor.execute("select epoch, start from message_shards where shard = %s for share", (shard,))
        stored, end = _one(cursor)
        if stored != epoch:
            raise replaced(shard, epoch)
        fills, last_table, last_base, segment = [], 0, -1, 0
        for table in range(TABLES):
            name = tail_name(shard, table)
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
            (shard, State.CLAIMED),
        )
        listed = cursor.fetchone()
        origins = _numbers(listed[1]) if listed is not None else {}
        end = max(end, listed[0] if listed is not None else 0)
        cursor.execute("select max(stop) from message_gaps where shard = %s", (shard,))
        end = max(end, _one(cursor)[0] or 0)
        if last_base >= 0:
            origins = read_origins(cursor, shard, segment) or origins
        cursor.execute("select origin, final from message_origins where shard = %s", (shard,))
        closed = {int(origin): int(final) for origin, final in cursor.fetchall()}
        open_ones = {origin: number for origin, number in origins.items() if origin not in closed}
        return Takeover(end, open_ones, closed, fills, last_table)

    def insert(self, parts: Sequence[ShardRows]) -> list[Outcome]:
        """Commit rows by one round trip."""
        statements: list[Statement] = []
        for part in parts:
            before = -1  # a row of a shard goes in only behind the one before it: all of them or none
            for row in part.rows:
                statements.append(self._statement(part, row, before))
                before = row.base
        answers = iter(self._writing.run(statements))
        outcomes = []
        standbys = b""
        for part in parts:
            mine = [next(answers) for _ in part.rows]
            standbys = mine[0][2] or b""
            if mine[0][0] is None:
                outcomes.append(Outcome.BUSY)
            else:
                is_there = all(written == b"1" for _, written, _ in mine)
                outcomes.append(Outcome.COMMITTED if is_there else Outcome.FENCED)
        self._database.check_standbys(standbys.decode())
        return outcomes

    def _statement(self, part: ShardRows, row: TailRow, before: int) -> Statement:
        name, query = self._insert_into(part.shard, part.table)
        values = [b"%d" % one for one in (part.shard, row.base, row.messages, row.epoch, row.segment)]
        values += [row.nonce, b"%d" % row.crc, b"%d" % row.size, _origins(row)]
        return Statement(name, query, [*values, row.names, row.body, b"%d" % before], _FORMATS)

    def _insert_into(self, shard: int, table: int) -> tuple[bytes, bytes]:
        found = self._inserts.get((shard, table))
        if found is None:
            name = tail_name(shard, table)
            found = self._inserts[shard, table] = name.encode(), self.insert_statement.format(table=name).encode()
        return found

    def settle(self, parts: Sequence[ShardRows]) -> list[Outcome]:
        """Insert the rows that are missing, and write the shards' rows in any case: that waits for all before it."""
        outcomes, standbys = self._writing.transact(lambda cursor: self._settle(cursor, parts))
        self._database.check_standbys(standbys)
        return outcomes

    def _settle(self, cursor: "Cursor", parts: Sequence[ShardRows]) -> tuple[list[Outcome], str]:
        # The locks come first and are never waited for, so two that settle can't deadlock.
        cursor.execute(
            "select shard, epoch from message_shards where shard = any(%s) order by shard for update skip locked",
            ([part.shard for part in parts],),
        )
        epochs: dict[int, int] = dict(cursor.fetchall())
        outcomes = [self._settle_one(cursor, part, epochs.get(part.shard)) for part in parts]
        written = [part.shard for part, one in zip(parts, outcomes, strict=True) if one is Outcome.COMMITTED]
        cursor.execute("update message_shards set probe = probe where shard = any(%s)", (written,))
        cursor.execute("select current_setting('synchronous_standby_names')")
        return outcomes, str(_one(cursor)[0])

    def _settle_one(self, cursor: "Cursor", part: ShardRows, stored: int | None) -> Outcome:
        if stored is None:
            return Outcome.BUSY
        if stored != part.epoch:
            return Outcome.FENCED
        name = tail_name(part.shard, part.table)
        for row in part.rows:
            cursor.execute(
                f"insert into {name} (base, count, epoch, segment, nonce, crc, size, origins, names, body) "
                "values (%s, %s, %s, %s, %b, %s, %s, %s::jsonb, %b, %b) on conflict do nothing".encode(),
                (row.base, row.messages, row.epoch, row.segment, row.nonce, row.crc, row.size, *_contents(row)),
            )
        cursor.execute(f"select base, nonce from {name} where base = any(%s)".encode(), ([r.base for r in part.rows],))
        found: dict[int, bytes] = dict(cursor.fetchall())
        is_mine = all(found.get(row.base) == row.nonce for row in part.rows)
        return Outcome.COMMITTED if is_mine else Outcome.FENCED

    def close_origin(self, shard: int, origin: int, final: int, epoch: int) -> None:
        """Store the final number of an origin."""

        def act(cursor: "Cursor") -> None:
            cursor.execute("select 1 from message_shards where shard = %s and epoch = %s for share", (shard, epoch))
            if cursor.fetchone() is None:
                raise replaced(shard, epoch)
            cursor.execute(
                "insert into message_origins (shard, origin, final) values (%s, %s, %s) "
                "on conflict (shard, origin) do update set final = message_origins.final returning final",
                (shard, origin, final),
            )
            if _one(cursor)[0] != final:
                raise StorageError(f"origin {origin} was closed with another number than {final}")

        self._asking.transact(act)

    def interrupt(self) -> None:
        """Make a commit that waits for a standby end soon, in doubt."""
        self._writing.interrupt()

    def close(self) -> None:
        """Close the connections."""
        self._writing.close()
        self._asking.close()


def _contents(row: TailRow) -> tuple[str, bytes, Any]:
    return _origins(row).decode(), row.names, row.body


def _origins(row: TailRow) -> bytes:
    """Return the numbers of origins as JSON."""
    return b"{%s}" % b", ".join([b'"%d": %d' % one for one in row.origins.items()])


def replaced(shard: int, epoch: int) -> Fenced:
    """Return why nothing more is committed at an epoch."""
    return Fenced(f"epoch {epoch} of shard {shard} has been replaced", hint="another broker owns the shard")


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
