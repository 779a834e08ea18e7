"""Brokers of a cluster on the test's own event loop: a real database, a log that is followed, links without sockets.

The first broker owns all shards unless a test says otherwise.
"""

import asyncio
from types import TracebackType
from typing import Any

import psycopg

from everlog.base import EverlogError
from everlog.broker import Broker
from everlog.cluster import (
    ClusterDatabase,
    ClusterLog,
    ClusterSettings,
    GroupClaims,
    GroupHolding,
    PostgresTables,
    SessionClaims,
    SessionHolding,
    make_message_tables,
    make_session_tables,
)
from everlog.ownership import PostgresOwnership, make_ownership_tables
from everlog.tiering import Database, MemoryBucket
from tests.brokers import serve_on
from tests.fake_peers import FakeLinks
from tests.inside import Inside
from tests.postgres_server import new_schema, shared_server
from tests.restarts import Client

SHARDS = 2


class ClusterNode:
    """One broker of the cluster, listening on `port`."""

    def __init__(self, cluster: "BrokerCluster", name: str, folder: str) -> None:
        self.cluster = cluster
        self.name = name
        self.incarnation = cluster.ownership.join(name, f"{name}:1")
        database = cluster.database
        self.log = ClusterLog.join(f"{folder}/{name}-{self.incarnation}", database, cluster.bucket, cluster.settings)
        self.follow = self.log.catch_up
        self.overruled: list[EverlogError] = []
        self.tables_database = Database(database.url, database.schema)
        self.claims_database = Database(database.url, database.schema)
        self.tables = PostgresTables(self.tables_database, self.incarnation, SHARDS)
        self.claims = SessionClaims(self.claims_database, self.incarnation, SHARDS)
        self.peers = cluster.links.join(self.incarnation)
        self.holding = SessionHolding(
            self.claims, self.peers, lambda: self.follow(), self.overruled.append, **cluster.holding_options
        )
        self.groups_database = Database(database.url, database.schema)
        group_claims = GroupClaims(self.groups_database, self.incarnation, SHARDS)
        self.groups = GroupHolding(group_claims, self.peers, lambda: self.follow(), self.overruled.append)
        parts: dict[str, Any] = {"holding": self.holding, "dealers": self.groups}
        self.broker = Broker(self.log, tables=self.tables, **parts, **{"keep": [("#", 0)], **cluster.broker_options})
        self.inside = Inside(self.broker)
        self.is_running = True

    async def start(self) -> None:
        self.broker.start()
        self._server, self.port = await serve_on(self.broker)

    def own(self, *shards: int) -> None:
        """Own shards from now on."""
        self.cluster.epoch += 1
        self.log.own(dict.fromkeys(shards, self.cluster.epoch), self.incarnation)

    def stop_following(self) -> None:
        """Take in nothing that others commit."""
        for shard in self.log.cluster_shards:
            vars(shard)["catch_up"] = lambda shard=shard: shard.log.committed

    def go_on_following(self) -> None:
        """Take it in again."""
        for shard in self.log.cluster_shards:
            del vars(shard)["catch_up"]

    async def client(self, client_id: str, **connect: Any) -> Client:
        client = await Client.open(self.port, client_id, **connect)
        self.cluster.clients.append(client)
        return client

    async def saved(self) -> None:
        """Everything that has changed is durable."""
        await self.inside.save()

    async def stop(self) -> None:
        """End in order."""
        if self.is_running:
            self.is_running = False
            self._server.close()
            await self.broker.stop()
            await self._server.wait_closed()
            await self._close()

    async def kill(self) -> None:
        """End as a crash does, and be declared dead: nothing more is written, and no link answers."""
        self.is_running = False
        self.cluster.links.leave(self.incarnation)
        self.cluster.declare_dead(self.incarnation)
        self._server.close()
        await self._cut_off()
        await self._close()

    async def _cut_off(self) -> None:
        """Stop everything without a last word."""
        self.holding.is_over = self.groups.is_over = True
        assert self.broker.write_behind is not None
        self.broker.write_behind.is_over = True
        for connection in list(self.inside.connections):
            if connection.output.transport is not None:
                connection.output.transport.abort()
        await self.broker.stop()

    async def _close(self) -> None:
        await asyncio.to_thread(self.log.close)
        self.tables_database.close()
        self.claims_database.close()
        self.groups_database.close()


class BrokerCluster:
    """`async with BrokerCluster(folder) as cluster:`; `join` adds a broker."""

    settings = ClusterSettings(poll_s=0.02)

    def __init__(self, folder: Any, **options: Any) -> None:
        self.folder = str(folder)
        self.holding_options: dict[str, Any] = {}
        self.broker_options: dict[str, Any] = options
        self.links = FakeLinks()
        self.bucket = MemoryBucket()
        self.nodes: list[ClusterNode] = []
        self.clients: list[Client] = []
        self.epoch = 0

    async def __aenter__(self) -> "BrokerCluster":
        self.database = ClusterDatabase(shared_server().url, new_schema())
        make_message_tables(self.database.url, SHARDS, self.database.schema)
        make_ownership_tables(self.database.url, self.database.schema)
        make_session_tables(self.database.url, self.database.schema)
        self.ownership = PostgresOwnership(self.database.url, self.database.schema)
        options = f"-c search_path={self.database.schema}"
        self.plain = psycopg.connect(self.database.url, autocommit=True, options=options)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        for node in reversed(self.nodes):
            await node.stop()
        for client in self.clients:
            await client.drop()
        self.ownership.close()
        self.plain.close()

    async def join(self, name: str) -> ClusterNode:
        """Return a broker that has joined; the first one owns all shards."""
        node = ClusterNode(self, name, self.folder)
        if not self.nodes:
            node.own(*range(SHARDS))
        self.nodes.append(node)
        await node.start()
        return node

    def declare_dead(self, incarnation: int) -> None:
        self.plain.execute("update incarnations set is_alive = false where number = %s", (incarnation,))

    def rows(self, query: str, *values: Any) -> list[Any]:
        """Return what the database has by now."""
        return self.plain.execute(query.encode(), values).fetchall()

    def holders(self) -> dict[str, int]:
        """Return the holder of each client id."""
        return dict(self.rows("select client_id, holder from sessions"))
