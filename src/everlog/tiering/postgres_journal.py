"""The journal of a state shard in PostgreSQL (`docs/formats/postgres.md`): a row is a batch that can be read alone.

The shard's own row is the fence: each insert locks it (`for share`) and names its epoch, in one statement, and a
takeover raises it, which waits for the insert under way. One connection writes a shard. A commit that was not
confirmed is settled by a transaction that writes: it inserts the row if it is missing and changes the owner's probe, so
its clean return covers the row that may have been there already (a mere look would not wait for the standbys).
"""

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import crc32c

from everlog.base import Fenced, StorageError
from everlog.tiering.group_journal import GROUP_BYTES, GroupJournal
from everlog.tiering.journal_format import Record, decode_batch, encode_batch
from everlog.tiering.journal_writer import wall_clock_us
from everlog.tiering.postgres import Database, make_schema

if TYPE_CHECKING:
    from everlog.tiering.postgres import Cursor

_TABLES = """
create table if not exists journal_shards (
    shard text primary key, epoch bigint not null, start bigint not null, probe bigint not null default 0
);
create table if not exists journal_rows (
    shard text not null, base bigint not null, count integer not null, epoch bigint not null, nonce bytea not null,
    crc bigint not null, body bytea not null, primary key (shard, base)
);
alter table journal_rows alter column body set storage external;
"""
_INSERT = """
with fence as (select epoch from journal_shards where shard = %(shard)s for share)
insert into journal_rows (shard, base, count, epoch, nonce, crc, body)
select %(shard)s, %(base)s, %(count)s, %(epoch)s, %(nonce)s, %(crc)s, %(body)s from fence where epoch = %(epoch)s
on conflict do nothing
"""
_READ_ROWS = 16
_DELETED_AT_ONCE = 200


def make_journal_tables(url: str, schema: str = "everlog") -> None:
    """Make the tables of journals; no table is made or changed later."""
    make_schema(url, schema, _TABLES)


