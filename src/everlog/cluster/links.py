"""The links of a broker with all others: one connection a pair, questions and answers, made again when it is lost.

While there is no connection with a broker, a third one may relay what is said (`relays`).
Who is there comes from the membership board. Of two brokers the one with the higher incarnation dials: it came later,
and knows the other one from its first look at the board. Owned by the event loop's thread.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from logging import WARNING

from everlog.base import StorageError, Unavailable
from everlog.broker import event as report
from everlog.cluster.database import ClusterDatabase
from everlog.cluster.link import HELLO_S, Link
from everlog.cluster.link_frames import LinkFrame, frame_head
from everlog.cluster.link_hello import Hello, check_hello
from everlog.cluster.link_tls import LinkTls
from everlog.cluster.ports import Answerer, Bytes, Hearer, LinkKind, LinkWatcher
from everlog.cluster.questions import Questions
from everlog.cluster.relays import RelayedLink, Relays
from everlog.ownership import Member

FIRST_S, LONGEST_S = 0.05, 1.0  # between two tries to dial
PING_S = 1.0
SILENT_S = 5.0  # a link of which nothing is heard for so long is given up

_log = logging.getLogger("everlog.cluster")


class Links:
    """All links of one incarnation; `start` and `close` bracket its life."""

    def __init__(
        self,
        cluster: int,
        incarnation: int,
        name: str,
        *,
        database: ClusterDatabase | None = None,
        tls: LinkTls | None = None,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.incarnation = incarnation
        self.address = ""  # where others dial, once it is started
        self.ping_s, self.silent_s = PING_S, SILENT_S
        self._cluster = cluster
        self._name = name
        self._database = database
        self._tls = tls
        self._chance = chance
        self._members: Mapping[int, Member] = {}
        self._highest = incarnation  # the last incarnation that is known to have been given
        self._links: dict[int, Link | RelayedLink] = {}
        self._relays = Relays(self)
        self._connections: set[Link] = set()  # strangers, too
        self._dials: dict[int, asyncio.Task[None]] = {}
        self._hearers: dict[int, Hearer] = {}
        self._watchers: list[LinkWatcher] = []
        self._rests: list[Callable[[], None]] = []
        self._questions = Questions(self._send)
        self._server: asyncio.Server | None = None
        self._pinger: asyncio.Task[None] | None = None
        self._is_closed = False

    # Life

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> None:
        """Take connections of others on an address from now on."""
        loop = asyncio.get_running_loop()
        tls = None if self._tls is None else self._tls.listening
        self._server = await loop.create_server(lambda: Link(self), host, port, ssl=tls)
        bound = self._server.sockets[0].getsockname()
        self.address = f"{bound[0]}:{bound[1]}"
        self._pinger = loop.create_task(self._ping())

    def become(self, incarnation: int) -> None:
        """Be an incarnation, which has joined with the address that `start` found."""
        self.incarnation = incarnation
        self._highest = max(self._highest, incarnation)

    async def close(self) -> None:
        """End all links."""
        self._is_closed = True
        self.update({})
        tasks = [*self._dials.values(), *([self._pinger] if self._pinger is not None else [])]
        for task in tasks:
            task.cancel()
        if self._server is not None:
            self._server.close()
        for link in list(self._connections):
            link.close()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await self._questions.close()

    def update(self, members: Mapping[int, Member]) -> None:
        """Be linked with these from now on, and with nobody else."""
        self._members = {number: one for number, one in members.items() if number != self.incarnation}
        self._highest = max(self._highest, *members) if members else self._highest
        for number, link in list(self._links.items()):
            if number not in self._members and number <= self._highest:
                link.close(Unavailable(f"{link.name} is no member of the cluster any more"))
        for number, dial in list(self._dials.items()):
            if number not in self._members:
                dial.cancel()
                del self._dials[number]
        for number, member in self._members.items():
            if number < self.incarnation and number not in self._dials and not self._is_closed:
                self._dials[number] = asyncio.get_running_loop().create_task(self._keep(member))

    # What others use

    @property
    def living(self) -> Collection[int]:
        """The incarnations that there is a link to."""
        return self._links.keys()

    @property
    def relayed(self) -> int:
        """How many of these there is no connection with."""
        return len(self._relays)

    def ask(self, incarnation: int, kind: LinkKind, body: bytes) -> Awaitable[bytes]:
        """Return another's answer; raise `Unavailable` if it does not come: whether it was done is not known then."""
        return self._questions.ask(incarnation, kind, body)

    def answer(self, kind: LinkKind, call: Answerer) -> None:
        """Have questions of a kind answered; an error there is the asker's `Unavailable`."""
        self._questions.answerers[kind] = call

    def tell(self, incarnation: int, kind: LinkKind, body: bytes) -> None:
        """Say something that may get lost."""
        self._send(incarnation, kind, 0, body)

    def send(self, incarnation: int, kind: LinkKind, number: int, body: Bytes, rest: Bytes = b"") -> bool:
        """Say something with a number; return False if there is no link. The body may be given in two pieces."""
        return self._send(incarnation, kind, number, body, rest)

    def offer(self, kind: LinkKind, number: int, body: Bytes, rest: Bytes = b"") -> int:
        """Say something to all that are not slow; return how many did not get it."""
        if not self._links:
            return 0
        head = frame_head(kind, number, body, rest)  # with its check, which is the same for all
        return sum([not link.offer(head, body, rest) for link in self._links.values()])

    def hear(self, kind: LinkKind, call: Hearer) -> None:
        """Have a call made with the sender, the number and the body of what others tell."""
        self._hearers[kind] = call

    def rest(self, call: Callable[[], None]) -> None:
        """Have a call made when all was told that came at once."""
        self._rests.append(call)

    def watch(self, call: LinkWatcher) -> None:
        """Have a call made when a link is there, and when it is no more."""
        self._watchers.append(call)

    def _send(self, incarnation: int, kind: int, number: int, body: Bytes, rest: Bytes = b"") -> bool:
        link = self._links.get(incarnation)
        if link is None:
            return False
        link.send(kind, number, body, rest)
        return True

    # Links call these

    def time(self) -> float:
        """Return the loop's time."""
        return asyncio.get_running_loop().time()

    def hello(self, to: int) -> Hello:
        """Return what is said first to a peer."""
        system, timeline = (self._database.known if self._database is not None else None) or (0, 0)
        return Hello(self._cluster, self.incarnation, self._name, to, system=system, timeline=timeline)

    def meet(self, link: Link, theirs: Hello, *, called: bool) -> None:
        """Look at who a peer says it is; raise if there can be no link with it."""
        check_hello(self.hello(0 if called else link.to), theirs, called=called)
        if not self.may_link(theirs.incarnation):
            raise StorageError(f"incarnation {theirs.incarnation} ({theirs.name}) is no member of the cluster")
        if theirs.system and self._database is not None:
            self._database.learn(theirs.system, theirs.timeline)

    def may_link(self, incarnation: int) -> bool:
        """Return whether a broker is a member, or may be one of which the board has not told yet."""
        return not self._is_closed and (incarnation in self._members or incarnation > self._highest)

    def name_of(self, incarnation: int) -> str:
        """Return the name of a broker, as far as it is known."""
        member = self._members.get(incarnation)
        return f"incarnation {incarnation}" if member is None else member.name

    def made(self, link: Link) -> None:
        """Note a connection, of which nobody knows whose it is."""
        self._connections.add(link)
        asyncio.get_running_loop().call_later(HELLO_S, self._give_up_stranger, link)

    def _give_up_stranger(self, link: Link) -> None:
        if not link.is_open:
            link.close(Unavailable("a peer did not say who it is"))

    def opened(self, link: Link | RelayedLink) -> None:
        """Use a link; one with the same peer from before is over, though that may not be known here yet."""
        before = self._links.pop(link.incarnation, None)
        if before is not None:
            self._relays.ended(before)
            before.close(Unavailable(f"{link.name} has connected again"))
            self._down(link.incarnation)
        self._links[link.incarnation] = link
        self._relays.opened(link)
        over = link.via.name if isinstance(link, RelayedLink) else None
        report(_log, "link_open", peer=link.name, incarnation=link.incarnation, over=over)
        for call in list(self._watchers):
            call(link.incarnation, True)

    def ended(self, link: Link | RelayedLink) -> None:
        """Note that a connection is over, or the way over another broker."""
        if isinstance(link, Link):
            self._connections.discard(link)
        if self._links.get(link.incarnation) is link:
            del self._links[link.incarnation]
            self._relays.ended(link)
            report(_log, "link_lost", WARNING, peer=link.name, incarnation=link.incarnation, reason=link.why or "")
            self._down(link.incarnation)

    def _down(self, incarnation: int) -> None:
        self._questions.lost(incarnation)
        for call in list(self._watchers):
            call(incarnation, False)

    def received(self, link: Link | RelayedLink, frame: LinkFrame) -> None:
        """Hand on what a peer says."""
        if frame.kind in (LinkKind.ASK, LinkKind.REPLY):
            self._questions.received(link.incarnation, frame)
            return
        hearer = self._hearers.get(frame.kind)
        if hearer is not None:
            hearer(link.incarnation, frame.number, frame.body)
        elif isinstance(link, RelayedLink) or not self._relays.received(link, frame):
            self._questions.told(link.incarnation, frame)

    def rested(self) -> None:
        """Tell that all was handed on that came at once."""
        for call in self._rests:
            call()

    # Dialling

    async def _keep(self, member: Member) -> None:
        """Dial a peer, and again whenever the connection is lost, as long as it is a member."""
        loop = asyncio.get_running_loop()
        host, _, port = member.address.rpartition(":")
        pause_s, told = FIRST_S, ""
        while True:
            tls = None if self._tls is None else self._tls.dialling
            try:
                connect = loop.create_connection(
                    partial(Link, self, member.incarnation), host.strip("[]"), int(port), ssl=tls
                )
                _, link = await asyncio.wait_for(connect, HELLO_S)
                error = await link.lost
                if link.incarnation:
                    pause_s = FIRST_S
            except (OSError, ValueError, TimeoutError) as problem:
                error = Unavailable(f"{member.address}: {problem or 'no answer'}")
            if error is not None and str(error) != told:
                told = str(error)
                report(_log, "link_failed", WARNING, peer=member.name, reason=told)
            await asyncio.sleep(pause_s * (0.5 + self._chance() / 2))
            pause_s = min(2 * pause_s, LONGEST_S)

    async def _ping(self) -> None:
        """Say something to everyone now and then, and give up links of which nothing is heard."""
        while True:
            await asyncio.sleep(self.ping_s)
            now = self.time()
            missing = [one for one in self._members if one < self.incarnation and one not in self._links]
            self._relays.look(missing)
            for link in [one for one in self._connections if one.is_open]:
                if now - link.heard > self.silent_s:
                    link.close(Unavailable(f"{link.name} has not said anything for {self.silent_s} s"))
                elif link.waiting_bytes == 0:
                    link.send(LinkKind.PING, 0, b"")
