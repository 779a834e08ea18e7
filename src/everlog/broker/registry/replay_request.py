"""Replays: what a SUBSCRIBE asks of history, whether it is allowed, and where it begins.

A replay is a subscription that begins in the past: `since` says where, and the session's `lag` goes back to there, so
it reads the log like any session that is behind and turns live at its end. Its other subscriptions then begin where the
session was, so that they get nothing twice.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

from everlog.base import PeerError, UsageError
from everlog.broker.auth import Security
from everlog.broker.delivery import History, Places, Router
from everlog.broker.groups import GroupRegistry
from everlog.broker.metrics import Metrics
from everlog.mqtt import (
    TELL_PLACE,
    TELL_PUBLISHER,
    LongList,
    Properties,
    Publish,
    Reason,
    Subscribe,
    UserProperties,
    encode,
    encode_pair,
    user_properties,
)
from everlog.sessions import RetainedFeed, Session
from everlog.store import Begin, KeepRules, Positions, parse_begin, say_unkept, show_positions
from everlog.topics import Filter

PREFIX = "$replay/"
LIVE_TOPIC = "$replay/live"  # a client that asks for it gets a message here when history is over
FROM, POSITION, LIVE = "everlog-from", "everlog-position", "everlog-live"
PUBLISHER = "everlog-publisher"
BEGIN, END = "everlog-begin", "everlog-end"  # user properties of a SUBACK

IN_ORDER = ("everlog-order", "topic")  # the user property that asks for a group's messages of a topic in order

_YES = ("yes", "true", "1")
_MOST_WISHES = 1000  # user properties of a SUBSCRIBE that are looked at
_MOST_PLACES = 1000  # beginnings of a SUBSCRIBE that are remembered, so that each is looked up once
_LOOKED_AT = 100  # replays of one SUBSCRIBE of which it is said whether the settings keep them


@dataclass(frozen=True, slots=True)
class Wishes:
    """The wishes in the user properties of a SUBSCRIBE, for all of its filters."""

    begin: str | None = None
    tells: int = 0  # what each message carries besides: TELL_PLACE its position and time, TELL_PUBLISHER whose it is
    live: bool = False  # a message says when history is over
    in_order: bool = False  # a shared group's messages of a topic one after the other


NO_WISHES = Wishes()


def wishes_of(properties: Properties) -> Wishes:
    """Return the wishes in these properties; several beginnings are joined, and so are refused."""
    if not properties.user_properties:
        return NO_WISHES
    pairs = list(islice(properties.user_properties, _MOST_WISHES))
    begins = [value for key, value in pairs if key == FROM]
    return Wishes(
        (begins[0] if len(begins) == 1 else ", ".join(begins)) if begins else None,
        (TELL_PLACE if _asks(pairs, POSITION) else 0) | (TELL_PUBLISHER if _asks(pairs, PUBLISHER) else 0),
        _asks(pairs, LIVE),
        IN_ORDER in pairs,
    )


def _asks(pairs: Sequence[tuple[str, str]], wish: str) -> bool:
    """Return whether a wish is among the user properties."""
    return any(key == wish and value in _YES for key, value in pairs)


def split_filter(text: str) -> tuple[str | None, str]:
    """Split `$replay/<from>/<filter>` into its two parts; any other filter has no beginning."""
    if not text.startswith(PREFIX):
        return None, text
    _, begin, rest = text.split("/", 2) if text.count("/") > 1 else ("", "", "")
    if not rest or not begin:
        raise PeerError(Reason.TOPIC_FILTER_INVALID, "a replay is written $replay/<from>/<filter>")
    return begin, rest


def filter_of(text: str) -> str:
    """Return the filter that a subscription is stored under: a replay and its filter are the same subscription."""
    try:
        return split_filter(text)[1]
    except PeerError:
        return text


def first_begins(replayed: Mapping[str, Sequence[int]]) -> list[int]:
    """Return where the first of some replays begins in each shard."""
    return list(map(min, zip(*replayed.values(), strict=True)))


@dataclass(slots=True)
class Answer:
    """A SUBACK in the making, and what is to be sent after it."""

    wishes: Wishes
    places: Places
    reasons: bytearray = field(default_factory=bytearray)
    why: dict[str, None] = field(default_factory=dict)  # reasons in words, each once
    retained: dict[str, RetainedFeed] = field(default_factory=dict)
    begins: bytearray = field(default_factory=bytearray)  # where its replays begin, as user properties
    replayed: dict[str, Sequence[int]] = field(default_factory=dict)  # by filter, of those that are no group's
    end: str = ""

    def replays(self) -> UserProperties:
        """Return the user properties that say where the replays begin and where the present is."""
        return user_properties(bytes(self.begins + encode_pair(END, self.end))) if self.begins else ()


class ReplayRequests:
    """The lookup of where replays begin."""

    def __init__(
        self,
        router: Router,
        groups: GroupRegistry,
        history: History,
        security: Security,
        metrics: Metrics,
        kept: KeepRules,
    ) -> None:
        self._router = router
        self._groups = groups
        self._history = history
        self._security = security
        self._metrics = metrics
        self._kept = kept

    def find_places(self, session: Session, asked: dict[str, Begin], then: Callable[[Places], None]) -> None:
        """Ask the cold tier where replays begin, for `then`."""
        cold = self._router.catchup.cold
        assert cold is not None
        cold.find_places(session, asked, then)

    def may_need_cold(self, packet: Subscribe, wishes: Wishes) -> bool:
        """Return whether `cold_begins` is to be asked, without a look at each filter of a long packet."""
        if self._router.catchup.cold is None:
            return False
        if wishes.begin is not None:
            return True
        filters = packet.subscriptions
        if isinstance(filters, LongList):
            return PREFIX.encode() in filters.body
        return any(one.filter.startswith(PREFIX) for one in filters)

    def cold_begins(self, packet: Subscribe, wishes: Wishes) -> Generator[None, None, dict[str, Begin]]:
        """Return which of a packet's replays begin where only the cold tier knows, in steps."""
        asked: dict[str, Begin] = {}
        for one in packet.subscriptions:
            yield
            try:
                text = split_filter(one.filter)[0] or wishes.begin
                if text is not None and self._history.needs_cold(begin := parse_begin(text, self._router.now_us())):
                    asked[text] = begin
            except (PeerError, UsageError):
                continue  # `begins` refuses it
        return asked

    def begins(self, session: Session, flt: Filter, text: str, answer: Answer) -> Positions:
        """Return where a replay of a filter begins, and put it into the answer."""
        if not self._security.acl.may_replay(session.user, session.client_id, flt.pattern):
            raise PeerError(Reason.NOT_AUTHORIZED, "the history of the filter is not allowed")
        begins, lost = forget_lost(*self._place(text, answer))
        at = self._groups.place_of(flt) if flt.group is not None else None
        answer.begins += encode_pair(BEGIN, show_positions(at or begins))
        if at is not None:
            answer.why["the group exists already and goes on where it is"] = None
            return begins
        self._metrics.replays += 1
        if len(answer.begins) <= _LOOKED_AT and not self._kept.keeps(flt):
            answer.why[say_unkept(flt.pattern)] = None
        if flt.group is None:
            for shard, (first, stop) in lost.items():
                self._router.catchup.lose(session, shard, first, stop)
            if lost:
                answer.why[say_lost(lost)] = None
            if answer.wishes.live:
                self._router.catchup.on_live[session] = partial(self._say_live, session)
        return begins

    def tells(self, session: Session, flt: Filter, answer: Answer) -> int:
        """Return what messages of a filter carry besides, of what was asked for; the answer says why not all of it.

        Who may read the history of a topic may know who has published it, and nobody else.
        """
        asked = answer.wishes.tells
        if not asked & TELL_PUBLISHER:
            return asked
        if not self._router.names_publishers:
            answer.why["who has published is not kept (keep.publishers)"] = None
        elif not self._security.acl.may_replay(session.user, session.client_id, flt.pattern):
            answer.why["who has published is told to those who may replay the filter"] = None
        else:
            return asked
        return asked & ~TELL_PUBLISHER

    def _place(self, text: str, answer: Answer) -> tuple[Positions, Positions]:
        if text in answer.places:
            found = answer.places[text]
            if found is None:
                raise PeerError(Reason.UNSPECIFIED_ERROR, "history can't be read now")
            return found
        try:
            found = self._history.begins(parse_begin(text, self._router.now_us())), self._history.starts()
        except UsageError as error:
            raise PeerError(Reason.TOPIC_FILTER_INVALID, str(error)) from None
        if len(answer.places) < _MOST_PLACES:
            answer.places[text] = found
        return found

    def _say_live(self, session: Session) -> None:
        """Tell a session that asked for it that all of history has been sent, and what follows is new."""
        payload = show_positions(self._router.routed).encode()
        self._router.fanout.write(session, encode(Publish(LIVE_TOPIC, payload), session.version))


def forget_lost(begins: Positions, starts: Sequence[int]) -> tuple[Positions, dict[int, tuple[int, int]]]:
    """Move a beginning up to what still exists; return it, and by shard what that leaves out."""
    lost = {
        shard: (begin, start) for shard, (begin, start) in enumerate(zip(begins, starts, strict=True)) if begin < start
    }
    return tuple(map(max, zip(begins, starts, strict=True))), lost


def say_lost(lost: dict[int, tuple[int, int]]) -> str:
    """Say in words which offsets are gone."""
    gone = ", ".join(f"{shard}:{begin} to {shard}:{start - 1}" for shard, (begin, start) in lost.items())
    return f"no longer kept: {gone}"
