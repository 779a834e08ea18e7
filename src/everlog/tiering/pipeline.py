"""Prepared statements in libpq's pipeline mode: what is sent before one sync is one transaction, and one round trip.

It is compiled: a commit of a cluster takes some thirty calls of libpq, and psycopg's own way to run a statement several
hundred.
"""

import select
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from psycopg.pq.abc import PGconn, PGresult

# Of libpq's ExecStatusType.
_COMMAND_OK = 1
_TUPLES_OK = 2


class Statement(NamedTuple):
    """A statement that a connection prepares once by its name, with its values this time."""

    name: bytes
    query: bytes
    values: Sequence[bytes | bytearray | memoryview]
    formats: Sequence[int]  # of the values: 0 for text, 1 for bytes as they are


def run_pipeline(wire: "PGconn", statements: Sequence[Statement], prepared: set[bytes]) -> list[list[bytes | None]]:
    """Run statements as one transaction and return the first row of each; `prepared` has those the connection knows."""
    asked: list[bytes] = []  # for each result to come: the name of a statement to prepare, or nothing
    wire.enter_pipeline_mode()
    for name, query, values, formats in statements:
        if name not in prepared and name not in asked:
            wire.send_prepare(name, query)
            asked.append(name)
        wire.send_query_prepared(name, values, formats)
        asked.append(b"")
    wire.pipeline_sync()
    found, failed = _results(wire, asked, prepared)
    wire.exit_pipeline_mode()
    if failed is not None:
        raise _error_of(wire, failed)
    return found


def _results(
    wire: "PGconn", asked: list[bytes], prepared: set[bytes]
) -> tuple[list[list[bytes | None]], "PGresult | None"]:
    """Wait for all results without the interpreter's lock; return first rows, and the first error."""
    waits = select.poll()
    while wire.flush():
        waits.register(wire.socket, select.POLLIN | select.POLLOUT)
        for _, events in waits.poll():
            if events & ~select.POLLOUT:
                wire.consume_input()
    waits.register(wire.socket, select.POLLIN)
    found: list[list[bytes | None]] = []
    failed: PGresult | None = None
    for name in asked:
        result = _result(wire, waits)
        status = int(result.status)
        if status == _COMMAND_OK and name:
            prepared.add(name)
        elif status == _TUPLES_OK:
            found.append([result.get_value(0, column) for column in range(result.nfields)])
        elif failed is None:
            failed = result
        wire.get_result()  # the end of this statement
    _result(wire, waits)  # the sync
    return found, failed


def _result(wire: "PGconn", waits: "select.poll") -> "PGresult":
    while wire.is_busy():
        waits.poll()
        wire.consume_input()
    result = wire.get_result()
    if result is None:
        from psycopg import OperationalError

        raise OperationalError("the connection was lost")
    return result


def _error_of(wire: "PGconn", result: "PGresult") -> Exception:
    from psycopg.errors import OperationalError, error_from_result
    from psycopg.pq import ConnStatus

    if wire.status != ConnStatus.OK:
        return OperationalError(wire.get_error_message())
    return error_from_result(result)
