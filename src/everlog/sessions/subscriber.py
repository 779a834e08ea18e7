"""What a session holds for its client: its subscriptions and its will, and the memory that they take."""

from typing import Any

import cython

from everlog.mqtt import Will
from everlog.sessions.session_memory import STORED_BYTES, filter_bytes, will_bytes
from everlog.sessions.subscription import Subscribed, begin_later

if not cython.compiled:
    from everlog.sessions.publisher import Publisher, Unsure

SHARED_PREFIX = "$share/"


class Subscriber(Publisher):
    """The subscribing side of a session."""

    def __init__(
        self, subscriptions: dict[str, Subscribed] | None, kept: bool, will: Will | None, unsure: list[Unsure] | None
    ) -> None:
        super().__init__(unsure)
        self.subscriptions = {} if subscriptions is None else subscriptions
        self.no_local = 0  # how many of its subscriptions have No Local
        self.kept = kept  # it was durable when it began: its filters are kept, and the tables know it
        self.mount = ""  # what stands before the topics of its client, who does not see it
        self.will = will  # what is published when the client stays away too long
        self.counted_bytes = 0  # of `held_bytes`, what the total of all sessions has
        self.memberships: tuple[Any, ...] = ()  # in shared groups with a cursor, while it is connected
        self._filter_bytes = 0
        self._will_bytes = 0

    @property
    def held_bytes(self) -> int:
        """The memory of its filters and its will."""
        return self._filter_bytes + self._will_bytes + STORED_BYTES * self.kept

    def restore_held(self) -> None:
        """Count what it was stored with, which the total of all sessions has already."""
        self._filter_bytes = sum(filter_bytes(text, self.kept) for text in self.subscriptions)
        self._will_bytes = will_bytes(self.will)
        self.counted_bytes = self.held_bytes

    def take_growth(self) -> int:
        """Return by how much `held_bytes` has grown since the last call."""
        grown = self._filter_bytes + self._will_bytes + STORED_BYTES * self.kept - self.counted_bytes
        self.counted_bytes += grown
        return grown

    def set_will(self, will: Will | None) -> None:
        """Hold a will, or none."""
        self.will = will
        self._will_bytes = will_bytes(will)

    def take_will(self) -> Will | None:
        """Remove and return the will."""
        will, self.will = self.will, None
        self._will_bytes = 0
        return will

    def subscribe(self, one: Subscribed) -> Subscribed | None:
        """Hold a subscription, new or changed; return the one that it replaces."""
        old = self.subscriptions.get(one.filter)
        self.subscriptions[one.filter] = one
        if old is None:
            self._filter_bytes += filter_bytes(one.filter, self.kept)
        self.no_local += one.no_local - (old.no_local if old is not None else False)
        return old

    def add(self, text: str, one: Subscribed, size: int, no_local: bool) -> int:
        """Hold a subscription to a filter that it does not have yet and that takes so many bytes (`filter_bytes`)."""
        self.subscriptions[text] = one
        self._filter_bytes += size
        self.no_local += no_local
        return 0

    def shared_filters(self) -> list[str]:
        """Return its filters that are shared groups'."""
        found = []
        for text in self.subscriptions:
            if text.startswith("$share/"):
                found.append(text)
        return found

    def unsubscribe(self, text: str) -> Subscribed | None:
        """Give up a subscription; return it if there was one."""
        old = self.subscriptions.pop(text, None)
        if old is not None:
            self.no_local -= old.no_local
            self._filter_bytes -= filter_bytes(text, self.kept)
        return old

    def begin_later(self, text: str, here: dict[int, int], shards: int) -> Subscribed | None:
        """Let a subscription begin where the session is, since it will go back; return it if that is a change."""
        one = self.subscriptions.get(text)
        changed = None if one is None or text.startswith(SHARED_PREFIX) else begin_later(one, here, shards)
        if changed is not None:
            self.subscriptions[text] = changed
        return changed

    def mounted(self, text: str) -> str:
        """Return the filter that the client means; a group's name stays what it is."""
        if not self.mount or not text:
            return text
        if not text.startswith("$share/"):
            return self.mount + text
        group, _, rest = text.removeprefix("$share/").partition("/")
        return f"$share/{group}/{self.mount}{rest}" if rest else text

    # Groups

    def join(self, member: Any) -> None:
        """Become a member of a shared group with a cursor."""
        self.memberships = (*self.memberships, member)

    def leave_group(self, member: Any) -> None:
        """Be a member no more."""
        self.memberships = tuple(one for one in self.memberships if one is not member)

    def leave_groups(self) -> tuple[Any, ...]:
        """Be a member of no group any more; return what it was."""
        memberships, self.memberships = self.memberships, ()
        return memberships
