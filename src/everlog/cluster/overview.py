"""A cluster as an operator sees it, read from its database: brokers, who owns which shard, sessions, standbys."""

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from everlog.base import UsageError
from everlog.cluster.cluster_ownership import ClusterOwnership
from everlog.cluster.database import ClusterDatabase, standbys_demanded
from everlog.cluster.formats import about_of
from everlog.cluster.schema import Store
from everlog.cluster.session_schema import message_shard
from everlog.ownership import COORDINATOR

if TYPE_CHECKING:
    import psycopg

    Cursor = psycopg.Cursor[tuple[Any, ...]]

_HELD = "select holder, count(*) from sessions group by holder"
_STANDBYS = (
    "select count(*) filter (where sync_state in ('sync', 'quorum') and state = 'streaming'), "
    "count(*) filter (where sync_state is null) from pg_stat_replication"
)


class BrokerStatus(Struct, frozen=True, kw_only=True):
    """One living broker."""

    name: str
    incarnation: int
    link: str
    shards: int
    sessions: int
    coordinates: bool
    draining: bool
    clients: str  # how clients reach it, if they may be told
    formats: tuple[int, int]  # the lowest and the highest that it understands


class ClusterStatus(Struct, frozen=True, kw_only=True):
    """The whole cluster."""

    store: int
    shards: int
    format: int  # that is written: all of the living understand it
    owned: int  # shards that a living broker appends to
    unowned: list[int]
    brokers: list[BrokerStatus]
    sessions_without_broker: int  # they wait for their clients, on whichever broker
    standbys_demanded: int  # on how many a commit waits
    standbys_present: int | None  # that it could be on now; None if PostgreSQL does not tell this role
    replication_factor: int  # on how many servers of the database each acknowledged message is


def read_status(database: ClusterDatabase, store: Store) -> ClusterStatus:
    """Return how a cluster is."""
    ownership = ClusterOwnership(database)
    connection = database.connect()
    try:
        board = ownership.read()
        held, demanded, present, written = connection.transact(_read)
    finally:
        connection.close()
        ownership.close()
    owners = {shard: board.owner_of(message_shard(shard)) for shard in range(store.shards)}
    leader = board.owner_of(COORDINATOR)
    brokers = [
        BrokerStatus(
            name=member.name,
            incarnation=number,
            link=member.address,
            shards=sum(owner is not None and owner.incarnation == number for owner in owners.values()),
            sessions=held.get(number, 0),
            coordinates=leader is not None and leader.incarnation == number,
            draining=member.draining,
            clients=about_of(member).clients,
            formats=(about_of(member).format_min, about_of(member).format_max),
        )
        for number, member in sorted(board.members.items())
    ]
    unowned = [shard for shard, owner in owners.items() if owner is None]
    return ClusterStatus(
        store=store.identity,
        shards=store.shards,
        format=written,
        owned=store.shards - len(unowned),
        unowned=unowned,
        brokers=brokers,
        sessions_without_broker=sum(count for holder, count in held.items() if holder not in board.members),
        standbys_demanded=demanded,
        standbys_present=present,
        replication_factor=1 + demanded,
    )


def drain_broker(database: ClusterDatabase, name: str) -> int:
    """Have a broker give away all that it owns, and end; return its incarnation."""
    ownership = ClusterOwnership(database)
    try:
        members = ownership.read().members
        found = next((member for member in members.values() if member.name == name), None)
        if found is None:
            names = ", ".join(sorted(member.name for member in members.values())) or "none"
            raise UsageError(f"there is no broker {name!r}", hint=f"those that live: {names}")
        ownership.drain(found.incarnation)
        return found.incarnation
    finally:
        ownership.close()


def _read(cursor: "Cursor") -> tuple[dict[int, int], int, int | None, int]:
    cursor.execute(_HELD)
    held: dict[int, int] = dict(cursor.fetchall())
    cursor.execute("select current_setting('synchronous_standby_names')")
    names = cursor.fetchone()
    cursor.execute(_STANDBYS)
    present, hidden = cursor.fetchone() or (0, 0)
    cursor.execute("select format from message_store")
    (written,) = cursor.fetchone() or (1,)
    return held, standbys_demanded("" if names is None else names[0]), None if hidden else present, written
