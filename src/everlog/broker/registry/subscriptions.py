"""SUBSCRIBE and UNSUBSCRIBE: what is allowed, what is retained, and what is kept for a durable session."""

import logging
from collections.abc import Callable, Generator, Sequence
from logging import WARNING
from typing import Any, TypeAlias

import cython
from msgspec.structs import replace

from everlog.base import PeerError
from everlog.broker.auth import Security
from everlog.broker.delivery import Places
from everlog.broker.events import event
from everlog.broker.groups import GroupRegistry
from everlog.broker.limits import Limits
from everlog.broker.metrics import Metrics
from everlog.broker.registry.replay_request import (
    NO_WISHES,
    PREFIX,
    Answer,
    ReplayRequests,
    Wishes,
    filter_of,
    first_begins,
    split_filter,
    wishes_of,
)
from everlog.broker.registry.write_behind import WriteBehind
from everlog.broker.turns import Steps
from everlog.mqtt import LongList, Reason, Subscribe, Subscription, Unsubscribe
from everlog.sessions import SessionMemory, Subscribed, filter_bytes
from everlog.store import Begin, show_positions
from everlog.topics import Filter, covers, known_filter, parse_filter

if not cython.compiled:
    from everlog.broker.delivery import Router
    from everlog.broker.registry.filter_runs import FilterRuns
    from everlog.sessions import Session

