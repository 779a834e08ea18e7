"""`everlog sessions`: how far behind durable sessions are, from the tables of a data directory; and how to drop one."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec.structs import replace
from rich.table import Table

from everlog.base import StorageError, UsageError
from everlog.cli.client.async_client import AsyncClient
from everlog.cli.client.connect_options import NEVER, OF_PUB_AND_SUB, Target, parse_target
from everlog.cli.client.log_entry import show_time
from everlog.cli.data_directory import Data, data_of_settings, open_store
from everlog.cli.option_groups import with_options
from everlog.cli.table_printer import AsJson, cell, print_json, print_table
from everlog.cli.visible import visible_line
from everlog.cli.waiting import WaitingCounter, count_matching
from everlog.sessions import (
    LIVE,
    Changes,
    GroupRow,
    JournaledTables,
    SqliteTables,
    StoredSession,
    SubscriptionRow,
    saved_tables,
    unpack_inflight,
    unpack_offsets,
    unpack_owed,
    unpack_subscription,
)
from everlog.store import LogStore, Positions

app = typer.Typer(rich_markup_mode=None, help="Durable sessions and shared groups, as they were last saved.")

_SHARED = "$share/"


@dataclass(frozen=True, slots=True)
class _Saved:
    """The session tables and the log that they are about."""

    tables: SqliteTables
    store: LogStore
    counter: WaitingCounter

    def session(self, one: StoredSession, at: Positions) -> dict[str, Any]:
        """Return what there is to say of a session that has reached these positions."""
        subscribed = [unpack_subscription(packed) for packed in one.subscriptions]
        own = [sub for sub in subscribed if not sub.filter.startswith(_SHARED)]
        since = [sub.since for sub in own if sub.since]
        return {
            "client_id": one.row.client_id,
            "user": one.row.user,
            "version": one.row.version,
            "away_us": one.row.away_us or None,
            "expiry_s": one.row.expiry_s,
            "filters": len(subscribed),
            "under_way": len(unpack_inflight(one.cursor.inflight)),
            "waiting": self.counter.count([sub.filter for sub in own], at, self.lag(at), since),
            "lost": self.lost(at),
        }

    def group(self, one: GroupRow, at: Positions) -> dict[str, Any]:
        """Return what there is to say of a shared group that has reached these positions."""
        return {
            "group": one.name,
            "filter": one.filter,
            "not_done": len(unpack_owed(one.owed)),
            "waiting": self.counter.count([one.filter], at, self.lag(at)),
            "lost": self.lost(at),
        }

    def subscription(self, packed: SubscriptionRow, at: Positions) -> dict[str, Any]:
        """Return what there is to say of a subscription, with exactly what waits for it; None for that of a group."""
        subscribed = unpack_subscription(packed)
        begin = tuple(map(max, at, subscribed.since)) if subscribed.since else at
        of_group = subscribed.filter.startswith(_SHARED)
        waiting = None if of_group else count_matching(self.store, [subscribed.filter], begin)
        return {"filter": subscribed.filter, "qos": subscribed.qos, "waiting": waiting}

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
        with closing(saved_tables(path)) as tables:
            yield _Saved(tables, store, WaitingCounter(store))


@app.command("list")
def list_sessions(
    data: Data,
    limit: Annotated[int, typer.Option("-n", "--limit", min=1, help="This many, the most behind first.")] = 50,
    json: AsJson = False,
) -> None:
    """List sessions and shared groups with how many messages wait for them."""
    with _saved(data) as saved:
        snapshot = saved.tables.load()
        found = [(saved.reached(one.cursor.positions, snapshot.routed), one) for one in snapshot.sessions]
        found.sort(key=lambda one: -saved.lag(one[0]))
        rows = [saved.session(one, at) for at, one in found[:limit]]
        rows.sort(key=lambda row: -row["waiting"].messages)
        groups = [saved.group(one, saved.reached(one.positions, snapshot.routed)) for one in snapshot.groups]
    if json:
        print_json(_plain(row) for row in (*rows, *groups))
        return
    table = Table("client id", "user", "state", "expires", "filters", "under way", "waiting", "lost")
    for row in rows:
        table.add_row(
            cell(row["client_id"]),
            cell(row["user"] or ""),
            _state(row["away_us"]),
            _expires(row["away_us"], row["expiry_s"]),
            str(row["filters"]),
            str(row["under_way"]),
            str(row["waiting"]),
            f"{row['lost']:,}" if row["lost"] else "",
        )
    print_table(table)
    if len(found) > limit:
        print(f"{len(found) - limit:,} more sessions")
    if groups:
        table = Table("group", "filter", "not done", "waiting", "lost")
        for row in groups:
            lost = f"{row['lost']:,}" if row["lost"] else ""
            names = (cell(row["group"]), cell(row["filter"]))
            table.add_row(*names, f"{row['not_done']:,}", str(row["waiting"]), lost)
        print_table(table)


@app.command()
def show(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[DATA_DIR] CLIENT_ID",
            help="The data directory, by default that of the settings, and whose session.",
        ),
    ],
    json: AsJson = False,
) -> None:
    """Show one session: its state, and for each subscription how many messages wait."""
    if len(words) > 2:
        raise UsageError("more than a data directory and a client id", hint="everlog sessions show DATA_DIR CLIENT_ID")
    client_id, data = words[-1], Path(words[0]) if len(words) == 2 else data_of_settings()
    with _saved(data) as saved:
        snapshot = saved.tables.load()
        one = next((one for one in snapshot.sessions if one.row.client_id == client_id), None)
        if one is None:
            raise _unknown(client_id)
        at = saved.reached(one.cursor.positions, snapshot.routed)
        row, waits = saved.session(one, at), [saved.subscription(packed, at) for packed in one.subscriptions]
    if json:
        print_json([_plain(row) | {"positions": list(at), "subscriptions": waits}])
        return
    lines = {
        "client id": client_id,
        "user": row["user"] or "-",
        "protocol": {3: "3.1", 4: "3.1.1"}.get(row["version"], "5.0"),
        "state": _state(row["away_us"]),
        "expires": _expires(row["away_us"], row["expiry_s"]),
        "under way": str(row["under_way"]),
        "positions": ", ".join(f"{shard}:{offset}" for shard, offset in enumerate(at)),
    }
    for name, value in lines.items():
        print(f"{name:<11}{visible_line(value)}")
    if row["lost"]:
        print(f"{'lost':<11}{row['lost']:,} messages before its position were removed by retention")
    table = Table("filter", "QoS", "waiting")
    for wait in waits:
        count = "by its group" if wait["waiting"] is None else f"{wait['waiting']:,}"
        table.add_row(cell(wait["filter"]), str(wait["qos"]), count)
    print_table(table)


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row for JSON."""
    waiting = row["waiting"]
    return {**row, "waiting": waiting.messages, "exact": waiting.exact}


