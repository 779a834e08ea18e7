"""A cluster of one broker with messages in it, for readers of its tail and bucket."""

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import psycopg

from everlog.base import MessageColumns, TopicTable
from everlog.cluster import ClusterDatabase, ClusterLog, ClusterSettings, make_message_tables, make_reader
from everlog.commitlog import LogSettings
from everlog.mqtt import Decoder, Publish, encode
from everlog.tiering import DirectoryBucket
from tests.postgres_server import new_schema, shared_server

SEGMENT_BYTES = 20_000
RUN = 50


class WrittenCluster:
    """A cluster whose only broker owns all shards; its bucket is a directory."""

    def __init__(self, folder: Path, shards: int = 2, **settings: Any) -> None:
        server = shared_server()
        self.schema = new_schema()
        self.database = ClusterDatabase(server.url, self.schema)
        make_message_tables(server.url, shards, self.schema)
        self.place = folder / "bucket"
        self.bucket = DirectoryBucket(str(self.place))
        self.settings = ClusterSettings(
            log=LogSettings(segment_bytes=SEGMENT_BYTES), kept_s=0.0, poll_s=3600.0, **settings
        )
        self.folder = folder / "broker"
        self.log = self.join(self.folder)
        self.log.own(dict.fromkeys(range(shards), 1), 1)
        self.more = {"bucket": str(self.place), "schema": self.schema}
        self.options = {"path": server.url, **self.more}
        self._table = TopicTable()

    def join(self, folder: Path) -> ClusterLog:
        """Open a log of the cluster."""
        return ClusterLog.join(str(folder), self.database, self.bucket, self.settings)

    def __enter__(self) -> "WrittenCluster":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.log.close()

    def write(self, published: Sequence[Publish], *, first_us: int = 0, step_us: int = 1000) -> None:
        """Commit messages, some at once, each run so long after the one before."""
        from tests.spark.lake_data import NOON_US, publishers_of

        for start in range(0, len(published), RUN):
            decoder = Decoder(MessageColumns(RUN), self._table, max_aliases=0, version=5)
            (found,) = decoder.feed(b"".join(encode(one, 5) for one in published[start : start + RUN]))
            who = publishers_of(published[start : start + RUN])
            time_us = (first_us or NOON_US) + step_us * (start // RUN)
            for number, end in self.log.append(
                found.columns, found.start, found.stop, time_us, self._table, publisher=who
            ):
                self.log.shards[number].wait_committed(end)

    def store(self) -> None:
        """Store complete segments in the bucket."""
        self.log.tend()

    def empty_tail(self) -> None:
        """Have rows leave the tail that are in the bucket, as a full tail would."""
        for shard in range(len(self.log.shards)):
            for table in range(8):
                self.execute(
                    f"delete from message_tail_{shard}_{table} as kept using message_segments as listed "
                    f"where listed.shard = {shard} and state = 1 and kept.base >= listed.base "
                    "and kept.base < listed.stop"
                )

    def execute(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run a statement in the cluster's schema."""
        with psycopg.connect(self.database.url, autocommit=True) as connection:
            connection.execute(f"set search_path = {self.schema}")
            cursor = connection.execute(statement, values)
            return cursor.fetchall() if cursor.description else []

    def reader_role(self, connections: int) -> tuple[str, str]:
        """Make a role that may only read and pin, with so many connections; return its URL and name."""
        role = f"reader_{self.schema}"
        make_reader(self.database, role, connections)
        return self.database.url.replace(f"//{shared_server().user}@", f"//{role}@"), role
