# cython: boundscheck=True, wraparound=True, cdivision=False
"""Batches of changes for the session tables that are written as one: of each row, the last state counts."""

from everlog.sessions.tables import (
    Changes,
    Cursor,
    GroupDeal,
    GroupRow,
    RetainedNames,
    RetainedRow,
    SentWill,
    SessionRow,
    SubscriptionRow,
    WillRow,
)


class MergedChanges:
    """What several batches have changed, in their order; `len()` is the number of rows."""

    def __init__(self) -> None:
        self._ended: dict[str, None] = {}
        self._rows: dict[str, SessionRow] = {}
        self._filters: dict[str, dict[str, SubscriptionRow | None]] = {}  # by client id; None: given up
        self._cursors: dict[str, Cursor] = {}
        self._retained: dict[str, RetainedRow] = {}
        self._names: dict[int, RetainedNames] = {}
        self._ended_names: dict[int, None] = {}
        self._ended_groups: dict[tuple[str, str], None] = {}
        self._groups: dict[tuple[str, str], GroupRow] = {}
        self._ended_wills: dict[str, None] = {}
        self._wills: dict[str, WillRow] = {}
        self._sent_wills: list[SentWill] = []
        self._deals: list[GroupDeal] = []
        self._routed: tuple[int, ...] | None = None
        self._retained_at: tuple[int, ...] | None = None
        self._alive_us: int | None = None
        self._is_empty = True

    def __len__(self) -> int:
        changed = len(self._ended) + len(self._rows) + len(self._filters) + len(self._cursors) + len(self._retained)
        return changed + len(self._groups) + len(self._wills)

    def __bool__(self) -> bool:
        return not self._is_empty

    def add(self, newer: Changes) -> None:
        """Take in the next batch."""
        self._is_empty = False
        for client_id in newer.ended:
            self._ended[client_id] = None
            self._rows.pop(client_id, None)
            self._filters.pop(client_id, None)
            self._cursors.pop(client_id, None)
        for row in newer.rows:
            self._rows[row.client_id] = row
        for client_id, text in newer.unsubscribed:
            self._filters.setdefault(client_id, {})[text] = None
        for client_id, one in newer.subscribed:
            self._filters.setdefault(client_id, {})[one.filter] = one
        self._cursors.update(newer.cursors)
        if newer.retained or newer.retained_names or newer.ended_names:
            self._add_retained(newer)
        if newer.groups or newer.ended_groups:
            self._add_groups(newer)
        if newer.wills or newer.ended_wills:
            self._add_wills(newer)
        self._sent_wills += newer.sent_wills
        self._deals += newer.deals
        self._routed = newer.routed or self._routed
        self._retained_at = newer.retained_at or self._retained_at
        self._alive_us = newer.alive_us or self._alive_us

    def _add_retained(self, newer: Changes) -> None:
        for row in newer.retained:
            self._retained[row.topic] = row
        for names in newer.retained_names:
            self._names[names.first] = names
            self._ended_names.pop(names.first, None)
        for first in newer.ended_names:
            self._names.pop(first, None)
            self._ended_names[first] = None

    def _add_groups(self, newer: Changes) -> None:
        for key in newer.ended_groups:
            self._groups.pop(key, None)
            self._ended_groups[key] = None
        for group in newer.groups:
            self._groups[group.name, group.filter] = group

    def _add_wills(self, newer: Changes) -> None:
        for client_id in newer.ended_wills:
            self._wills.pop(client_id, None)
            self._ended_wills[client_id] = None
        for will in newer.wills:
            self._wills[will.client_id] = will

    def changes(self) -> Changes:
        """Return all as one batch."""
        filters = [(client_id, text, one) for client_id, some in self._filters.items() for text, one in some.items()]
        return Changes(
            tuple(self._ended),
            tuple(self._rows.values()),
            tuple((client_id, text) for client_id, text, one in filters if one is None),
            tuple((client_id, one) for client_id, _, one in filters if one is not None),
            tuple(self._cursors.items()),
            tuple(self._retained.values()),
            tuple(self._names.values()),
            tuple(self._ended_names),
            self._retained_at,
            tuple(self._ended_groups),
            tuple(self._groups.values()),
            tuple(self._ended_wills),
            tuple(self._wills.values()),
            self._routed,
            self._alive_us,
            tuple(self._sent_wills),
            tuple(self._deals),
        )
