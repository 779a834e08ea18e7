"""Audiences by number, each kept while a topic has it, and the merged subscriptions that they share.

Two audiences that have a session by the same subscriptions hold the same object for it, so one more audience costs a
pointer for each subscriber. `size_bytes` counts what all of it takes.
"""

from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

from everlog.broker.delivery.overlaps import Combined, combine, merge, of_own
from everlog.broker.delivery.ports import SharedTarget
from everlog.sessions import MergedSubscription, Session, Subscribed

# What an entry was measured to take, besides what is counted one by one.
_AUDIENCE_BYTES = 340
_MERGED_BYTES = 320
_POINTER_BYTES = 8
_ENTRY_BYTES = 110  # of a dictionary

_Key: TypeAlias = tuple[Combined, Combined | tuple[()]]


class Audience(NamedTuple):
    """Who gets the messages of a topic."""

    subscriptions: tuple[MergedSubscription, ...] = ()
    targets: tuple[SharedTarget, ...] = ()


NOBODY = Audience()


class AudienceNumbers:
    """The audiences of the topics that are known; number 0 is nobody."""

    def __init__(self) -> None:
        self.by_number: list[Audience] = [NOBODY]
        self.size_bytes = 0
        self._numbers: dict[Audience, int] = {NOBODY: 0}
        self._uses: list[int] = [1]  # topics by number; nobody is never given up
        self._free: list[int] = []
        self._by_session: dict[int, dict[Session, MergedSubscription]] = {}
        # of each session: the lone one, as most have, or several
        self._merged: dict[Session, MergedSubscription | dict[_Key, MergedSubscription]] = {}

    def number_of(self, audience: Audience) -> int:
        """Return an audience's number, new if nobody has it."""
        number = self._numbers.get(audience)
        if number is None:
            if self._free:
                number = self._free.pop()
                self.by_number[number] = audience
            else:
                number = len(self.by_number)
                self.by_number.append(audience)
                self._uses.append(0)
            self._numbers[audience] = number
            self.size_bytes += _audience_bytes(audience)
        return number

    def use(self, number: int) -> None:
        """Note that one more topic has an audience."""
        self._uses[number] += 1

    def give_up(self, numbers: Iterable[int]) -> None:
        """Note that a topic less has each of these audiences; what nothing has any more is let go of."""
        uses = self._uses
        for number in numbers:
            uses[number] -= 1
            if not uses[number] and number:
                self._drop(number)

    def drop_unused(self, numbers: Iterable[int]) -> None:
        """Let go of those of these audiences that no topic has."""
        for number in numbers:
            if number and not self._uses[number] and self.by_number[number] is not NOBODY:
                self._drop(number)

    def _drop(self, number: int) -> None:
        audience = self.by_number[number]
        del self._numbers[audience]
        self.by_number[number] = NOBODY
        self._free.append(number)
        self.size_bytes -= _audience_bytes(audience)
        by_session = self._by_session.pop(number, None)
        if by_session is not None:
            self.size_bytes -= _ENTRY_BYTES * len(by_session)

    def merged_in(self, number: int, session: Session) -> MergedSubscription | None:
        """Return how a session gets the messages of an audience, if it is in it by itself."""
        by_session = self._by_session.get(number)
        if by_session is None:
            by_session = {merged.session: merged for merged in self.by_number[number].subscriptions}
            self._by_session[number] = by_session
            self.size_bytes += _ENTRY_BYTES * len(by_session)
        return by_session.get(session)

    # Merged subscriptions

    def merged(self, session: Session, subscribed: list[Subscribed]) -> MergedSubscription:
        """Return these subscriptions of a session as one, the same object for the same ones."""
        known = self._merged.get(session)
        only = subscribed[0] if len(subscribed) == 1 else None
        if only is not None and isinstance(known, MergedSubscription) and known.only is only:
            return known
        key: _Key = combine(subscribed), of_own(subscribed)
        if isinstance(known, MergedSubscription):
            before = _key_of(known)
            if before == key:
                return known
            known = self._merged[session] = {before: known}
        if known is not None and key in known:
            return known[key]
        merged = merge(session, subscribed)
        merged.only = only
        if known is None:
            self._merged[session] = merged
        else:
            known[key] = merged
        self.size_bytes += _merged_bytes(merged)
        return merged

    def forget_session(self, session: Session) -> None:
        """Let go of a session that has left."""
        known = self._merged.pop(session, None)
        if known is not None:
            all_of_it = (known,) if isinstance(known, MergedSubscription) else known.values()
            self.size_bytes -= sum(map(_merged_bytes, all_of_it))


def _key_of(merged: MergedSubscription) -> _Key:
    return _fields(merged), () if merged.own is None else _fields(merged.own)


def _fields(one: MergedSubscription) -> Combined:
    return (
        one.qos,
        one.identifiers,
        one.retain_as_published,
        one.no_local,
        one.since,
        one.tells,
        one.until,
        one.parts,
    )


def _audience_bytes(audience: Audience) -> int:
    return _AUDIENCE_BYTES + _POINTER_BYTES * (len(audience.subscriptions) + len(audience.targets))


def _merged_bytes(merged: MergedSubscription) -> int:
    own = 0 if merged.own is None else _merged_bytes(merged.own)
    places = len(merged.since) + len(merged.until) + len(merged.parts)
    return own + _MERGED_BYTES + len(merged.identifiers) + 5 * _POINTER_BYTES * bool(places) + _POINTER_BYTES * places
