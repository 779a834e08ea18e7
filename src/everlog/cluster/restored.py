"""After a restore from a backup: epochs and offsets go on so far ahead that nothing is ever given out twice.

What was committed after the backup is lost, and somebody may know of it: the lake table, a client's position, an object
of the bucket, a broker's disk. So every shard leaves a gap of offsets, and every epoch and incarnation is lifted.
Brokers must be stopped meanwhile; their copies that do not fit are read again when they start.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from everlog.base import UsageError
from everlog.cluster.database import ClusterDatabase
from everlog.cluster.ports import TABLES
from everlog.cluster.rows import State
from everlog.cluster.schema import read_store, tail_name

if TYPE_CHECKING:
    import psycopg

    Cursor = psycopg.Cursor[tuple[Any, ...]]

LIFT = 1 << 40  # of offsets and incarnations
EPOCH_LIFT = 1 << 20  # more owners than a shard has had since any backup; headers of segments have 32 bits for it
WATCH_S = 3.0  # in which a broker that lives beats


@dataclass(frozen=True, slots=True)
class Lifted:
    """What became of a shard: where it ended, where it goes on, and its epoch from now on."""

    shard: int
    end: int
    goes_on: int
    epoch: int


def lift_restored(
    database: ClusterDatabase, watch_s: float = WATCH_S, pause: Callable[[float], None] = time.sleep
) -> list[Lifted]:
    """Lift all that must not be given out again, in one transaction; refuse if a broker runs."""
    shards = read_store(database).shards
    connection = database.connect()
    try:
        refuse_living(connection.call, watch_s, pause)
        return connection.transact(lambda cursor: _lift(cursor, shards))
    finally:
        connection.close()


def refuse_living(
    call: Callable[[Callable[["Cursor"], dict[str, int]]], dict[str, int]],
    watch_s: float = WATCH_S,
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Raise `UsageError` if a broker beats."""
    before = call(_beats)
    if not before:
        return
    pause(watch_s)
    alive = [name for name, beat in call(_beats).items() if before.get(name) != beat]
    if alive:
        raise UsageError(f"these brokers run: {', '.join(sorted(alive))}", hint="stop all brokers of the cluster first")


def _beats(cursor: "Cursor") -> dict[str, int]:
    cursor.execute("select to_regclass('incarnations') is not null")
    if not _one(cursor)[0]:
        return {}
    cursor.execute("select name, beat from incarnations where is_alive")
    return dict(cursor.fetchall())


def _lift(cursor: "Cursor", shards: int) -> list[Lifted]:
    lifted = []
    cursor.execute("select shard from message_shards order by shard for update")
    for shard in range(shards):
        ends = " union all ".join(f"select max(base + count) as stop from {tail_name(shard, n)}" for n in range(TABLES))
        cursor.execute(
            f"select max(stop) from ({ends} union all select max(stop) from message_segments where shard = %(shard)s "
            "and state <> %(claimed)s union all select max(stop) from message_gaps where shard = %(shard)s "
            "union all select start from message_shards where shard = %(shard)s) as ends".encode(),
            {"shard": shard, "claimed": State.CLAIMED},
        )
        end = int(_one(cursor)[0])
        cursor.execute("insert into message_gaps (shard, start, stop) values (%s, %s, %s)", (shard, end, end + LIFT))
        cursor.execute(
            "update message_shards set epoch = epoch + %s where shard = %s returning epoch", (EPOCH_LIFT, shard)
        )
        lifted.append(Lifted(shard, end, end + LIFT, int(_one(cursor)[0])))
    for table, statement in _OTHERS.items():
        cursor.execute("select to_regclass(%s) is not null", (table,))
        if _one(cursor)[0]:
            cursor.execute(statement.encode())
    return lifted


_OTHERS = {
    "claims": f"update claims set epoch = epoch + {EPOCH_LIFT}, owner = 0",
    "incarnations": (
        "update incarnations set is_alive = false; select setval(pg_get_serial_sequence('incarnations', 'number'), "
        f"(select coalesce(max(number), 0) + {LIFT} from incarnations))"
    ),
    "outbox": (
        "select setval(pg_get_serial_sequence('outbox', 'number'), "
        f"(select coalesce(max(number), 0) + {LIFT} from outbox))"
    ),
    "journal_shards": f"update journal_shards set epoch = epoch + {EPOCH_LIFT}",
}


def _one(cursor: "Cursor") -> tuple[Any, ...]:
    found = cursor.fetchone()
    assert found is not None
    return found