_RUN = 64  # filters of a client that leaves, taken back in well below a tenth of a millisecond
_EXACT_PER_STEP = 8  # filters without wildcards, each of which concerns one topic
_Granted: TypeAlias = dict[Subscription, int]  # the filters of a packet so far, each with its reason code
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
        self.memory = SessionMemory(limits.sessions_bytes)
        self._kept = kept  # by configuration, at every QoS
        self._router = router
        self._groups = groups
        self._replays = replays
        self._security = security
        self._limits = limits
        self._metrics = metrics
        self._write_behind = write_behind
        self._runs = FilterRuns(router, self.memory, security, limits, metrics, write_behind)

    def subscribe(
        self,
        session: Session,
        packet: Subscribe,
        work: Callable[[Steps, Callable[[Any], None]], None],
        then: Callable[[Answer], None],
    ) -> None:
        """Grant or refuse every filter and have `then` called with the answer; `work` does that in turns.

        Where a replay begins may take a while to find out; the rest happens by then, if the client is still there.
        """
        wishes = wishes_of(packet.properties)
        sink = self._router.sink(session)

        def granted(answer: Answer) -> None:
            """Answer when every group has a broker that deals for it: what is published from then on is its own."""
            assert self._groups.far is not None
            self._groups.far.when_seated(session, lambda: then(answer) if self._router.sink(session) is sink else None)

        def found(places: Places) -> None:
            if self._router.sink(session) is sink:
                work(self._grant(session, packet, wishes, places), then if self._groups.far is None else granted)

        def asked(begins: dict[str, Begin]) -> None:
            if begins:
                self._replays.find_places(session, begins, found)
            else:
                found({})

        if self._replays.may_need_cold(packet, wishes):
            work(self._replays.cold_begins(packet, wishes), asked)
        else:
            found({})

    def _grant(
        self, session: Session, packet: Subscribe, wishes: Wishes, places: Places
    ) -> Generator[None, None, Answer]:
        """Grant or refuse one filter after the other; return the answer.

        A replay makes the session go back when all is granted. Until then it is halted, so that it is handed nothing
        that it would be handed once more.
        """
        answer = Answer(wishes, places)
        granted: _Granted = {}  # a filter that is named again, with the same options, changes nothing
        try:
            if isinstance(packet.subscriptions, LongList):
                yield from self._grant_long(session, packet, answer, granted)
            else:
                for number, wanted in enumerate(packet.subscriptions, 1):
                    self._grant_next(session, wanted, packet, answer, granted)
                    if answer.replayed:
                        session.halt()
                    if answer.replayed or _ends_step(number, wanted.filter):
                        yield
            if answer.replayed:  # once for all of them, since it looks at every subscription
                yield from self._rewind(session, answer.replayed)
        finally:
            if answer.replayed:
                session.go_on()
        if answer.begins:
            answer.end = show_positions(self._router.routed)
        return answer

    def _grant_long(self, session: Session, packet: Subscribe, answer: Answer, granted: _Granted) -> Steps:
        """Grant or refuse the filters of a long list: plain ones a run at a time, the others one by one."""
        entries = packet.subscriptions
        assert isinstance(entries, LongList)
        (identifier, *_) = packet.properties.subscription_identifiers or (0,)
        is_plain = answer.wishes == NO_WISHES
        at, end, number = entries.begin, len(entries.body), 0
        pause = alone = 0  # filters until another run is tried: the more, the longer there was none
        while at < end:
            begin = at
            if is_plain and alone == 0:
                at = self._runs.grant(session, entries.body, at, identifier, answer.reasons)
                pause = 0 if at > begin else min(2 * pause + 1, _RUN)
                alone = pause
            if at > begin:
                yield
                continue
            number, alone = number + 1, max(0, alone - 1)
            wanted, at = entries.read(at)
            self._grant_next(session, wanted, packet, answer, granted)
            if answer.replayed:
                session.halt()
            if answer.replayed or _ends_step(number, wanted.filter):
                yield

    def _rewind(self, session: Session, replayed: dict[str, Sequence[int]]) -> Steps:
        """Go back to where the first replay begins; what is no replay begins where the session is now."""
        begins = first_begins(replayed)
        here = session.ahead_of(begins, self._router.routed)
        for text in list(session.subscriptions) if here else ():
            if text not in replayed:
                changed = session.begin_later(text, here, len(begins))
                if changed is not None:
                    self._put(session, known_filter(text), changed)
                yield
        self._router.fanout.absent.pop(session, None)  # it asks for history, all of it
        session.rewind({shard: begins[shard] for shard in here})

    def _grant_next(
        self, session: Session, wanted: Subscription, packet: Subscribe, answer: Answer, granted: _Granted
    ) -> None:
        """Grant or refuse a filter, unless the packet has named it before."""
        asked = wanted  # [MQTT-3.2.2-10] at most the highest QoS is granted
        if wanted.qos > self._limits.qos:
            asked = replace(wanted, qos=self._limits.qos)
        reason = granted.get(asked)
        if reason is None:
            reason = self._grant_one(session, asked, packet, answer)
            if len(granted) < self._limits.subscriptions_per_client:
                granted[asked] = reason
        answer.reasons.append(reason)

    def _grant_one(self, session: Session, asked: Subscription, packet: Subscribe, answer: Answer) -> int:
        """Return the reason code for one filter; why it is refused is told once for each reason."""
        try:
            self._one(session, asked, packet, answer)
        except PeerError as error:
            self._metrics.subscribes_refused += 1
            if error.message not in answer.why:
                fields = {"client": session.client_id, "user": session.user, "filter": asked.filter}
                event(_log, "subscribe_refused", WARNING, **fields, reason=error)
                answer.why[error.message] = None
            return error.reason
        return asked.qos

    def answered(self, session: Session, answer: Answer) -> None:
        """Send what follows the SUBACK: retained messages, and history."""
        session.feed(*answer.retained.values())
        if answer.retained or answer.begins:
            self._router.pump(session)

    def _one(self, session: Session, asked: Subscription, packet: Subscribe, answer: Answer) -> None:
        begin, text = None, asked.filter
        if text.startswith(PREFIX):
            begin, text = split_filter(text)
        text = session.mounted(text)
        begin = begin or answer.wishes.begin
        in_order = answer.wishes.in_order
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
            asked.no_local or (session.is_bridge and flt.group is None),
            asked.retain_as_published or session.is_bridge,
            asked.retain_handling,
            identifiers[0] if identifiers else 0,
            since,
            self._replays.tells(session, flt, answer) if answer.wishes.tells else 0,
        )
        session.subscribe(subscribed)
        self.count(session)
        if session.kept and old is None:
            self._router.kept.add(text)
        if flt.group is not None:
            self._groups.join(session, flt, subscribed, ordered=in_order, since=None if begin is None else since)
        self._put(session, flt, subscribed)
        self._metrics.subscribes += 1
        wants_retained = asked.retain_handling == 0 or (asked.retain_handling == 1 and old is None)
        # a replay has them in it
        if wants_retained and flt.group is None and begin is None and self._router.retained.may_have(flt):
            feed = self._router.retained.feed(session, flt, subscribed)
            answer.retained[text] = feed  # [MQTT-3.3.1-9] to [MQTT-3.3.1-11]

    def _check(self, session: Session, text: str, replays: bool, in_order: bool) -> tuple[Filter, Subscribed | None]:
        """Return the filter, if the client may subscribe to it, and the subscription to it that there is."""
        limits = self._limits
        flt = self._parse(text)
        acl = self._security.acl
        if acl.rules is not None and not acl.may_subscribe(session.user, session.client_id, flt.pattern):
            raise PeerError(Reason.NOT_AUTHORIZED, "the filter is not allowed")
        if flt.group is not None and self._router.forwarder is not None and self._groups.far is None:
            raise PeerError(Reason.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED, "brokers that share no sessions share no groups")
        of_log = flt.group is not None and (replays or in_order or self._groups.is_ordered(flt))
        if not (flt.is_exact or limits.durable_wildcard) and (session.kept or of_log) and self._is_everything(flt):
            raise PeerError(Reason.NOT_AUTHORIZED, "a durable session may not subscribe to everything")
        old = session.subscriptions.get(text)
        if old is None and len(session.subscriptions) >= limits.subscriptions_per_client:
            raise PeerError(Reason.QUOTA_EXCEEDED, "too many subscriptions")
        if old is None and not self.memory.has_room(session.held_bytes, filter_bytes(text, session.kept)):
            raise self._over("sessions_bytes", session, "all subscriptions together take too much")
        if flt.group is not None and (session.kept or of_log) and not self._groups.is_durable(flt):
            self._check_new_group(session)
        return flt, old

    def _parse(self, text: str) -> Filter:
        """Return the filter of a text, if it is one and within the limits."""
        return parse_filter(text, max_levels=self._limits.topic_levels, max_bytes=self._limits.topic_bytes)

    def _is_everything(self, flt: Filter) -> bool:
        """Return whether a filter, kept for one session, would fill the disk with what is not kept otherwise."""
        return {*flt.levels} <= {"+", "#"} and not any(covers(one, flt) for one in self._kept)

    def _check_new_group(self, session: Session) -> None:
        """Refuse one more durable group if there are too many, or the session is in too many."""
        limits, groups = self._limits, self._groups
        if len(groups) >= limits.groups:
            raise self._over("groups", session, "too many durable shared groups")
        if groups.size_bytes >= groups.max_bytes:
            raise self._over("groups_bytes", session, "durable shared groups take too much")
        if len(session.memberships) >= limits.groups_per_client:
            raise self._over("groups_per_client", session, "too many durable shared groups of one client")

    def _over(self, limit: str, session: Session, why: str) -> PeerError:
        event(_log, "limit", WARNING, limit=limit, client=session.client_id, user=session.user)
        return PeerError(Reason.QUOTA_EXCEEDED, why)

    def count(self, session: Session) -> None:
        """Count what a session has more, or less, in the memory of all."""
        self.memory.total_bytes += session.take_growth()

    def _put(self, session: Session, flt: Filter, subscribed: Subscribed) -> None:
        """Tell those who follow of a subscription, new or changed."""
        self._mark(session, subscribed.filter)
        self._router.subscribe(session, flt, subscribed)

    def _mark(self, session: Session, text: str) -> None:
        if session.kept and self._write_behind is not None:
            self._write_behind.mark_filter(session, text)

    def unsubscribe(self, session: Session, packet: Unsubscribe) -> Generator[None, None, bytes]:
        """Give up one filter after the other; return the reasons that the UNSUBACK has for each."""
        reasons = bytearray()
        for number, text in enumerate(packet.filters, 1):
            had_it = self._give_up(session, session.mounted(filter_of(text)))
            reasons.append(Reason.SUCCESS if had_it else Reason.NO_SUBSCRIPTION_EXISTED)
            if _ends_step(number, text):
                yield
        return bytes(reasons)

    def _give_up(self, session: Session, text: str) -> bool:
        """Take a filter from a connected session; return whether it had it."""
        if session.unsubscribe(text) is None:
            return False
        self.count(session)
        flt = known_filter(text)
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

    def revoke(self, session: Session) -> Steps:
        """Give up the filters that are not allowed any more, in steps: the rules may have changed."""
        access = self._security.acl.access(session.user, session.client_id)
        if access.unlimited:
            return
        refused = 0
        for text in list(session.subscriptions):
            flt = known_filter(text)
            if not access.may_subscribe(flt.pattern):
                refused += self._give_up(session, text)
                if flt.group is not None:
                    self._groups.hand_on(session, flt)
            yield
        if self._router.fanout.rights is not None:
            self._router.fanout.rights.withhold(session)
        if refused:
            event(_log, "revoked", WARNING, client=session.client_id, user=session.user, filters=refused)

    def resume(self, session: Session) -> Steps:
        """Make the filters of a session that is back live again, in steps, if they are still allowed.

        It goes on where it was when all of them are: it is halted until then.
        """
        session.halt()
        yield from self.revoke(session)
        for text, subscribed in list(session.subscriptions.items()):
            flt = known_filter(text)
            if flt.group is not None:
                self._groups.join(session, flt, subscribed)
            self._router.subscribe(session, flt, subscribed)
            yield
        for feed in list(session.feeds):  # what it was owed when the broker stopped
            one = session.subscriptions.get(feed.filter)
            if feed.source is None and one is not None:
                self._router.retained.go_on(session, parse_filter(feed.filter), one, feed)
            yield
        session.go_on()
        self._router.resume(session)
        if self._groups.far is not None:
            self._groups.pump(session)

    def leave(self, session: Session) -> Steps:
        """Let a session that is away cost nothing until it is back, in steps; it is halted."""
        if session.durable:
            session.leave(self._router.routed)  # before a filter goes: what is routed from now on, it reads later
        texts = list(session.subscriptions)
        for start in range(0, len(texts), _RUN):
            if start:
                yield
            some = texts[start : start + _RUN]
            last = some.pop()  # by the router, which tells all others who follow
            if not self._router.spills.has(session):
                some = self._router.audiences.unsubscribe_exact(session, some)
            for number, text in enumerate((*some, last), 1):
                self._withdraw(session, known_filter(text))
                if _ends_step(number, text):
                    yield

    def drop(self, session: Session) -> Steps:
        """Keep nothing any more for a session that is gone, in steps."""
        self.memory.total_bytes -= session.counted_bytes
        if session.kept:
            for number, text in enumerate(session.subscriptions, 1):
                self._router.kept.remove(text)
                if _ends_step(number, text):
                    yield


def _ends_step(number: int, text: str) -> bool:
    """Return whether others should have a turn after so many filters, of which this is the last."""
    return number % _EXACT_PER_STEP == 0 or "+" in text or "#" in text