@app.command()
@with_options("target", parse_target, leave_out=(*OF_PUB_AND_SUB, "protocol_version", "client_id"))
def drop(
    client_id: Annotated[str, typer.Argument(metavar="CLIENT_ID", help="Whose session.")],
    data: Annotated[
        Path | None, typer.Option(metavar="DATA_DIR", help="In a data directory that no broker runs on.")
    ] = None,
    *,
    target: Target,
) -> int:
    """Drop a session and all it is owed. A running broker is asked by a connection with its client id."""
    if data is not None:
        _drop_stored(data, client_id)
    else:
        asyncio.run(_drop_by_broker(client_id, target))
    print(f"dropped {visible_line(client_id)}")
    return 0


async def _drop_by_broker(client_id: str, target: Target) -> None:
    """Resume the session, to see whether there is one; it ends with the connection, since no expiry is asked for."""
    sparing = replace(target.connect.properties, receive_maximum=1)  # little of what it is owed is on its way to us
    connect = replace(target.connect, client_id=client_id, clean_start=False, properties=sparing)
    client = AsyncClient(connect)
    connack = await client.open(target.host, target.port, target.tls)
    await client.close()
    if not connack.session_present:
        raise _unknown(client_id)


def _drop_stored(data: Path, client_id: str) -> None:
    try:
        store = open_store(data, writable=True)  # fails if a broker has it
    except StorageError as error:
        raise UsageError(f"{error}", hint="leave --data out to ask the broker that runs") from None
    with store, closing(JournaledTables(data / "sessions.db")) as tables:
        if all(one.row.client_id != client_id for one in tables.load().sessions):
            raise _unknown(client_id)
        tables.apply(Changes(ended=(client_id,)), durable=True)


def _unknown(client_id: str) -> UsageError:
    return UsageError(f"no session {client_id!r}", hint="see: everlog sessions list DATA_DIR")


def _state(away_us: int | None) -> str:
    return "connected" if not away_us else f"away since {show_time(away_us)}"


def _expires(away_us: int | None, expiry_s: int) -> str:
    if expiry_s == NEVER:
        return "never"
    if not away_us:
        return f"{timedelta(seconds=expiry_s)} after it leaves"
    left = away_us / 1_000_000 + expiry_s - time.time()
    return f"in {timedelta(seconds=int(left))}" if left > 0 else "now"
