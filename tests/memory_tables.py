"""Session tables in memory."""

from everlog.sessions import Changes, Cursor, GroupRow, SessionRow, Snapshot, StoredSession, SubscriptionRow


class MemoryTables:
    """Dicts with the same contract as a file; they last as long as this object."""

    def __init__(self) -> None:
        self._rows: dict[str, SessionRow] = {}
        self._subscriptions: dict[str, dict[str, SubscriptionRow]] = {}
        self._cursors: dict[str, Cursor] = {}
        self._retained: dict[str, bytes] = {}
        self._groups: dict[tuple[str, str], GroupRow] = {}
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
        retained = sorted(self._retained.items(), key=lambda item: item[0].encode())
        groups = [self._groups[key] for key in sorted(self._groups, key=lambda key: (key[0].encode(), key[1].encode()))]
        return Snapshot(self._routed, self._alive_us, sessions, retained, groups)

    def apply(self, changes: Changes, durable: bool = False) -> None:
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
        for topic, message in changes.retained:
            if message is None:
                self._retained.pop(topic, None)
            else:
                self._retained[topic] = message
        for key in changes.ended_groups:
            self._groups.pop(key, None)
        for group in changes.groups:
            self._groups[group.name, group.filter] = group
        self._routed = self._routed if changes.routed is None else changes.routed
        self._alive_us = self._alive_us if changes.alive_us is None else changes.alive_us

    def close(self) -> None:
        """Do nothing: there is no file."""
