"""SUBSCRIBE and UNSUBSCRIBE: what is allowed, what is retained, and what is kept for a durable session."""

import logging
from collections.abc import Callable
from logging import WARNING

from everlog.base import PeerError
from everlog.broker.auth import Security, covers
from everlog.broker.delivery import Places, Router
from everlog.broker.events import event
from everlog.broker.groups import GroupRegistry
from everlog.broker.limits import Limits
from everlog.broker.metrics import Metrics
from everlog.broker.registry.replay_request import Answer, ReplayRequests, Wishes, filter_of, split_filter, wishes_of
from everlog.broker.registry.write_behind import WriteBehind
from everlog.mqtt import Reason, Subscribe, Subscription, Unsubscribe
from everlog.sessions import Session, Subscribed
from everlog.topics import Filter, parse_filter

_IN_ORDER = ("everlog-order", "topic")  # the user property that asks for a group's messages of a topic in order
_log = logging.getLogger("everlog.broker")


class Subscriptions:
    """The changes of subscriptions, in the session and in everything that depends on it."""

    def __init__(
        self,
        router: Router,
        groups: GroupRegistry,
        replays: ReplayRequests,
        security: Security,
        limits: Limits,
        metrics: Metrics,
        write_behind: WriteBehind | None,
        kept: tuple[Filter, ...] = (),
    ) -> None:
        self._kept = kept  # by configuration, at every QoS
        self._router = router
        self._groups = groups
        self._replays = replays
        self._security = security
        self._limits = limits
        self._metrics = metrics
        self._write_behind = write_behind

    def subscribe(self, session: Session, packet: Subscribe, then: Callable[[Answer], None]) -> None:
        """Grant or refuse every filter and have `then` called with the answer.

        Where a replay begins may take a while to find out; the rest happens by then, if the client is still there.
        """
        wishes = wishes_of(packet.properties)
        sink = self._router.sink(session)

        def found(places: Places) -> None:
            if self._router.sink(session) is sink:
                then(self._subscribe(session, packet, wishes, places))

        if not self._replays.find_places(session, packet, wishes, found):
            found({})

    def _subscribe(self, session: Session, packet: Subscribe, wishes: Wishes, places: Places) -> Answer:
        answer = Answer(wishes, places)
        for asked in packet.subscriptions:
            try:
                self._one(session, asked, packet, answer)
            except PeerError as error:
                self._metrics.subscribes_refused += 1
                fields = {"client": session.client_id, "user": session.user, "filter": asked.filter}
                event(_log, "subscribe_refused", WARNING, **fields, reason=error)
                answer.reasons.append(Reason(error.reason))
                answer.why[error.message] = None
        if answer.replayed:  # once for all of them, since it looks at every subscription
            for one in session.rewind(answer.replayed, self._router.routed):
                self._put(session, parse_filter(one.filter), one)
        return answer

    def answered(self, session: Session, answer: Answer) -> None:
        """Send what follows the SUBACK: retained messages, and history."""
        for flt, subscribed in answer.retained:
            session.feed(self._router.retained.feed(session, flt, subscribed))
        if answer.retained or answer.begins:
            self._router.pump(session)

    def _one(self, session: Session, asked: Subscription, packet: Subscribe, answer: Answer) -> None:
        begin, text = split_filter(asked.filter)
        begin = begin or answer.wishes.begin
        in_order = _IN_ORDER in packet.properties.user_properties
        flt, old = self._check(session, text, begin is not None, in_order)
        if begin is not None:
            since = self._replays.begins(session, flt, begin, answer)
            if flt.group is None:
                answer.replayed[text] = since
        else:
            since = self._router.ends() if old is None else old.since
        identifiers = packet.properties.subscription_identifiers
        subscribed = Subscribed(
            text,
            asked.qos,
            asked.no_local,
            asked.retain_as_published,
            asked.retain_handling,
            identifiers[0] if identifiers else 0,
            since,
            answer.wishes.position,
        )
        session.subscribe(subscribed)
        if session.kept and old is None:
            self._router.kept.add(text)
        if flt.group is not None:
            self._groups.join(session, flt, subscribed, ordered=in_order, since=None if begin is None else since)
        self._put(session, flt, subscribed)
        self._metrics.subscribes += 1
        answer.reasons.append(Reason(asked.qos))
        wants_retained = asked.retain_handling == 0 or (asked.retain_handling == 1 and old is None)
        if flt.group is None and wants_retained and begin is None:  # history has what was retained in it
            answer.retained.append((flt, subscribed))  # [MQTT-3.3.1-9] to [MQTT-3.3.1-11]

    def _check(self, session: Session, text: str, replays: bool, in_order: bool) -> tuple[Filter, Subscribed | None]:
        """Return the filter, if the client may subscribe to it, and the subscription to it that there is."""
        limits = self._limits
        flt = parse_filter(text, max_levels=limits.topic_levels, max_bytes=limits.topic_bytes)
        if not self._security.acl.may_subscribe(session.user, session.client_id, flt.pattern):
            raise PeerError(Reason.NOT_AUTHORIZED, "the filter is not allowed")
        of_log = flt.group is not None and (replays or in_order or self._groups.is_ordered(flt))
        is_wild = {*flt.levels} <= {"+", "#"} and not any(covers(one, flt) for one in self._kept)
        if is_wild and (session.kept or of_log) and not limits.durable_wildcard:  # it would fill the disk by itself
            raise PeerError(Reason.NOT_AUTHORIZED, "a durable session may not subscribe to everything")
        old = session.subscriptions.get(text)
        if old is None and len(session.subscriptions) >= limits.subscriptions_per_client:
            raise PeerError(Reason.QUOTA_EXCEEDED, "too many subscriptions")
        return flt, old

    def _put(self, session: Session, flt: Filter, subscribed: Subscribed) -> None:
        """Tell those who follow of a subscription, new or changed."""
        self._mark(session, subscribed.filter)
        self._router.subscribe(session, flt, subscribed)

    def _mark(self, session: Session, text: str) -> None:
        if session.kept and self._write_behind is not None:
            self._write_behind.mark_filter(session, text)

    def unsubscribe(self, session: Session, packet: Unsubscribe) -> tuple[Reason, ...]:
        """Give up filters; return the reasons that the UNSUBACK has for each."""
        return tuple(
            Reason.SUCCESS if self._give_up(session, filter_of(text)) else Reason.NO_SUBSCRIPTION_EXISTED
            for text in packet.filters
        )

    def _give_up(self, session: Session, text: str) -> bool:
        """Take a filter from a connected session; return whether it had it."""
        if session.unsubscribe(text) is None:
            return False
        flt = parse_filter(text)
        self._withdraw(session, flt)
        if flt.group is not None:
            self._groups.unsubscribed(session, flt)
        if session.kept:
            self._router.kept.remove(text)
        self._mark(session, text)
        return True

    def _withdraw(self, session: Session, flt: Filter) -> None:
        self._router.unsubscribe(session, flt)
        if flt.group is not None:
            self._groups.leave(session, flt)

    def revoke(self, session: Session) -> None:
        """Give up the filters that are not allowed any more: the rules may have changed."""
        access = self._security.acl.access(session.user, session.client_id)
        if access.unlimited:
            return
        refused = [text for text in session.subscriptions if not access.may_subscribe(parse_filter(text).pattern)]
        for text in refused:
            self._give_up(session, text)
            if (flt := parse_filter(text)).group is not None:
                self._groups.hand_on(session, flt)
        if self._router.fanout.rights is not None:
            self._router.fanout.rights.withhold(session)
        if refused:
            event(_log, "revoked", WARNING, client=session.client_id, user=session.user, filters=len(refused))

    def resume(self, session: Session) -> None:
        """Make the filters of a session that is back live again, if they are still allowed; it goes on where it was."""
        self.revoke(session)
        for text, subscribed in session.subscriptions.items():
            flt = parse_filter(text)
            if flt.group is not None:
                self._groups.join(session, flt, subscribed)
            self._router.subscribe(session, flt, subscribed)
        for feed in session.feeds:  # what it was owed when the broker stopped
            one = session.subscriptions.get(feed.filter)
            if feed.rows is None and one is not None:
                self._router.retained.go_on(session, parse_filter(feed.filter), one, feed)
        self._router.resume(session)

    def leave(self, session: Session) -> None:
        """Let a session that is away cost nothing until it is back."""
        for text in session.subscriptions:
            self._withdraw(session, parse_filter(text))
        if session.durable:
            session.leave(self._router.routed)

    def drop(self, session: Session) -> None:
        """Keep nothing any more for a session that is gone."""
        if session.kept:
            for text in session.subscriptions:
                self._router.kept.remove(text)
