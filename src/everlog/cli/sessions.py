"""`everlog sessions`: how far behind durable sessions are, from the tables of a data directory; and how to drop one."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer
from msgspec.structs import replace
from rich.table import Table

from everlog.base import StorageError, UsageError
from everlog.cli.client.async_client import AsyncClient
from everlog.cli.client.connect_options import NEVER, SESSION_AND_WILL, Target, parse_target
from everlog.cli.client.log_entry import show_time
from everlog.cli.data_directory import Data, open_store
from everlog.cli.option_groups import with_options
from everlog.cli.table_printer import cell, print_table
from everlog.cli.visible import visible_line
from everlog.sessions import (
    LIVE,
    Changes,
    SqliteTables,
    StoredSession,
    unpack_inflight,
    unpack_offsets,
    unpack_owed,
    unpack_subscription,
)
from everlog.store import LogStore, Positions
from everlog.topics import parse_filter

app = typer.Typer(rich_markup_mode=None, help="Durable sessions and shared groups, as they were last saved.")

_STEP_RECORDS, _STEP_BYTES = 100_000, 16 << 20


@dataclass(frozen=True, slots=True)
class _Saved:
    """The session tables and the log that they are about."""

    tables: SqliteTables
    store: LogStore

    def reached(self, packed: bytes, routed: Sequence[int]) -> Positions:
        """Return the offsets that a session or group has reached; one that is live is where the broker is."""
        found = unpack_offsets(packed)
        return tuple(
            found[shard] if shard < len(found) and found[shard] != LIVE else routed[shard] if shard < len(routed) else 0
            for shard in range(len(self.store.shards))
        )

    def lag(self, positions: Positions) -> int:
        """Return how many messages of any topic lie ahead of these positions."""
        return sum(one.lag(at) for one, at in zip(self.store.statistics(), positions, strict=True))

    def lost(self, positions: Positions) -> int:
        """Return how many offsets ahead of these positions retention has removed."""
        return sum(max(0, one.start - at) for one, at in zip(self.store.statistics(), positions, strict=True))


@contextmanager
def _saved(data: Path) -> Iterator[_Saved]:
    with open_store(data) as store:
        path = data / "sessions.db"
        if not path.exists():
            raise UsageError(f"{data} has no sessions", hint="the first run of a broker makes sessions.db")
        with closing(SqliteTables(path)) as tables:
            yield _Saved(tables, store)


@app.command("list")
def list_sessions(
    data: Data,
    limit: Annotated[int, typer.Option("-n", "--limit", min=1, help="This many, the most behind first.")] = 50,
) -> None:
    """List sessions and shared groups with how far behind they are."""
    with _saved(data) as saved:
        snapshot = saved.tables.load()
        rows = [(saved.reached(one.cursor.positions, snapshot.routed), one) for one in snapshot.sessions]
        behind = sorted(((saved.lag(at), saved.lost(at), one) for at, one in rows), key=lambda row: -row[0])
        table = Table("client id", "user", "state", "expires", "filters", "under way", "behind", "lost")
        for lag, lost, one in behind[:limit]:
            table.add_row(
                cell(one.row.client_id),
                cell(one.row.user or ""),
                _state(one),
                _expires(one),
                str(len(one.subscriptions)),
                str(len(unpack_inflight(one.cursor.inflight))),
                f"{lag:,}",
                f"{lost:,}" if lost else "",
            )
        print_table(table)
        if len(behind) > limit:
            print(f"{len(behind) - limit:,} more sessions")
        if snapshot.groups:
            table = Table("group", "filter", "not done", "behind", "lost")
            for group in snapshot.groups:
                at = saved.reached(group.positions, snapshot.routed)
                lost = saved.lost(at)
                table.add_row(
                    cell(group.name),
                    cell(group.filter),
                    f"{len(unpack_owed(group.owed)):,}",
                    f"{saved.lag(at):,}",
                    f"{lost:,}" if lost else "",
                )
            print_table(table)


@app.command()
def show(data: Data, client_id: Annotated[str, typer.Argument(metavar="CLIENT_ID", help="Whose session.")]) -> None:
    """Show one session: its state, and for each subscription how many messages wait."""
    with _saved(data) as saved:
        snapshot = saved.tables.load()
        one = next((one for one in snapshot.sessions if one.row.client_id == client_id), None)
        if one is None:
            raise UsageError(f"no session {client_id!r}", hint="see: everlog sessions list DATA_DIR")
        at = saved.reached(one.cursor.positions, snapshot.routed)
        lines = {
            "client id": client_id,
            "user": one.row.user or "-",
            "protocol": {3: "3.1", 4: "3.1.1"}.get(one.row.version, "5.0"),
            "state": _state(one),
            "expires": _expires(one),
            "under way": str(len(unpack_inflight(one.cursor.inflight))),
            "positions": ", ".join(f"{shard}:{offset}" for shard, offset in enumerate(at)),
        }
        for name, value in lines.items():
            print(f"{name:<11}{visible_line(value)}")
        if lost := saved.lost(at):
            print(f"{'lost':<11}{lost:,} messages before its position were removed by retention")
        table = Table("filter", "QoS", "waiting")
        for packed in one.subscriptions:
            subscribed = unpack_subscription(packed)
            begin = tuple(map(max, at, subscribed.since)) if subscribed.since else at
            waiting = "by its group" if subscribed.filter.startswith("$share/") else None
            table.add_row(
                cell(subscribed.filter),
                str(subscribed.qos),
                waiting or f"{_count(saved.store, subscribed.filter, begin):,}",
            )
        print_table(table)


def _count(store: LogStore, text: str, positions: Positions) -> int:
    """Return how many kept messages match a filter from these positions on."""
    reader, count = store.reader([parse_filter(text)]), 0
    while True:
        result = reader.read(positions, _STEP_RECORDS, _STEP_BYTES)
        count += result.count
        positions = result.positions
        if result.caught_up:
            return count


@app.command()
@with_options("target", parse_target, leave_out=(*SESSION_AND_WILL, "protocol_version", "client_id"))
def drop(
    client_id: Annotated[str, typer.Argument(metavar="CLIENT_ID", help="Whose session.")],
    data: Annotated[
        Path | None, typer.Option(metavar="DATA_DIR", help="In a data directory that no broker runs on.")
    ] = None,
    *,
    target: Target,
) -> int:
    """Drop a session and all it is owed. A running broker is asked by a clean start with its client id."""
    if data is not None:
        _drop_stored(data, client_id)
    else:
        asyncio.run(_drop_by_broker(client_id, target))
    print(f"dropped {visible_line(client_id)}")
    return 0


async def _drop_by_broker(client_id: str, target: Target) -> None:
    client = AsyncClient(replace(target.connect, client_id=client_id))
    await client.open(target.host, target.port, target.tls)
    await client.close()


def _drop_stored(data: Path, client_id: str) -> None:
    try:
        store = open_store(data, writable=True)  # fails if a broker has it
    except StorageError as error:
        raise UsageError(f"{error}", hint="leave --data out to ask the broker that runs") from None
    with store, closing(SqliteTables(data / "sessions.db")) as tables:
        if all(one.row.client_id != client_id for one in tables.load().sessions):
            raise UsageError(f"no session {client_id!r}", hint="see: everlog sessions list DATA_DIR")
        tables.apply(Changes(ended=(client_id,)), durable=True)


def _state(one: StoredSession) -> str:
    return "connected" if not one.row.away_us else f"away since {show_time(one.row.away_us)}"


def _expires(one: StoredSession) -> str:
    row = one.row
    if row.expiry_s == NEVER:
        return "never"
    if not row.away_us:
        return f"{timedelta(seconds=row.expiry_s)} after it leaves"
    left = row.away_us / 1_000_000 + row.expiry_s - time.time()
    return f"in {timedelta(seconds=int(left))}" if left > 0 else "now"
