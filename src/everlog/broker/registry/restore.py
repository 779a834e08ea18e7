"""The start of a broker from its tables: sessions, filters, expiry times, retained messages and shared groups."""

import gc

from everlog.broker.delivery import Router
from everlog.broker.groups import GroupRegistry
from everlog.broker.registry.registry import Registry
from everlog.sessions import SHARED_PREFIX, Changes, SessionTables, retained_end, settle, unpack_will


def restore_sessions(tables: SessionTables, registry: Registry, groups: GroupRegistry, router: Router) -> None:
    """Take in everything that was stored. Wills and sessions that are due wait for the sweep."""
    collecting = gc.isenabled()
    gc.disable()  # nothing made here is garbage, and a search for it would double the time
    try:
        _restore(tables, registry, groups, router)
    finally:
        if collecting:
            gc.enable()


def _restore(tables: SessionTables, registry: Registry, groups: GroupRegistry, router: Router) -> None:
    snapshot = tables.load()
    ends = [shard.committed for shard in router.log.shards]
    rows, cursors, subscribed = [], [], []
    owed_below = 0  # numbers of retained messages
    subscribers: dict[str, list[str]] = {}  # client ids by shared filter
    for stored in snapshot.sessions:
        found = settle(stored, snapshot.routed, snapshot.alive_us, ends)
        row = found.row
        for one in found.subscriptions:
            router.kept.add(one.filter)
            if one.filter.startswith(SHARED_PREFIX):
                subscribers.setdefault(one.filter, []).append(row.client_id)
        registry.expiry.schedule(row.client_id, row.away_us, row.expiry_s, unpack_will(row.will))
        registry.restore(found)
        if found.cursor.feeds or found.cursor.inflight:
            owed_below = max(owed_below, retained_end(found.cursor))
        if found is not stored:
            rows.append(row)
            cursors.append((row.client_id, found.cursor))
            if found.subscriptions is not stored.subscriptions:
                subscribed += [(row.client_id, one) for one in found.subscriptions]
    for will in snapshot.wills:
        registry.wills.restore(will)
    unsaved = router.retained.saving.restore(snapshot, router.log, owed_below)
    settled, gone = groups.restore(snapshot.groups, subscribers, snapshot.routed, ends)
    # No LIVE cursor may be left when `routed` moves on: it stands for the old value.
    changes = Changes(
        rows=tuple(rows),
        subscribed=tuple(subscribed),
        cursors=tuple(cursors),
        retained=tuple(unsaved.rows.values()),
        retained_at=unsaved.at,
        ended_groups=tuple(gone),
        groups=tuple(settled),
        routed=tuple(ends),
        alive_us=router.now_us(),
    )
    tables.apply(changes, durable=True)
    router.retained.saving.durable_at = unsaved.at or ()
