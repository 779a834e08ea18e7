"""SUBSCRIBE and UNSUBSCRIBE: what is allowed, what is retained, and what is kept for a durable session."""

import logging
from collections.abc import Iterator
from logging import WARNING
from typing import TYPE_CHECKING

from everlog.base import PeerError
from everlog.broker.events import event
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

    def subscribe(self, connection: "Connection", packet: Subscribe) -> None:
        """Every filter on its own: granted or refused; then the retained messages of those granted."""
        session = connection.session
        assert session is not None
        identifiers = packet.properties.subscription_identifiers
        identifier = identifiers[0] if identifiers else 0
        reasons: list[Reason] = []
        retained: list[tuple[Filter, Subscribed]] = []
        for asked in packet.subscriptions:
            try:
                flt, subscribed, is_new = self._one(connection, session, asked, identifier)
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
                reasons.append(Reason(error.reason))
                continue
            self._broker.metrics.subscribes += 1
            reasons.append(Reason(asked.qos))
            if flt.group is None and (asked.retain_handling == 0 or (asked.retain_handling == 1 and is_new)):
                retained.append((flt, subscribed))  # [MQTT-3.3.1-9] to [MQTT-3.3.1-11]
        if session.kept:
            connection.hold()
        connection.send(Suback(packet.packet_id, tuple(reasons)))
        for flt, subscribed in retained:
            session.feed(self._retained(session, flt, subscribed))
        if retained:
            self._broker.router.pulling.pump(session)

    def _one(
        self, connection: "Connection", session: Session, asked: Subscription, identifier: int
    ) -> tuple[Filter, Subscribed, bool]:
        broker = self._broker
        limits = broker.limits
        flt = parse_filter(asked.filter, max_levels=limits.topic_levels, max_bytes=limits.topic_bytes)
        if broker.acl is not None and not broker.acl.may_subscribe(connection.user, session.client_id, flt.pattern):
            raise PeerError(Reason.NOT_AUTHORIZED, "the filter is not allowed")
        if session.durable and flt.pattern == "#" and not limits.durable_wildcard:
            raise PeerError(Reason.NOT_AUTHORIZED, "a durable session may not subscribe to everything")
        old = session.subscriptions.get(asked.filter)
        if old is None and len(session.subscriptions) >= limits.subscriptions_per_client:
            raise PeerError(Reason.QUOTA_EXCEEDED, "too many subscriptions")
        subscribed = Subscribed(
            asked.filter,
            asked.qos,
            asked.no_local,
            asked.retain_as_published,
            asked.retain_handling,
            identifier,
            broker.router.ends() if old is None else old.since,
        )
        session.subscriptions[asked.filter] = subscribed
        session.no_local += asked.no_local - (old.no_local if old is not None else False)
        if session.kept and old is None:
            broker.keep.add(asked.filter)
        if session.kept and broker.persistence is not None:
            broker.persistence.mark_filter(session, asked.filter)
        broker.audiences.subscribe(session, flt, subscribed)
        return flt, subscribed, old is None

    def _retained(self, session: Session, flt: Filter, subscribed: Subscribed) -> Iterator[Piece]:
        """[MQTT-3.3.1-8] of 3.1.1: retained messages go out with RETAIN set, at most at the subscription's QoS."""
        identifiers = encode_identifiers([subscribed.identifier] if subscribed.identifier else [])
        delivery = Delivery(session, subscribed.qos, identifiers, True)
        for message in self._broker.retained.matching(flt):
            yield Piece(message.records, None, 0, 1, delivery)

    def unsubscribe(self, connection: "Connection", packet: Unsubscribe) -> None:
        """Every filter on its own."""
        session = connection.session
        assert session is not None
        reasons = []
        for text in packet.filters:
            gone = self._give_up(session, text)
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
        self._broker.audiences.unsubscribe(session, parse_filter(text))
        if session.kept:
            self._broker.keep.remove(text)
            if self._broker.persistence is not None:
                self._broker.persistence.mark_filter(session, text)
        return True

    def revoke(self, session: Session, user: str | None) -> int:
        """The rules have changed: give up the filters that are not allowed any more; how many."""
        acl = self._broker.acl
        if acl is None:
            return 0
        refused = [
            text
            for text in session.subscriptions
            if not acl.may_subscribe(user, session.client_id, parse_filter(text).pattern)
        ]
        return sum(self._give_up(session, text) for text in refused)

    def resume(self, session: Session) -> None:
        """A session is back: its filters are live again, and it goes on where it was."""
        for text, subscribed in session.subscriptions.items():
            self._broker.audiences.subscribe(session, parse_filter(text), subscribed)
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
