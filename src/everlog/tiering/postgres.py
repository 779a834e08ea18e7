"""A connection to PostgreSQL that is made again when it is lost, for transactions that are repeated when they collide.

Every commit waits for the standbys that the server is set up with: nothing is set to less than
`synchronous_commit = on`. A commit that was not confirmed, or came with a warning (PostgreSQL gives up the wait for a
standby with a mere warning), is in doubt: `Unavailable`.

A process that is put to sleep in the midst of a transaction would keep its locks, and nobody could take over what it
owns: PostgreSQL ends a transaction that says nothing for a while.
"""

import contextlib
import ctypes
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from everlog.base import StorageError, Unavailable, UsageError
from everlog.tiering.pipeline import Statement, run_pipeline

if TYPE_CHECKING:
    import psycopg

    Cursor = psycopg.Cursor[tuple[Any, ...]]
    Connection = psycopg.Connection[tuple[Any, ...]]

T = TypeVar("T")

_INSTALL = "pip install 'everlog[postgres]'"
_CHECK = "check the address, the user and whether PostgreSQL runs"
_ATTEMPTS = 20  # of a transaction that collides with others
_SETTINGS = (
    "-c synchronous_commit=on -c default_transaction_isolation=read\\ committed "
    "-c statement_timeout=15000 -c lock_timeout=10000 -c client_min_messages=warning"
)
_CANCEL_S, _CLOSE_S = 2.0, 1.0
_BOTH_WAYS = 2  # SHUT_RDWR
_SILENT_MS = 2_000  # between two statements of a transaction; then it is ended
_LOCK = 0x65766572  # of who makes tables


class Database:
    """One connection, for one transaction at a time; any thread may call."""

    def __init__(self, url: str, schema: str = "everlog", on_connect: Callable[["Cursor"], None] | None = None) -> None:
        self._url = url
        self.schema = schema
        self._on_connect = on_connect  # looks at each new connection, and raises if it may not be used
        self._psycopg = _load()
        self._connection: Connection | None = None
        self._prepared: set[bytes] = set()  # names of statements that the connection knows
        self._warnings: list[str] = []
        self._lock = threading.Lock()

    def transact(self, act: Callable[["Cursor"], T]) -> T:
        """Do something in one transaction and return what it returns once that is committed.

        It is done again if it collides with another one (SQLSTATE class 40), so it may have no effects beside.
        """

        def attempt(connection: "Connection") -> T:
            with connection.transaction(), connection.cursor() as cursor:
                return act(cursor)

        return self._do(attempt)

    def call(self, act: Callable[["Cursor"], T]) -> T:
        """Do the same by one statement, or one `executemany`, which is a transaction: one round trip, not three."""

        def attempt(connection: "Connection") -> T:
            with connection.cursor() as cursor:
                return act(cursor)

        return self._do(attempt)

    def run(self, statements: Sequence[Statement]) -> list[list[bytes | None]]:
        """Run prepared statements as one transaction and one round trip; return the first row of each, as text.

        It is the cheapest way: libpq without what psycopg does for any statement.
        """
        return self._do(lambda connection: run_pipeline(connection.pgconn, statements, self._prepared))

    def _do(self, act: Callable[["Connection"], T]) -> T:
        with self._lock:
            for _ in range(_ATTEMPTS):
                try:
                    return self._attempt(act)
                except self._psycopg.errors.OperationalError as error:
                    if not (error.sqlstate or "").startswith("40"):
                        self._drop()
                        raise Unavailable(f"PostgreSQL: {_line(error)}", hint=_CHECK) from error
                except self._psycopg.errors.InterfaceError as error:
                    self._drop()
                    raise Unavailable(f"PostgreSQL: {_line(error)}", hint=_CHECK) from error
                except self._psycopg.Error as error:
                    if error.sqlstate in ("25006", "25P03"):  # a standby that can't be written; silent for too long
                        self._drop()
                        raise Unavailable(f"PostgreSQL: {_line(error)}", hint=_CHECK) from error
                    hint = "make the tables first" if error.sqlstate in ("42P01", "3F000") else _CHECK
                    raise StorageError(f"PostgreSQL: {_line(error)}", hint=hint) from error
        raise Unavailable("PostgreSQL: the transaction collides with others again and again")

    def interrupt(self) -> None:
        """Make a transaction that waits on another thread end soon, in doubt; whether or not the server answers."""
        connection = self._connection
        if connection is not None and not connection.closed:
            with contextlib.suppress(self._psycopg.Error):
                connection.cancel_safe(timeout=_CANCEL_S)
            if self._lock.acquire(timeout=_CLOSE_S):  # it has ended, and the connection is as good as before
                self._lock.release()
                return
            with contextlib.suppress(self._psycopg.Error, OSError):
                _shut_down(connection.fileno())

    def close(self) -> None:
        """Close the connection, in the midst of a transaction if that does not end by itself."""
        while not self._lock.acquire(timeout=_CLOSE_S):
            self.interrupt()
        try:
            self._drop()
        finally:
            self._lock.release()

    def _attempt(self, act: Callable[["Connection"], T]) -> T:
        connection = self._connect()
        self._warnings.clear()
        result = act(connection)
        if self._warnings:
            raise Unavailable(f"PostgreSQL committed with a warning: {self._warnings[0]}", hint="it may be lost")
        return result

    def _connect(self) -> "Connection":
        if self._connection is None or self._connection.closed:
            self._prepared.clear()
            options = f"{_SETTINGS} -c search_path={self.schema} -c idle_in_transaction_session_timeout={_SILENT_MS}"
            self._connection = self._psycopg.connect(
                self._url,
                autocommit=True,
                connect_timeout=5,
                options=options,
                client_encoding="UTF8",
                tcp_user_timeout=10_000,
                keepalives_idle=3,  # a server that is gone without a word is noticed while it is waited for
                keepalives_interval=2,
                keepalives_count=3,
            )
            self._connection.add_notice_handler(self._note)
            if self._on_connect is not None:
                try:
                    with self._connection.cursor() as cursor:
                        self._on_connect(cursor)
                except BaseException:
                    self._drop()
                    raise
        return self._connection

    def _note(self, notice: "psycopg.errors.Diagnostic") -> None:
        self._warnings.append(notice.message_primary or "")

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _shut_down(descriptor: int) -> None:
    """End a connection under whoever waits for it, and leave it to that one to close it."""
    ctypes.CDLL(None).shutdown(descriptor, _BOTH_WAYS)


def make_schema(url: str, schema: str, statements: str) -> None:
    """Make tables, once, before anybody uses them; those that are there stay."""
    if not schema.isidentifier():
        raise UsageError(f"{schema!r} can't be the name of a schema", hint="use letters, digits and _")
    database = Database(url, schema)
    try:
        database.transact(lambda cursor: _run(cursor, f"create schema if not exists {schema}; {statements}"))
    finally:
        database.close()


def _run(cursor: "Cursor", statements: str) -> None:
    cursor.execute("set local client_min_messages = error")  # that a table is there already is no warning
    cursor.execute("select pg_advisory_xact_lock(%s)", (_LOCK,))
    cursor.execute(statements.encode())


def _line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _load() -> Any:
    """Return psycopg, which is loaded only where it is used."""
    try:
        import psycopg
    except ImportError as error:
        raise UsageError(f"PostgreSQL needs psycopg ({error})", hint=_INSTALL) from error
    return psycopg
