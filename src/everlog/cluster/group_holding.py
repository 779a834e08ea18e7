"""The shared groups of a cluster: who deals for which, asked of the database, and what brokers say of them over links.

A group is dealt for by the incarnation that holds its row. Who has a member and knows no dealer claims the row: a
living holder is asked for a seat over the link, again and again; a row that nobody living holds is taken. Who takes one
that was dealt for before waits until the log here has all that was dealt, and asks the others what their members have.
Who deals for fewer groups than others asks these to let some go. Owned by the event loop's thread.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from everlog.base import EverlogError
from everlog.broker import Dealt, FarGroups, Seated, SeatNews
from everlog.cluster.background import Background
from everlog.cluster.group_claims import GroupAnswer, GroupClaims, GroupKey
from everlog.cluster.group_frames import (
    DealFrame,
    NewsFrame,
    SeatQuestion,
    Sitting,
    decode_count,
    decode_deals,
    decode_news,
    decode_questions,
    decode_sittings,
    encode,
)
from everlog.cluster.group_shares import plan_moves
from everlog.cluster.ports import LinkKind, Peers
from everlog.cluster.session_holding import has_reached
from everlog.ownership import Overruled
from everlog.sessions import Changes, unpack_offsets

ASK_S = 2.0  # for an answer of another broker; after that it is asked again
RETRY_S = 0.1  # before a dealer is looked for again
SWEEP_S = 0.5  # between two looks at brokers that are away
IDLE_SWEEPS = 10  # between two looks at groups without members
SHARE_SWEEPS = 4  # between two looks at how many groups others deal for
FORGET_SWEEPS = 120  # between two looks at groups that nobody living holds
GIVEN_AT_ONCE = 16
TAKEN_S = 1.0  # for who has asked for groups to deal for them; then anybody may
T = TypeVar("T")
_log = logging.getLogger("everlog.cluster")


class GroupHolding:
    """The broker's `Dealers` over the rows of one incarnation."""

    def __init__(
        self,
        claims: GroupClaims,
        peers: Peers,
        follow: Callable[[], object],
        on_overruled: Callable[[EverlogError], None],
    ) -> None:
        """Take in `follow`, which reads what others have committed and may wait."""
        self.is_over = False
        self._claims = claims
        self._peers = peers
        self._follow = follow
        self._on_overruled = on_overruled
        self._far: FarGroups
        self._loop: asyncio.AbstractEventLoop
        self._wanted: dict[GroupKey, None] = {}
        self._owning: dict[GroupKey, asyncio.Future[None]] = {}  # claimed, and not dealt for yet
        self._claiming = False
        self._background = Background()
        self._do = self._background.do
        self._thread = self._background.thread("everlog-groups")
        self._follower = self._background.thread("everlog-group-reach")

    @property
    def incarnation(self) -> int:
        """The number of this broker."""
        return self._claims.incarnation

    def start(self, far: FarGroups) -> None:
        """Begin on the running event loop."""
        self._far = far
        self._loop = asyncio.get_running_loop()
        answers = {
            LinkKind.GROUP_JOIN: self._asked_to_join,
            LinkKind.GROUP_HELD: self._asked_what_is_held,
            LinkKind.GROUP_GIVE: self._asked_to_give,
            LinkKind.GROUP_DEAL: self._dealt,
            LinkKind.GROUP_NEWS: self._told_news,
            LinkKind.GROUP_SEATED: self._told_seated,
            LinkKind.GROUP_MOVED: self._told_moved,
        }
        for kind, call in answers.items():
            self._peers.answer(kind, call)
        self._peers.watch(self._linked)
        self._do(self._sweep())

    # What the groups ask

    def want(self, key: GroupKey) -> None:
        """Find out who deals for a group, or deal for it here if nobody does."""
        if not self.is_over:
            self._wanted[key] = None
            if not self._claiming:
                self._claiming = True
                self._do(self._look())

    def send_deals(self, taker: int, key: GroupKey, sitting: int, deals: tuple[Dealt, ...]) -> None:
        """Say to a seat what its members are dealt."""
        self._peers.tell(taker, LinkKind.GROUP_DEAL, encode(DealFrame(*key, sitting, deals)))

    def send_news(self, dealer: int, key: GroupKey, news: SeatNews) -> None:
        """Say to a dealer what has changed at the seat here."""
        self._peers.tell(dealer, LinkKind.GROUP_NEWS, encode(NewsFrame(*key, news)))

    def settle(self, key: GroupKey, taker: int, positions: list[int]) -> None:
        """Find out which QoS 2 messages a broker has stored with sessions, and let it store the others no more."""
        self._do(self._settle(key, taker, positions))

    async def _settle(self, key: GroupKey, taker: int, positions: list[int]) -> None:
        owed = await self._surely(lambda: self._claims.settle(key, taker, positions), "what was dealt is not decided")
        if owed is not None:
            self._far.settled(key, positions, owed)

    # Looking for dealers

    async def _look(self) -> None:
        """Claim what is wanted, until all of it has a dealer."""
        try:
            await asyncio.sleep(0)  # with all others of this turn
            while self._wanted and not self.is_over:
                wanted = [key for key in self._wanted if not self._far.is_seated(key)]
                self._wanted = dict.fromkeys(wanted)
                keys = [key for key in wanted if key not in self._owning and key not in self._far.leaving]
                if keys:
                    await self._claim(keys)
                if self._wanted:
                    await asyncio.sleep(RETRY_S)
        finally:
            self._claiming = False

    async def _claim(self, keys: list[GroupKey]) -> None:
        ends = [shard.committed for shard in self._far.router.log.shards]
        answer = await self._surely(lambda: self._claims.claim(keys, ends), "groups could not be claimed")
        if answer is None:
            return
        for key in answer.taken.keys() - self._owning.keys() - self._far.dealt.keys():  # claimed twice at once
            self._owning[key] = self._loop.create_future()
            self._do(self._own(key, answer))
        holders: dict[int, list[GroupKey]] = {}
        for key, holder in answer.held.items():
            holders.setdefault(holder, []).append(key)
        await asyncio.gather(*(self._join(holder, held) for holder, held in holders.items()))

    async def _join(self, dealer: int, keys: list[GroupKey]) -> None:
        """Ask a living holder for seats; whatever it answers, only the rows say who holds what."""
        if dealer not in self._peers.living:
            return
        asked = [SeatQuestion(*key, seated) for key in keys if (seated := self._far.sit(key, dealer)) is not None]
        try:
            body = await asyncio.wait_for(self._peers.ask(dealer, LinkKind.GROUP_JOIN, encode(asked)), ASK_S)
        except (EverlogError, TimeoutError):
            return
        for one in decode_sittings(body):
            self._far.seated((one.name, one.filter), one.sitting)

    async def _asked_to_join(self, asker: int, body: bytes) -> bytes:
        found = []
        for one in decode_questions(body):
            key = one.name, one.filter
            if key in self._owning:
                await asyncio.wait([self._owning[key]])
            if one.seated is not None and not self._far.is_halted and self._far.joined(asker, key, one.seated):
                found.append(Sitting(*key, one.seated.sitting))
        await self._stored()  # a group that was made for it is
        return encode(found)

    async def _stored(self) -> None:
        stored = self._loop.create_future()
        self._far.when_durable(lambda: None if stored.done() else stored.set_result(None))
        await stored

    # Dealing for a group

    async def _own(self, key: GroupKey, answer: GroupAnswer) -> None:
        """Deal for a group that was claimed: when the log here has all that was dealt, and with what others have."""
        row, deals = answer.taken[key], answer.deals.get(key, [])
        seats: dict[int, Seated] = {}
        try:
            if row is not None:
                await self._reach(unpack_offsets(row.positions))
                seats = await self._what_is_held([key], list(self._peers.living))
            if not self.is_over:
                self._far.own(key, row, deals, seats)
                self._tell_seated(key, seats)
        finally:
            self._owning.pop(key).set_result(None)

    async def _reach(self, positions: tuple[int, ...]) -> None:
        """Wait until the log here has been routed up to positions: nothing is set back."""
        router = self._far.router
        while not self.is_over and not has_reached(router.routed, list(positions)):
            await asyncio.sleep(0.005)
            try:
                await self._loop.run_in_executor(self._follower, self._follow)
            except EverlogError as error:
                _log.warning("what a group has dealt can't be read yet: %s", error)
                await asyncio.sleep(RETRY_S)

    async def _what_is_held(self, keys: list[GroupKey], others: list[int]) -> dict[int, Seated]:
        """Ask other brokers what they have of one group; who does not answer is asked again by the sweep."""

        async def ask(other: int) -> tuple[int, list[SeatQuestion]]:
            body = encode([SeatQuestion(*key) for key in keys])
            try:
                return other, decode_questions(
                    await asyncio.wait_for(self._peers.ask(other, LinkKind.GROUP_HELD, body), ASK_S)
                )
            except (EverlogError, TimeoutError):
                return other, []

        answers = await asyncio.gather(*(ask(other) for other in others))
        return {other: one.seated for other, said in answers for one in said if one.seated is not None}

    async def _asked_what_is_held(self, asker: int, body: bytes) -> bytes:
        keys = [(one.name, one.filter) for one in decode_questions(body)]
        return encode([SeatQuestion(*key, self._far.sit(key, asker)) for key in keys])

    def _tell_seated(self, key: GroupKey, seats: dict[int, Seated]) -> None:
        for other, seated in seats.items():
            self._peers.tell(other, LinkKind.GROUP_SEATED, encode([Sitting(*key, seated.sitting)]))

    # What others tell

    async def _dealt(self, teller: int, body: bytes) -> bytes:
        frame = decode_deals(body)
        self._far.deal(teller, (frame.name, frame.filter), frame.sitting, frame.deals)
        return b""

    async def _told_news(self, teller: int, body: bytes) -> bytes:
        frame = decode_news(body)
        self._far.news(teller, (frame.name, frame.filter), frame.news)
        return b""

    async def _told_seated(self, teller: int, body: bytes) -> bytes:
        for one in decode_sittings(body):
            self._far.seated((one.name, one.filter), one.sitting)
        return b""

    async def _told_moved(self, teller: int, body: bytes) -> bytes:
        self._far.dealer_lost(teller, [(one.name, one.filter) for one in decode_sittings(body)])
        return b""

    def _linked(self, other: int, is_open: bool) -> None:
        if not is_open and not self.is_over:
            self._far.unlinked(other)

    # Brokers that are away, and groups without members

    async def _sweep(self) -> None:
        count = 0
        while not self.is_over:
            await asyncio.sleep(SWEEP_S)
            count += 1
            for taker, keys in self._far.unsettled().items():
                if taker in self._peers.living:
                    await self._ask_again(taker, keys)
                elif await self._surely(partial(self._claims.is_dead, taker), "a broker is looked at"):
                    for key in keys:
                        self._far.taker_lost(taker, key)
            if count % IDLE_SWEEPS == 0:
                await self._end_idle()
            if count % SHARE_SWEEPS == 0 and self._peers.living:
                await self._take_share()
            if count % FORGET_SWEEPS == 0:
                await self._surely(self._claims.forget_unheld, "groups could not be looked at")

    async def _ask_again(self, taker: int, keys: list[GroupKey]) -> None:
        """Ask a broker what it has, of which there was no word since its link was lost."""
        body = encode([SeatQuestion(*key) for key in keys])
        try:
            said = decode_questions(await asyncio.wait_for(self._peers.ask(taker, LinkKind.GROUP_HELD, body), ASK_S))
        except (EverlogError, TimeoutError):
            return
        for one in said:
            key = one.name, one.filter
            if one.seated is None:
                self._far.taker_lost(taker, key)
            elif self._far.joined(taker, key, one.seated):
                self._tell_seated(key, {taker: one.seated})

    async def _end_idle(self) -> None:
        """Forget groups that nobody is subscribed to, connected or not."""
        idle = self._far.idle()
        if not idle:
            return
        unused = await self._surely(lambda: self._claims.unused(idle), "groups could not be looked at")
        ended = [key for key in unused or () if self._far.end(key, idle[key])]
        if ended:
            await self._stored()
            # Who wants one again by now has it still; who does so later claims it on the same thread, after this.
            unwanted = [key for key in ended if key not in self._far.seats and key not in self._owning]
            await self._surely(lambda: self._claims.release(unwanted, Changes()), "groups could not be let go")

    # Groups that move to who deals for fewer

    async def _take_share(self) -> None:
        """Have others let go of groups if this broker deals for fewer, and deal for these."""
        me = self.incarnation
        counts = await self._surely(self._claims.counts, "groups could not be counted")
        if counts is None or me not in counts:
            return
        living = {one: count for one, count in counts.items() if one == me or one in self._peers.living}
        for (holder, taker), count in plan_moves(living).items():
            if taker != me or self._far.is_halted:
                continue
            asked = self._peers.ask(holder, LinkKind.GROUP_GIVE, encode(min(count, GIVEN_AT_ONCE)))
            try:
                given = decode_sittings(await asyncio.wait_for(asked, ASK_S))
            except (EverlogError, TimeoutError):
                continue
            if given:
                await self._claim([(one.name, one.filter) for one in given])

    async def _asked_to_give(self, asker: int, body: bytes) -> bytes:
        """Let go of groups, those first of which the asker has members; all is stored before it hears of them."""
        far, most, given = self._far, decode_count(body), list[GroupKey]()
        for key in sorted(far.dealt, key=lambda key: asker not in far.dealt[key].seats):
            if len(given) < most and far.let_go(key):
                given.append(key)
        if given:
            await self._stored()
            await self._surely(partial(self._claims.release, given, Changes()), "groups could not be let go")
            for key in given:
                far.leaving.pop(key, None)
            self._loop.call_later(TAKEN_S, self._moved, given)
        return encode([Sitting(*key) for key in given])

    def _moved(self, keys: list[GroupKey]) -> None:
        """Have all look for another dealer who have not heard of one."""
        if not self.is_over:
            self._far.dealer_lost(0, keys)
            self._tell_moved(keys)

    def _tell_moved(self, keys: list[GroupKey]) -> None:
        for other in list(self._peers.living):
            self._peers.tell(other, LinkKind.GROUP_MOVED, encode([Sitting(*key) for key in keys]))

    # Life

    async def _surely(self, call: Callable[[], T], trouble: str) -> T | None:
        """Return what a call of the database returns, made again until it can be; None if this broker is over."""
        while not self.is_over:
            try:
                return await self._loop.run_in_executor(self._thread, call)
            except Overruled as error:
                self.is_over = True
                self._on_overruled(error)
            except EverlogError as error:
                _log.warning("%s, trying again: %s", trouble, error)
                await asyncio.sleep(RETRY_S)
        return None

    async def stop(self) -> None:
        """Let go of all groups: everything is stored."""
        self._background.cancel()
        keys = [*self._far.dealt, *self._far.leaving]
        if keys and not self.is_over:
            try:
                await self._loop.run_in_executor(self._thread, self._claims.release, keys, Changes())
            except EverlogError as error:
                _log.warning("groups could not be let go: %s", error)
            self._tell_moved(keys)
        self.is_over = True
        self._background.close()
