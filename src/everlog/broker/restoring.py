"""What a broker makes of its tables at start: sessions asleep, their filters kept, their time running on,
shared groups where they were."""

import gc
from typing import TYPE_CHECKING

from everlog.base import Records, StorageError, TopicTable
from everlog.sessions import Changes, SessionTables, settle, unpack_will

if TYPE_CHECKING:
    from everlog.broker.broker import Broker


def restore(broker: "Broker", tables: SessionTables) -> int:
    """Take in all that was stored; how many sessions. Wills and sessions whose time is over wait for the sweep."""
    collecting = gc.isenabled()
    gc.disable()  # nothing made here is garbage, and looking for it takes half of the time
    try:
        return _restore(broker, tables)
    finally:
        if collecting:
            gc.enable()


def _restore(broker: "Broker", tables: SessionTables) -> int:
    snapshot = tables.load()
    ends = [shard.committed for shard in broker.log.shards]
    clients, keep = broker.clients, broker.keep
    rows, cursors = [], []
    subscribers: dict[str, list[str]] = {}  # client ids by shared filter
    for stored in snapshot.sessions:
        found = settle(stored, snapshot.routed, snapshot.alive_us, ends)
        row = found.row
        for one in found.subscriptions:
            keep.add(one.filter)
            if one.filter.startswith("$share/"):
                subscribers.setdefault(one.filter, []).append(row.client_id)
        will = unpack_will(row.will) if row.will is not None else None
        clients.schedule(row.client_id, row.away_us, row.expiry_s, will)
        clients.put_asleep(found)
        if found is not stored:
            rows.append(row)
            cursors.append((row.client_id, found.cursor))
    for topic, message in snapshot.retained:
        broker.retained.put(topic, retained_records(topic, message))
    groups, gone = broker.groups.restore(snapshot.groups, subscribers, snapshot.routed, ends)
    # No LIVE cursor may be left when `routed` moves on: it stands for the old value.
    changes = Changes(
        rows=tuple(rows),
        cursors=tuple(cursors),
        ended_groups=tuple(gone),
        groups=tuple(groups),
        routed=tuple(ends),
        alive_us=broker.now_us(),
    )
    tables.apply(changes, durable=True)
    return len(clients)


def retained_records(topic: str, message: bytes) -> Records:
    """A stored retained message, checked."""
    table = TopicTable(0, 1, 1 << 17)
    table.intern(topic.encode())
    records = Records(message, 0, table)
    if not records.verify() or records.new_names() != [topic.encode()]:
        raise StorageError(
            f"the retained message of {topic!r} is damaged", hint="remove it by an empty one, or restore"
        )
    return records
