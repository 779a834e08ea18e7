# cython: boundscheck=True, wraparound=True, cdivision=False
"""What has changed in sessions, shared groups and retained messages, and the batch for the tables that it makes.

Marks name what has changed; how it is now is taken from the sessions when a batch is made, in one go.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from everlog.broker.delivery import RetainedSaving, Unsaved
from everlog.sessions import (
    Changes,
    Cursor,
    GroupDeal,
    GroupRow,
    SentWill,
    Session,
    WillRow,
    cursor_of,
    pack_subscription,
    retained_end,
    row_of,
)

Ends: TypeAlias = Sequence[tuple[int, int]]  # shards, each with the offset that something ends at


@dataclass(slots=True)
class Marks:
    """The changes that the next batch will write."""

    ended: dict[str, None] = field(default_factory=dict)
    rows: dict[str, Session] = field(default_factory=dict)
    filters: dict[str, dict[str, None]] = field(default_factory=dict)  # client id -> filters added, removed or changed
    moved: set[Session] = field(default_factory=set)
    retained: Unsaved = field(default_factory=Unsaved)  # what earlier batches could not write
    groups: dict[tuple[str, str], None] = field(default_factory=dict)  # name and filter of changed or ended groups
    wills: dict[str, WillRow | Ends] = field(default_factory=dict)  # or from where on the log has the one that was sent
    sent_wills: list[SentWill] = field(default_factory=list)
    deals: dict[tuple[str, str, int], GroupDeal] = field(default_factory=dict)  # by name, filter and position

    def __bool__(self) -> bool:
        changed = self.moved or self.rows or self.ended or self.filters or self.groups
        return bool(changed or self.wills or self.sent_wills or self.deals)

    def split_wills(self, routed: Sequence[int]) -> "dict[str, WillRow | Ends]":
        """Remove and return the wills that were sent and are not all in the log yet."""
        late = {one: ends for one, ends in self.wills.items() if _is_ahead(ends, routed)}
        for client_id in late:
            del self.wills[client_id]
        return late


def _is_ahead(ends: WillRow | Ends, routed: Sequence[int]) -> bool:
    return not isinstance(ends, WillRow) and any(routed[shard] < end for shard, end in ends)


def changes_of(
    marks: Marks,
    sessions: Mapping[str, Session],
    groups: Mapping[tuple[str, str], GroupRow | None],
    committed: Sequence[int],
    routed: tuple[int, ...],
    now_us: int,
    retained: RetainedSaving | None = None,
    proven: Sequence[int] | None = None,
) -> Changes:
    """Return the present state of everything that is marked, with changes of retained messages, which marks get."""
    unsubscribed, subscribed = [], []
    for client_id, filters in marks.filters.items():
        session = sessions.get(client_id)
        if session is None:
            continue
        for text in filters:
            one = session.subscriptions.get(text)
            if one is None:
                unsubscribed.append((client_id, text))
            else:
                subscribed.append((client_id, pack_subscription(one, committed)))
    moved = [one for one in marks.moved if one.kept and sessions.get(one.client_id) is one]
    for session in moved:
        session.drop_confirmed(committed if proven is None else proven)
    cursors = tuple([(session.client_id, cursor_of(session, committed)) for session in moved])
    if retained is not None:
        marks.retained.add(retained.take(_owed_below(cursors) if retained.has_unnamed else 0))
    unsaved = marks.retained
    return Changes(
        tuple(marks.ended),
        tuple([row_of(session) for client_id, session in marks.rows.items() if sessions.get(client_id) is session]),
        tuple(unsubscribed),
        tuple(subscribed),
        cursors,
        tuple(unsaved.rows.values()),
        tuple(unsaved.names.values()),
        tuple(unsaved.ended_names),
        unsaved.at,
        tuple([key for key, row in groups.items() if row is None]),
        tuple([row for row in groups.values() if row is not None]),
        tuple([client_id for client_id, one in marks.wills.items() if not isinstance(one, WillRow)]),
        tuple([one for one in marks.wills.values() if isinstance(one, WillRow)]),
        routed,
        now_us,
        tuple(marks.sent_wills),
        tuple(marks.deals.values()),
    )


def _owed_below(cursors: Iterable[tuple[str, Cursor]]) -> int:
    """Return a number above those of all retained messages that sessions are owed or were sent."""
    return max((retained_end(cursor) for _, cursor in cursors if cursor.feeds or cursor.inflight), default=0)
