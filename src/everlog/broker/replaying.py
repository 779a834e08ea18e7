"""Subscriptions that begin in the past: may they, where is that, and what it does to the session."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from everlog.base import PeerError, UsageError
from everlog.broker.coldreading import Places
from everlog.broker.replay import BEGIN, END, LIVE_TOPIC, Wishes, forget_lost, rewind, say_lost, split_filter
from everlog.mqtt import Properties, Publish, Reason, Subscribe, encode
from everlog.sessions import Session, Subscribed
from everlog.store import Begin, Positions, parse_begin, show_positions
from everlog.topics import Filter

if TYPE_CHECKING:
    from everlog.broker.broker import Broker
    from everlog.broker.connection import Connection


@dataclass(slots=True)
class Answer:
    """A SUBACK in the making, and what is to be sent behind it."""

    wishes: Wishes
    places: Places
    reasons: list[Reason] = field(default_factory=list)
    why: dict[str, None] = field(default_factory=dict)  # in words, each once
    retained: list[tuple[Filter, Subscribed]] = field(default_factory=list)
    begins: list[str] = field(default_factory=list)  # of its replays
    end: str = ""

    def properties(self, connection: "Connection") -> Properties:
        """What the SUBACK says besides its reasons, to a client that wants to know."""
        said = connection.explain("; ".join(self.why))
        connect = connection.connect
        if not self.begins or connect is None or connect.properties.request_problem_information == 0:
            return said  # [MQTT-3.1.2-29]
        return replace(said, user_properties=(*((BEGIN, begin) for begin in self.begins), (END, self.end)))


class Replaying:
    """Lets sessions go back."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker

    def find_places(self, session: Session, packet: Subscribe, wishes: Wishes, then: Callable[[Places], None]) -> bool:
        """Have the cold tier asked where the packet's replays begin and `then` called; False if it need not be."""
        broker = self._broker
        if broker.history.cold is None:
            return False
        asked: dict[str, Begin] = {}
        for one in packet.subscriptions:
            try:
                text = split_filter(one.filter)[0] or wishes.begin
                if text is not None and broker.history.needs_cold(begin := parse_begin(text, broker.now_us())):
                    asked[text] = begin
            except (PeerError, UsageError):
                continue  # refused in its turn
        cold = broker.router.pulling.cold
        if asked and cold is not None:
            cold.find_places(session, asked, then)
        return bool(asked)

    def go_back(
        self, connection: "Connection", session: Session, flt: Filter, text: str, answer: Answer
    ) -> tuple[Positions, dict[str, Subscribed]]:
        """Let the session go back to where a replay begins: the offsets, and its other subscriptions as they become."""
        broker = self._broker
        if broker.acl is not None and not broker.acl.may_replay(connection.user, session.client_id, flt.pattern):
            raise PeerError(Reason.NOT_AUTHORIZED, "the history of the filter is not allowed")
        begins, lost = forget_lost(*self._place(text, answer))
        if flt.group is not None:
            return self._begin_group(flt, begins, answer), {}
        for shard, (first, stop) in lost.items():
            broker.router.pulling.lose(session, shard, first, stop)
        if lost:
            answer.why[say_lost(lost)] = None
        answer.begins.append(show_positions(begins))
        answer.end = show_positions(broker.router.routed)
        broker.metrics.replays += 1
        if answer.wishes.live:
            broker.router.pulling.on_live[session] = partial(self._say_live, session)
        return begins, rewind(session, flt.text, begins, broker.router.routed)

    def _begin_group(self, flt: Filter, begins: Positions, answer: Answer) -> Positions:
        """Where a shared group begins, if it is made by this; one that there is goes on where it is."""
        at = self._broker.groups.place_of(flt)
        if at is not None:
            answer.why["the group is there already and goes on where it is"] = None
        else:
            self._broker.metrics.replays += 1
        answer.begins.append(show_positions(at or begins))
        answer.end = show_positions(self._broker.router.routed)
        return begins

    def _place(self, text: str, answer: Answer) -> tuple[Positions, Positions]:
        if text in answer.places:
            found = answer.places[text]
            if found is None:
                raise PeerError(Reason.UNSPECIFIED_ERROR, "history can't be read now")
            return found
        history = self._broker.history
        try:
            return history.begins(parse_begin(text, self._broker.now_us())), history.starts()
        except UsageError as error:
            raise PeerError(Reason.TOPIC_FILTER_INVALID, str(error)) from None

    def _say_live(self, session: Session) -> None:
        """History is over for a session that wanted to know: all of it is sent, and what follows is new."""
        sink = self._broker.router.delivering.sinks.get(session)
        if sink is not None:
            payload = show_positions(self._broker.router.routed).encode()
            sink.write(encode(Publish(LIVE_TOPIC, payload), session.version))
