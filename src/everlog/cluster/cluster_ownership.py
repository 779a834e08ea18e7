"""Who is a member of a cluster and owns which shard, stored in the cluster's own database and no other.

A beat demands what a commit demands: the primary that holds the newest timeline, and as many standbys. So brokers whose
commits can't be replicated all stop beating together, and none of them is declared dead for it.
"""

from typing import TYPE_CHECKING, Any

from everlog.base import UsageError
from everlog.cluster.database import ClusterDatabase
from everlog.cluster.formats import BrokerAbout, about_of, agreed_format, check_formats, decode_about, encode_about
from everlog.ownership import Board, Overruled, PostgresOwnership

if TYPE_CHECKING:
    import psycopg

    Cursor = psycopg.Cursor[tuple[Any, ...]]

_BEAT = """
update incarnations set beat = beat + 1 where number = %s and is_alive
returning current_setting('synchronous_standby_names')
"""


class ClusterOwnership(PostgresOwnership):
    """Ownership on a connection of its own; any thread may call."""

    def __init__(self, database: ClusterDatabase, about: BrokerAbout | None = None) -> None:
        """Take in what the row of a broker that joins tells; None for who only looks."""
        super().__init__(database.url, database.schema, database.connect())
        self._cluster = database
        self._about = about
        self.told = "" if about is None else encode_about(about)
        self.format = 0  # that is written, as far as a broker that has joined knows

    def _check_join(self, cursor: "Cursor") -> None:
        if self._about is not None:
            cursor.execute("select format, importing from message_store for share")  # neither changes meanwhile
            written, is_imported = cursor.fetchone() or (1, False)
            if is_imported:
                raise UsageError(
                    "an import into this cluster is under way, or was broken off",
                    hint="wait for its end, or run it again: everlog cluster import",
                )
            check_formats(self._about, _living(cursor), written)
            self.format = written

    def read(self) -> Board:
        """Return all that is stored; if all of the living understand more than is written, more is from now on."""
        board = super().read()
        if self.format and board.members:
            agreed = agreed_format({member.name: about_of(member) for member in board.members.values()})
            if agreed > self.format:
                self.format = self._database.transact(_raise_format)
        return board

    def beat(self, incarnation: int) -> None:
        """Raise an incarnation's counter, on as many standbys as commits are."""

        def act(cursor: "Cursor") -> str | None:
            cursor.execute(_BEAT, (incarnation,))
            found = cursor.fetchone()
            return None if found is None else str(found[0])

        standbys = self._database.transact(act)
        if standbys is None:
            raise Overruled(f"incarnation {incarnation} was declared dead or replaced", hint="join again")
        self._cluster.check_standbys(standbys)


def _living(cursor: "Cursor") -> dict[str, BrokerAbout]:
    cursor.execute("select name, about from incarnations where is_alive")
    return {name: decode_about(about) for name, about in cursor.fetchall()}


def _raise_format(cursor: "Cursor") -> int:
    """Store that the highest format that all of the living understand is written; return which one is."""
    cursor.execute("select format from message_store for update")
    written, living = _number(cursor), _living(cursor)
    agreed = agreed_format(living) if living else written
    if agreed > written:
        cursor.execute("update message_store set format = %s", (agreed,))
    return max(agreed, written)


def _number(cursor: "Cursor") -> int:
    found = cursor.fetchone()
    assert found is not None
    return int(found[0])
