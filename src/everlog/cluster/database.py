"""Which database this is: one with the system id and at least the timeline that were seen before, and its standbys.

After a failover the old primary may live on; it has a lower timeline, and nothing may be committed there. A wait for
standbys is what the server's `synchronous_standby_names` says: a clean commit is on so many of them.
"""

import re
import threading
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from everlog.base import StorageError, Unavailable
from everlog.tiering import Database

if TYPE_CHECKING:
    import psycopg

    Cursor = psycopg.Cursor[tuple[Any, ...]]

_COUNTED = re.compile(r"\s*(?:(?:first|any)\s+)?(\d+)\s*\(", re.IGNORECASE)
_IDENTIFY = (
    "select system_identifier, case when pg_is_in_recovery() then null "
    "else substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) end from pg_control_system()"
)


@lru_cache(8)
def standbys_demanded(names: str) -> int:
    """Return on how many standbys a commit is before it returns, by what `synchronous_standby_names` says."""
    if not names.strip():
        return 0
    counted = _COUNTED.match(names)
    return int(counted[1]) if counted else 1


class ClusterDatabase:
    """The one database of a cluster, as all connections of a process know it; any thread may call."""

    def __init__(self, url: str, schema: str = "everlog", *, min_standbys: int = 0) -> None:
        self.url = url
        self.schema = schema
        self.min_standbys = min_standbys
        self.standbys = 0  # on how many the last commit was
        self._known: tuple[int, int] | None = None  # system id, highest timeline
        self._lock = threading.Lock()

    def connect(self) -> Database:
        """Return a connection that is made when it is first used, and only to this database."""
        return Database(self.url, self.schema, self._look)

    @property
    def known(self) -> tuple[int, int] | None:
        """The system id and the highest timeline that were seen, for other brokers to hear."""
        return self._known

    def learn(self, system: int, timeline: int) -> None:
        """Take in what another broker has seen: raise StorageError if it is at another database."""
        with self._lock:
            if self._known is not None and self._known[0] != system:
                raise StorageError(
                    f"this is the database {system}, and the cluster's is {self._known[0]}",
                    hint="give all brokers the address of the same database",
                )
            self._known = (system, max(timeline, self._known[1] if self._known else 0))

    def _look(self, cursor: "Cursor") -> None:
        cursor.execute(_IDENTIFY)
        found = cursor.fetchone()
        assert found is not None
        if found[1] is None:
            raise Unavailable("PostgreSQL: this server is a standby", hint="give the address of the primary")
        timeline = int(found[1], 16)
        self.learn(found[0], timeline)
        if self._known is not None and timeline < self._known[1]:
            raise Unavailable(
                f"PostgreSQL: this server is at timeline {timeline}, and timeline {self._known[1]} has replaced it",
                hint="stop the old primary, and give the address of the new one",
            )

    def check_standbys(self, names: str) -> None:
        """Raise `Unavailable` if a commit that was made under this setting is on too few standbys."""
        self.standbys = standbys_demanded(names)
        if self.standbys < self.min_standbys:
            raise Unavailable(
                f"PostgreSQL waits for {self.standbys} standbys, and cluster.min_standbys is {self.min_standbys}",
                hint="set synchronous_standby_names so that commits wait for as many",
            )
