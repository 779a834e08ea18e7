"""Which pack the file of each stream is in, and whether it is on the local disk too: tables in the shard's catalogue.

A row of a stream is written when its local file has what it tells of, so a trigger notes that the file is there. The
tables follow the manifest, whose records are applied in order, with the position they lead to, in one transaction or in
steps that may be taken again. A stream is **packed** if a pack that was named has its file; its local file may go if
the pack has all of its records.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from msgspec import msgpack

from everlog.streams.catalogue import Catalogue, Row
from everlog.tiering import AllPacks, PackedFile, PackRecord, StreamsRemoved, Told

_STEP = 500  # rows of a transaction: others wait for it
_BORN, _BYTES, _TIME = 3, 10, 7  # columns of a stream's row
_SCHEMA = """
CREATE TABLE IF NOT EXISTS tier (
    one INTEGER PRIMARY KEY CHECK (one = 1), manifest INTEGER NOT NULL, below INTEGER NOT NULL
);
INSERT OR IGNORE INTO tier VALUES (1, 0, 0);
CREATE TABLE IF NOT EXISTS packs (pack TEXT PRIMARY KEY, size INTEGER NOT NULL, used INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS unnamed (pack TEXT PRIMARY KEY, since_us INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS packed (
    name TEXT PRIMARY KEY, pack TEXT NOT NULL, offset INTEGER NOT NULL, length INTEGER NOT NULL,
    position INTEGER NOT NULL, epoch INTEGER NOT NULL, born INTEGER NOT NULL, facts BLOB NOT NULL,
    packed_us INTEGER NOT NULL, used_us INTEGER NOT NULL, is_local INTEGER NOT NULL, is_gone INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS packed_in ON packed (pack);
CREATE INDEX IF NOT EXISTS packed_idle ON packed (used_us, length) WHERE is_local;
CREATE INDEX IF NOT EXISTS packed_gone ON packed (name) WHERE is_gone;
CREATE TRIGGER IF NOT EXISTS stream_gone AFTER DELETE ON streams BEGIN
    UPDATE packed SET is_gone = 1 WHERE name = old.name;
END;
CREATE TRIGGER IF NOT EXISTS stream_filed AFTER INSERT ON streams BEGIN
    UPDATE packed SET is_local = 1, is_gone = 0
    WHERE name = new.name AND born = new.born AND (is_gone OR NOT is_local);
END;
CREATE TRIGGER IF NOT EXISTS packed_added AFTER INSERT ON packed BEGIN
    UPDATE packs SET used = used + new.length WHERE pack = new.pack;
END;
CREATE TRIGGER IF NOT EXISTS packed_moved AFTER UPDATE OF pack, length ON packed BEGIN
    UPDATE packs SET used = used - old.length WHERE pack = old.pack;
    UPDATE packs SET used = used + new.length WHERE pack = new.pack;
END;
CREATE TRIGGER IF NOT EXISTS packed_removed AFTER DELETE ON packed BEGIN
    UPDATE packs SET used = used - old.length WHERE pack = old.pack;
END;
"""
_PUT = """
INSERT INTO packed SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?9,
    EXISTS (SELECT 1 FROM streams WHERE name = ?1), NOT EXISTS (SELECT 1 FROM streams WHERE name = ?1)
WHERE true ON CONFLICT (name) DO UPDATE SET pack = excluded.pack, offset = excluded.offset, length = excluded.length,
    position = excluded.position, epoch = excluded.epoch, born = excluded.born, facts = excluded.facts,
    packed_us = excluded.packed_us, is_gone = excluded.is_gone,
    is_local = packed.is_local OR packed.born != excluded.born
"""
_CHANGED = """
SELECT streams.*, coalesce(packed.position, -1), coalesce(packed.packed_us, 0) FROM streams
LEFT JOIN packed ON packed.name = streams.name AND packed.born = streams.born
WHERE streams.last > ? AND (packed.position IS NULL OR streams.last >= packed.position) ORDER BY streams.last LIMIT ?
"""
_IDLE = """
SELECT packed.name FROM packed JOIN streams USING (name)
WHERE is_local AND streams.last < packed.position AND streams.born = packed.born ORDER BY used_us LIMIT ?
"""
_PLACE = "pack, offset, length, packed.position, packed.born, is_local"
_decode_row = msgpack.Decoder(list).decode


class Place(NamedTuple):
    """Where the file of a stream lies in the bucket."""

    pack: str
    offset: int
    length: int
    position: int  # records of the stream below it are in the file
    born: int
    is_local: bool


class Changed(NamedTuple):
    """A stream of which no pack has everything: its row, where its pack ends (-1: it has none), when that was made."""

    row: Row
    position: int
    packed_us: int

    @property
    def name(self) -> str:
        """The stream's name."""
        return str(self.row[0])

    @property
    def last(self) -> int:
        """The position of the last record that the row tells of."""
        return int(self.row[4])

    @property
    def born(self) -> int:
        """The position of the stream's first record."""
        return int(self.row[_BORN])

    @property
    def size(self) -> int:
        """How many bytes the stream has."""
        return int(self.row[_BYTES])

    @property
    def facts(self) -> bytes:
        """The row, as a manifest has it."""
        return msgpack.encode(self.row)


class PackIndex:
    """The tables. Any thread may call: the catalogue has one lock."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        catalogue.script(_SCHEMA)
        self.manifest: int  # the manifest's records below it are in the tables
        self.below: int  # everything of the shard below it is in packs
        self.manifest, self.below = catalogue.rows("SELECT manifest, below FROM tier")[0]

    # ---- following the manifest ----

    def take(self, position: int, told: Told, now_us: int) -> None:
        """Apply a record of the manifest, and note its position."""
        if isinstance(told, PackRecord):
            self._put(told, now_us)
        elif isinstance(told, StreamsRemoved):
            self._remove(told.streams)
        else:
            self._replace(told, now_us)
        self.manifest, self.below = position + 1, max(self.below, told.below)
        with self._catalogue.transaction() as connection:
            connection.execute("UPDATE tier SET manifest = ?, below = ?", (self.manifest, self.below))
            connection.execute("INSERT OR IGNORE INTO unnamed SELECT pack, ? FROM packs WHERE used = 0", (now_us,))
            connection.execute("DELETE FROM packs WHERE used = 0")

    def _put(self, record: PackRecord, now_us: int) -> None:
        rows = [_row_of(record.pack, file, now_us) for file in record.files]
        for at in range(0, len(rows), _STEP):
            with self._catalogue.transaction() as connection:
                connection.execute("INSERT OR IGNORE INTO packs VALUES (?, ?, 0)", (record.pack, record.size))
                connection.execute("DELETE FROM unnamed WHERE pack = ?", (record.pack,))
                connection.executemany(_PUT, rows[at : at + _STEP])

    def _remove(self, names: Sequence[str]) -> None:
        for at in range(0, len(names), _STEP):
            with self._catalogue.transaction() as connection:
                connection.executemany(
                    "DELETE FROM packed WHERE name = ?", [(name,) for name in names[at : at + _STEP]]
                )

    def _replace(self, told: AllPacks, now_us: int) -> None:
        """Have what is told and nothing else."""
        known = {file.stream for record in told.packs for file in record.files}
        self._remove([name for (name,) in self._catalogue.rows("SELECT name FROM packed") if name not in known])
        for record in told.packs:
            self._put(record, now_us)

    def begin_anew(self) -> None:
        """Forget everything: it is read again from the manifest's beginning, and no file is on the local disk."""
        with self._catalogue.transaction() as connection:
            for table in ("packed", "packs", "unnamed"):
                connection.execute(f"DELETE FROM {table}")
            connection.execute("UPDATE tier SET manifest = 0, below = 0")
        self.manifest = self.below = 0

    def let_all_go(self) -> None:
        """Note that no stream has a local file."""
        with self._catalogue.transaction() as connection:
            connection.execute("UPDATE packed SET is_local = 0")

    def all(self) -> AllPacks:
        """Return a record that tells everything."""
        columns = "name, offset, length, position, epoch, facts"
        sizes = dict(self._catalogue.rows("SELECT pack, size FROM packs"))
        records = []
        for pack, size in sizes.items():
            found = self._catalogue.rows(f"SELECT {columns} FROM packed WHERE pack = ?", (pack,))
            records.append(PackRecord(pack, size, [PackedFile(*row) for row in found]))
        return AllPacks(records, self.below)

    # ---- questions ----

    def place(self, name: str) -> Place | None:
        """Return where a stream's file lies in the bucket, or None."""
        rows = self._catalogue.rows(f"SELECT {_PLACE} FROM packed WHERE name = ? AND NOT is_gone", (name,))
        return Place(*rows[0]) if rows else None

    def changed(self, after: int, limit: int) -> list[Changed]:
        """Return streams of which no pack has everything and whose last record is above a position, in that order."""
        rows = self._catalogue.rows(_CHANGED, (after, limit))
        return [Changed(row[:-2], *row[-2:]) for row in rows]

    def gone(self, limit: int) -> list[str]:
        """Return streams that were removed and that packs still have."""
        return [row[0] for row in self._catalogue.rows("SELECT name FROM packed WHERE is_gone LIMIT ?", (limit,))]

    def sparse(self, ratio: float, limit: int) -> list[tuple[str, Place, bytes]]:
        """Return streams, with their facts, in packs of which less than this part is used: worth packing again."""
        rows = self._catalogue.rows("SELECT pack FROM packs WHERE used < size * ? ORDER BY used LIMIT 20", (ratio,))
        found: list[tuple[str, Place, bytes]] = []
        query = f"SELECT {_PLACE}, facts, packed.name FROM packed JOIN streams USING (name)"
        query += " WHERE pack = ? AND streams.last < packed.position LIMIT ?"
        for (pack,) in rows:
            for *place, facts, name in self._catalogue.rows(query, (pack, limit - len(found))):
                found.append((name, Place(*place), facts))
        return found

    def packs(self) -> set[str]:
        """Return the packs that streams are in."""
        return {row[0] for row in self._catalogue.rows("SELECT pack FROM packs")}

    # ---- local files ----

    def local(self) -> tuple[int, int]:
        """Return how many packed streams have a local file, and about how many bytes those have in packs."""
        count, size = self._catalogue.rows("SELECT count(*), coalesce(sum(length), 0) FROM packed WHERE is_local")[0]
        return count, size

    def idle(self, limit: int) -> list[str]:
        """Return streams whose local files may go, the least recently used first."""
        return [row[0] for row in self._catalogue.rows(_IDLE, (limit,))]

    def set_local(self, names: Iterable[str], *, is_local: bool, now_us: int = 0) -> None:
        """Note that files of streams are on the local disk, or are not."""
        with self._catalogue.transaction() as connection:
            connection.executemany(
                "UPDATE packed SET is_local = ?1, used_us = max(used_us, ?2) WHERE name = ?3",
                [(is_local, now_us, name) for name in names],
            )

    def use(self, names: Iterable[str], now_us: int) -> None:
        """Note that files were used."""
        with self._catalogue.transaction() as connection:
            connection.executemany("UPDATE packed SET used_us = ? WHERE name = ?", [(now_us, name) for name in names])

    # ---- packs that nothing names ----

    def see_unnamed(self, packs: Iterable[str], now_us: int) -> None:
        """Note packs that are in the bucket and that nothing names."""
        with self._catalogue.transaction() as connection:
            connection.executemany("INSERT OR IGNORE INTO unnamed VALUES (?, ?)", [(one, now_us) for one in packs])

    def unnamed(self, before_us: int) -> list[str]:
        """Return packs that nothing has named since a time."""
        query = "SELECT pack FROM unnamed WHERE since_us <= ? AND pack NOT IN (SELECT pack FROM packs)"
        return [row[0] for row in self._catalogue.rows(query, (before_us,))]

    def forget_unnamed(self, packs: Iterable[str]) -> None:
        """Forget packs that were deleted."""
        with self._catalogue.transaction() as connection:
            connection.executemany("DELETE FROM unnamed WHERE pack = ?", [(one,) for one in packs])


def row_of_facts(facts: bytes) -> Row:
    """Return the catalogue's row of a stream from what a manifest has of it."""
    return tuple(_decode_row(facts))


def time_of_row(row: Row) -> int:
    """Return the time of the last record that a row tells of."""
    return int(row[_TIME])


def _row_of(pack: str, file: PackedFile, now_us: int) -> Row:
    born = row_of_facts(file.facts)[_BORN]
    return (file.stream, pack, file.offset, file.length, file.position, file.epoch, born, file.facts, now_us)
