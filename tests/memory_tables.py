"""Session tables in memory."""

from everlog.sessions import (
    Changes,
    Cursor,
    GroupRow,
    Refused,
    RetainedNames,
    RetainedRow,
    SessionRow,
    Snapshot,
    StoredSession,
    SubscriptionRow,
    WillRow,
)


class MemoryTables:
    """Dicts with the same contract as a file; they last as long as this object."""

    def __init__(self) -> None:
        self._rows: dict[str, SessionRow] = {}
        self._subscriptions: dict[str, dict[str, SubscriptionRow]] = {}
        self._cursors: dict[str, Cursor] = {}
        self._retained: dict[str, RetainedRow] = {}
        self._names: dict[int, RetainedNames] = {}
        self._retained_at: tuple[int, ...] = ()
        self._groups: dict[tuple[str, str], GroupRow] = {}
        self._wills: dict[str, WillRow] = {}
        self._routed: tuple[int, ...] = ()
        self._alive_us = 0

    def load(self) -> Snapshot:
        """Return everything that is stored."""
        sessions = [
            StoredSession(
                row,
                tuple(self._subscriptions.get(client_id, {}).values()),
                self._cursors.get(client_id, Cursor()),
            )
            for client_id, row in sorted(self._rows.items(), key=lambda item: item[0].encode())
        ]
        retained = sorted(self._retained.values(), key=lambda row: row.topic.encode())
        names = [self._names[first] for first in sorted(self._names)]
        groups = [self._groups[key] for key in sorted(self._groups, key=lambda key: (key[0].encode(), key[1].encode()))]
        wills = [self._wills[client_id] for client_id in sorted(self._wills, key=str.encode)]
        return Snapshot(self._routed, self._alive_us, sessions, retained, groups, names, self._retained_at, wills)

    def apply(self, changes: Changes, durable: bool = False) -> Refused:
        """Write all changes."""
        for client_id in changes.ended:
            self._rows.pop(client_id, None)
            self._subscriptions.pop(client_id, None)
            self._cursors.pop(client_id, None)
        for row in changes.rows:
            self._rows[row.client_id] = row
        for client_id, text in changes.unsubscribed:
            self._subscriptions.get(client_id, {}).pop(text, None)
        for client_id, subscribed in changes.subscribed:
            filters = self._subscriptions.setdefault(client_id, {})
            filters[subscribed.filter] = subscribed
            self._subscriptions[client_id] = dict(sorted(filters.items(), key=lambda item: item[0].encode()))
        for client_id, cursor in changes.cursors:
            self._cursors[client_id] = cursor
        for one in changes.retained:
            if one.message is None and not one.after:
                self._retained.pop(one.topic, None)
            else:
                self._retained[one.topic] = one
        self._names.update((named.first, named) for named in changes.retained_names)
        for first in changes.ended_names:
            self._names.pop(first, None)
        for key in changes.ended_groups:
            self._groups.pop(key, None)
        for group in changes.groups:
            self._groups[group.name, group.filter] = group
        for client_id in changes.ended_wills:
            self._wills.pop(client_id, None)
        self._wills.update((one.client_id, one) for one in changes.wills)
        self._routed = self._routed if changes.routed is None else changes.routed
        self._retained_at = self._retained_at if changes.retained_at is None else changes.retained_at
        self._alive_us = self._alive_us if changes.alive_us is None else changes.alive_us
        return Refused()

    def close(self) -> None:
        """Do nothing: there is no file."""