class PostgresWriter:
    """The owner's end of a journal in PostgreSQL."""

    insert = _INSERT
    lock = "select epoch, probe from journal_shards where shard = %s for update"

    def __init__(
        self, url: str, shard: str, epoch: int, schema: str = "everlog", now_us: Callable[[], int] = wall_clock_us
    ) -> None:
        self.epoch = epoch
        self.start = 0
        self.end = 0
        self._shard = shard
        self._now_us = now_us
        self._probe = int.from_bytes(os.urandom(7))  # by which it knows its own takeover again if the reply was lost
        self._writing = Database(url, schema)
        self._reading = Database(url, schema)
        self._pending: dict[str, Any] | None = None  # inserted, or perhaps: nobody said
        self._is_doubted = False
        self._trimmed = 0

    def take_over(self) -> None:
        """Raise the shard's epoch, which waits for what is being written; raise `Fenced` if it is not lower."""
        self._writing.transact(self._raise_epoch)
        # The end is read after the new epoch is known to be stored: what is seen now is stored too.
        self.start, self.end = self._writing.transact(self._find_end)

    def _raise_epoch(self, cursor: "Cursor") -> None:
        cursor.execute(
            "insert into journal_shards (shard, epoch, start) values (%s, 0, 0) on conflict do nothing", (self._shard,)
        )
        cursor.execute(self.lock, (self._shard,))
        epoch, probe = self._row(cursor)
        if epoch > self.epoch or (epoch == self.epoch and probe != self._probe):
            raise Fenced(f"epoch {epoch} of {self._shard} is not before epoch {self.epoch}", hint="claim it again")
        cursor.execute(
            "update journal_shards set epoch = %s, probe = %s where shard = %s", (self.epoch, self._probe, self._shard)
        )

    def _find_end(self, cursor: "Cursor") -> tuple[int, int]:
        cursor.execute("select epoch, start from journal_shards where shard = %s for share", (self._shard,))
        epoch, start = self._row(cursor)
        if epoch != self.epoch:
            raise Fenced(f"epoch {epoch} has replaced epoch {self.epoch} of {self._shard}")
        cursor.execute(
            "select base + count from journal_rows where shard = %s order by base desc limit 1", (self._shard,)
        )
        found = cursor.fetchone()
        return start, found[0] if found else start

    def write(self, records: Sequence[Record]) -> int:
        """Commit records as one row and return the committed end; raise `Fenced` if another owner has the shard."""
        if self._pending is None:
            body = encode_batch(records, self.end, self._now_us())
            self._pending = {
                "shard": self._shard,
                "base": self.end,
                "count": len(records),
                "epoch": self.epoch,
                "nonce": os.urandom(16),
                "crc": crc32c.crc32c(body),
                "body": body,
            }
        row = self._pending
        act = self._settle if self._is_doubted else self._insert
        self._is_doubted = True  # until it is confirmed
        self._writing.transact(lambda cursor: act(cursor, row))
        self._pending, self._is_doubted = None, False
        self.end += row["count"]
        return self.end

    def _insert(self, cursor: "Cursor", row: dict[str, Any]) -> None:
        cursor.execute(self.insert, row)
        if cursor.rowcount != 1:
            raise Fenced(f"epoch {self.epoch} of {self._shard} has been replaced")

    def _settle(self, cursor: "Cursor", row: dict[str, Any]) -> None:
        """Insert the row if it is missing, and write something in any case."""
        cursor.execute(self.insert, row)
        cursor.execute("select nonce from journal_rows where shard = %(shard)s and base = %(base)s", row)
        found = cursor.fetchone()
        cursor.execute(
            "update journal_shards set probe = probe where shard = %s and epoch = %s", (self._shard, self.epoch)
        )
        if cursor.rowcount != 1 or found is None or found[0] != row["nonce"]:
            raise Fenced(f"epoch {self.epoch} of {self._shard} has been replaced")

    def read(self, position: int, end: int, stream: str | None = None) -> Iterator[tuple[int, str, bytes]]:
        """Yield (position, stream name, effect) of committed records."""
        if position < self.start:
            raise StorageError(f"position {position} was trimmed; the journal begins at {self.start}")
        end = min(end, self.end)
        while position < end:
            rows = self._reading.transact(partial(self._rows, position=position, end=end))
            for base, count, crc, body in rows:
                if base > position or crc != crc32c.crc32c(body):
                    raise StorageError(f"position {position} of {self._shard} can't be read", hint="restore a backup")
                for found, name, effect in decode_batch(body, base, count):
                    if position <= found < end and (stream is None or name == stream):
                        yield found, name, effect
                position = base + count
            if not rows:
                raise StorageError(f"position {position} of {self._shard} is missing", hint="restore a backup")

    def _rows(self, cursor: "Cursor", position: int, end: int) -> list[tuple[int, int, int, bytes]]:
        cursor.execute(
            "select base, count, crc, body from journal_rows where shard = %s and base < %s and base >= coalesce("
            "(select max(base) from journal_rows where shard = %s and base <= %s), 0) order by base limit %s",
            (self._shard, end, self._shard, position, _READ_ROWS),
        )
        return cursor.fetchall()

    def trim(self, below: int) -> None:
        """Let the journal begin at the row that holds a position."""
        self.start = max(self.start, self._writing.transact(lambda cursor: self._trim(cursor, below)))

    def _trim(self, cursor: "Cursor", below: int) -> int:
        cursor.execute(
            "update journal_shards set start = coalesce((select max(base) from journal_rows where shard = %s and "
            "base <= %s), start) where shard = %s and epoch = %s returning start",
            (self._shard, below, self._shard, self.epoch),
        )
        found = cursor.fetchone()
        if found is None:
            raise Fenced(f"epoch {self.epoch} of {self._shard} has been replaced")
        return int(found[0])

    def tidy(self) -> int:
        """Delete some of the rows below the start."""
        if self._trimmed >= self.start:
            return 0
        deleted = self._writing.transact(self._delete)
        if deleted < _DELETED_AT_ONCE:
            self._trimmed = self.start
        return deleted

    def _delete(self, cursor: "Cursor") -> int:
        cursor.execute(
            "delete from journal_rows where shard = %s and base in (select base from journal_rows where shard = %s "
            "and base < %s order by base limit %s)",
            (self._shard, self._shard, self.start, _DELETED_AT_ONCE),
        )
        return cursor.rowcount

    def interrupt(self) -> None:
        """Make a commit that waits for a standby end soon, in doubt."""
        self._writing.interrupt()

    def close(self) -> None:
        """Close the connections."""
        self._writing.close()
        self._reading.close()

    def _row(self, cursor: "Cursor") -> tuple[int, int]:
        found = cursor.fetchone()
        assert found is not None
        return int(found[0]), int(found[1])


class PostgresJournal(GroupJournal):
    """A journal whose groups are rows."""

    def __init__(
        self,
        url: str,
        shard: str,
        epoch: int,
        *,
        schema: str = "everlog",
        group_s: float = 0.0,
        group_bytes: int = GROUP_BYTES,
    ) -> None:
        super().__init__(
            PostgresWriter(url, shard, epoch, schema), name=shard, group_s=group_s, group_bytes=group_bytes
        )
