"""SUBSCRIBE and UNSUBSCRIBE: what is allowed, what is retained, and what is kept for a durable session."""

import logging
from collections.abc import Iterator
from logging import WARNING
from typing import TYPE_CHECKING

from everlog.base import PeerError
from everlog.broker.coldreading import Places
from everlog.broker.events import event
from everlog.broker.replay import Wishes, filter_of, split_filter, wishes_of
from everlog.broker.replaying import Answer, Replaying
from everlog.mqtt import Reason, Suback, Subscribe, Subscription, Unsuback, Unsubscribe, encode_identifiers
from everlog.sessions import Delivery, Piece, Session, Subscribed
from everlog.topics import Filter, parse_filter

if TYPE_CHECKING:
    from everlog.broker.broker import Broker
    from everlog.broker.connection import Connection

_log = logging.getLogger("everlog.broker")


class Subscriber:
    """Changes subscriptions, in the session and in what follows from it."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._replaying = Replaying(broker)

    def subscribe(self, connection: "Connection", packet: Subscribe) -> None:
        """SUBSCRIBE; where a replay begins may take a while to find out, then the rest happens by then."""
        wishes, session = wishes_of(packet.properties), connection.session
        assert session is not None

        def then(places: Places) -> None:
            if connection.session is session and connection.is_open:
                self._subscribe(connection, packet, wishes, places)

        if not self._replaying.find_places(session, packet, wishes, then):
            self._subscribe(connection, packet, wishes, {})

    def _subscribe(self, connection: "Connection", packet: Subscribe, wishes: Wishes, places: Places) -> None:
        """Every filter on its own: granted or refused; then what is sent to those granted."""
        session = connection.session
        assert session is not None
        pulling = self._broker.router.pulling
        answer = Answer(wishes, places)
        for asked in packet.subscriptions:
            try:
                self._one(connection, session, asked, packet, answer)
            except PeerError as error:
                self._broker.metrics.subscribes_refused += 1
                event(
                    _log,
                    "subscribe_refused",
                    WARNING,
                    client=session.client_id,
                    user=connection.user,
                    filter=asked.filter,
                    reason=error,
                )
                answer.reasons.append(Reason(error.reason))
                answer.why[error.message] = None
        pulling.changed(session)
        if session.kept:
            connection.hold()
        connection.send(Suback(packet.packet_id, tuple(answer.reasons), answer.properties(connection)))
        for flt, subscribed in answer.retained:
            session.feed(self._retained(session, flt, subscribed))
        if answer.retained or answer.begins:
            pulling.pump(session)

    def _one(
        self, connection: "Connection", session: Session, asked: Subscription, packet: Subscribe, answer: Answer
    ) -> None:
        broker = self._broker
        begin, text = split_filter(asked.filter)
        begin = begin or answer.wishes.begin
        flt, old = self._check(connection, session, text)
        if begin is not None:
            since, changed = self._replaying.go_back(connection, session, flt, begin, answer)
            for other, one in changed.items():
                self._put(session, parse_filter(other), one)
        else:
            since = broker.router.ends() if old is None else old.since
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
        session.no_local += asked.no_local - (old.no_local if old is not None else False)
        if session.kept and old is None:
            broker.keep.add(text)
        self._put(session, flt, subscribed)
        if flt.group is not None:
            in_order = ("everlog-order", "topic") in packet.properties.user_properties
            broker.groups.subscribed(session, flt, ordered=in_order, since=None if begin is None else since)
        broker.metrics.subscribes += 1
        answer.reasons.append(Reason(asked.qos))
        wants_retained = asked.retain_handling == 0 or (asked.retain_handling == 1 and old is None)
        if flt.group is None and wants_retained and begin is None:  # history has what was retained in it
            answer.retained.append((flt, subscribed))  # [MQTT-3.3.1-9] to [MQTT-3.3.1-11]

    def _check(self, connection: "Connection", session: Session, text: str) -> tuple[Filter, Subscribed | None]:
        """The filter, if the client may subscribe to it, and the subscription to it that there is."""
        broker, limits = self._broker, self._broker.limits
        flt = parse_filter(text, max_levels=limits.topic_levels, max_bytes=limits.topic_bytes)
        if broker.acl is not None and not broker.acl.may_subscribe(connection.user, session.client_id, flt.pattern):
            raise PeerError(Reason.NOT_AUTHORIZED, "the filter is not allowed")
        if session.durable and not limits.durable_wildcard and flt.levels[-1] == "#" and {*flt.levels} <= {"+", "#"}:
            raise PeerError(Reason.NOT_AUTHORIZED, "a durable session may not subscribe to everything")
        old = session.subscriptions.get(text)
        if old is None and len(session.subscriptions) >= limits.subscriptions_per_client:
            raise PeerError(Reason.QUOTA_EXCEEDED, "too many subscriptions")
        return flt, old

    def _put(self, session: Session, flt: Filter, subscribed: Subscribed) -> None:
        """A subscription, new or changed, in all places that know it."""
        session.subscriptions[subscribed.filter] = subscribed
        if session.kept and self._broker.persistence is not None:
            self._broker.persistence.mark_filter(session, subscribed.filter)
        self._broker.audiences.subscribe(session, flt, subscribed)

    def _retained(self, session: Session, flt: Filter, subscribed: Subscribed) -> Iterator[Piece]:
        """[MQTT-3.3.1-8] of 3.1.1: retained messages go out with RETAIN set, at most at the subscription's QoS."""
        identifiers = encode_identifiers([subscribed.identifier] if subscribed.identifier else [])
        delivery = Delivery(session, subscribed.qos, identifiers, True, position=subscribed.position)
        for message in self._broker.retained.matching(flt):
            if subscribed.no_local and message.publisher == session.client_id:  # [MQTT-3.8.3-3]
                continue
            yield Piece(message.records, None, 0, 1, delivery)

    def unsubscribe(self, connection: "Connection", packet: Unsubscribe) -> None:
        """Every filter on its own."""
        session = connection.session
        assert session is not None
        reasons = []
        for text in packet.filters:
            gone = self._give_up(session, filter_of(text))
            reasons.append(Reason.SUCCESS if gone else Reason.NO_SUBSCRIPTION_EXISTED)
        if session.kept:
            connection.hold()
        connection.send(Unsuback(packet.packet_id, tuple(reasons)))

    def _give_up(self, session: Session, text: str) -> bool:
        """A connected session has this filter no more; whether it had."""
        old = session.subscriptions.pop(text, None)
        if old is None:
            return False
        session.no_local -= old.no_local
        flt = parse_filter(text)
        self._broker.audiences.unsubscribe(session, flt)
        self._broker.router.pulling.changed(session)
        if flt.group is not None:
            self._broker.groups.unsubscribed(session, flt)
        if session.kept:
            self._broker.keep.remove(text)
            if self._broker.persistence is not None:
                self._broker.persistence.mark_filter(session, text)
        return True

    def revoke(self, session: Session, user: str | None) -> None:
        """The rules may have changed: give up the filters that are not allowed any more."""
        acl = self._broker.acl
        if acl is None:
            return
        refused = [
            text
            for text in session.subscriptions
            if not acl.may_subscribe(user, session.client_id, parse_filter(text).pattern)
        ]
        for text in refused:
            self._give_up(session, text)
        if refused:
            event(_log, "revoked", WARNING, client=session.client_id, user=user, filters=len(refused))

    def resume(self, session: Session, user: str | None) -> None:
        """A session is back: its filters are live again if they are still allowed, and it goes on where it was."""
        for text, subscribed in session.subscriptions.items():
            self._broker.audiences.subscribe(session, parse_filter(text), subscribed)
        self.revoke(session, user)
        self._broker.groups.resumed(session)
        self._broker.router.pulling.resume(session)

    def leave(self, session: Session) -> None:
        """A session is away: it costs nothing until it is back."""
        for text in session.subscriptions:
            self._broker.audiences.unsubscribe(session, parse_filter(text))
        if session.durable:
            for shard, at in enumerate(self._broker.router.routed):
                session.lag.setdefault(shard, at)

    def drop(self, session: Session) -> None:
        """A session is gone: nothing is kept for it any more."""
        if session.kept:
            for text in session.subscriptions:
                self._broker.keep.remove(text)
        session.subscriptions.clear()
