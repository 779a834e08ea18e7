"""The role of who reads a cluster's messages from the database, such as Spark's driver: it can read and pin them.

It has a limit of connections, so that readers never take those that the brokers beat and commit with.
"""

from typing import TYPE_CHECKING, Any

from everlog.base import UsageError
from everlog.cluster.database import ClusterDatabase

if TYPE_CHECKING:
    import psycopg

    Cursor = psycopg.Cursor[tuple[Any, ...]]

READER_CONNECTIONS = 4
_TABLES = """
select relname from pg_class
where relnamespace = %s::regnamespace and relkind = 'r' and starts_with(relname, 'message_')
"""


def make_reader(database: ClusterDatabase, name: str, connections: int = READER_CONNECTIONS) -> int:
    """Make a role, or make one that is there a reader; return how many connections it may have.

    A limit that it has already stays. How it logs in is the operator's to say.
    """
    from psycopg.sql import SQL, Identifier, Literal

    role, schema = Identifier(name), Identifier(database.schema)

    def act(cursor: "Cursor") -> int:
        cursor.execute("select rolconnlimit, rolsuper from pg_roles where rolname = %s", (name,))
        found = cursor.fetchone()
        if found is None:
            cursor.execute(SQL("create role {} login").format(role))
        elif found[1]:
            raise UsageError(f"the role {name!r} may do everything", hint="choose another name for readers")
        limit: int = connections if found is None or found[0] < 0 else found[0]
        cursor.execute(SQL("alter role {} connection limit {}").format(role, Literal(limit)))
        cursor.execute(_TABLES, (database.schema,))
        tables = [Identifier(database.schema, table) for (table,) in cursor.fetchall()]
        pins = Identifier(database.schema, "message_pins")
        for statement in (
            SQL("grant usage on schema {} to {}").format(schema, role),
            SQL("grant select on {} to {}").format(SQL(", ").join(tables), role),
            SQL("grant insert, update, delete on {} to {}").format(pins, role),
            SQL("grant execute on function pg_control_system() to {}").format(role),
        ):
            cursor.execute(statement)
        return limit

    connection = database.connect()
    try:
        return connection.transact(act)
    finally:
        connection.close()
