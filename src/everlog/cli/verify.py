"""`everlog verify` checks that every byte is what was written; `everlog repair` rebuilds side files."""

from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from everlog.cli.data_directory import Data, check_store, open_store
from everlog.commitlog import Damage, Origin, RealDisk, verify_directory
from everlog.sessions import TablesFound, check_tables
from everlog.store import store_identity


def verify(data: Data) -> int:
    """Check every byte of a data directory and say where something is wrong. Changes nothing; a broker may run."""
    table = Table("shard", "segments", "batches", "records", "bytes", "damage")
    damage: list[Damage] = []
    identity = store_identity(RealDisk(), str(data))
    for shard in track(_shards(data), "verifying", console=Console(stderr=True), transient=True):
        found = verify_directory(RealDisk(), str(shard), Origin(identity, _number(shard)))
        damage += found.damage
        counts = (found.segments, found.batches, found.records, found.checked_bytes, len(found.damage))
        table.add_row(shard.name, *(f"{count:,}" for count in counts))
    tables = data / "sessions.db"
    counted = check_tables(tables) if tables.exists() else TablesFound()
    if tables.exists():
        size = tables.stat().st_size
        table.add_row(tables.name, "", "", f"{counted.rows:,}", f"{size:,}", f"{len(counted.damage):,}")
    Console().print(table)
    for one in damage:
        print(one)
    for line in counted.damage:
        print(line)
    return int(bool(damage or counted.damage))


def repair(data: Data) -> int:
    """Rebuild side files that are missing or damaged. Logs are never changed; the broker must not be running."""
    with open_store(data, writable=True) as store:
        made = sum(shard.repair() for shard in store.shards)
    print(f"{made} side file{'' if made == 1 else 's'} rebuilt")
    return 0


def _shards(data: Path) -> list[Path]:
    check_store(data, "shard-*")
    return sorted(data.glob("shard-*"), key=_number)


def _number(shard: Path) -> int:
    return int(shard.name.partition("-")[2])
