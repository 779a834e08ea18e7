"""Links between brokers of one test, without sockets: each broker may have an event loop and a thread of its own.

A link is there from when both have joined until one leaves or the test cuts it. What is said over a link that is cut is
lost, and whoever waits for an answer gets `Unavailable`.
"""

import asyncio
import threading
from collections.abc import Awaitable, Collection
from concurrent.futures import Future
from contextlib import suppress

from everlog.base import Unavailable
from everlog.cluster import Answerer, LinkKind, LinkWatcher


class FakeLinks:
    """All links; any thread may cut and mend them."""

    def __init__(self) -> None:
        self.ends: dict[int, FakePeers] = {}
        self.said: list[tuple[int, int, LinkKind, bytes]] = []  # from whom, to whom, what
        self._cut: set[frozenset[int]] = set()
        self._asked: dict[Future[bytes], frozenset[int]] = {}
        self._changing = threading.Lock()

    def join(self, incarnation: int) -> "FakePeers":
        """Return the end of one broker, whose event loop is the running one."""
        found = FakePeers(self, incarnation, asyncio.get_running_loop())
        with self._changing:
            self.ends[incarnation] = found
        for other in found.living:
            self._tell(incarnation, other, True)
        return found

    def _tell(self, one: int, other: int, is_open: bool) -> None:
        """Tell those who watch that a link is there, or is no more."""
        for here, there in ((one, other), (other, one)):
            end = self.ends.get(here)
            if end is not None:
                end.changed(there, is_open)

    def leave(self, incarnation: int) -> None:
        """End all links of a broker, such as when it is killed."""
        with self._changing:
            self.ends.pop(incarnation, None)
            lost = [asked for asked, link in self._asked.items() if incarnation in link]
        self._lose(lost)
        for other in list(self.ends):
            self._tell(incarnation, other, False)

    def cut(self, one: int, other: int) -> None:
        """End the link between two brokers."""
        with self._changing:
            self._cut.add(frozenset((one, other)))
            lost = [asked for asked, link in self._asked.items() if link == {one, other}]
        self._lose(lost)
        self._tell(one, other, False)

    def mend(self, one: int, other: int) -> None:
        """Let two brokers talk again."""
        with self._changing:
            self._cut.discard(frozenset((one, other)))
        self._tell(one, other, True)

    def end_of(self, one: int, other: int) -> "FakePeers | None":
        """Return the other end of a link; None if there is none."""
        with self._changing:
            return None if frozenset((one, other)) in self._cut else self.ends.get(other)

    def note(self, asked: "Future[bytes]", one: int, other: int) -> None:
        """Have an answer lost if the link is cut before it has come."""
        with self._changing:
            self._asked[asked] = frozenset((one, other))
        asked.add_done_callback(lambda _: self._asked.pop(asked, None))

    def _lose(self, lost: "list[Future[bytes]]") -> None:
        for asked in lost:
            with suppress(Exception):  # the answer has just come
                asked.set_exception(Unavailable("the link to the broker is cut"))


class FakePeers:
    """The other brokers, as one broker reaches them (`Peers`)."""

    def __init__(self, links: FakeLinks, incarnation: int, loop: asyncio.AbstractEventLoop) -> None:
        self.incarnation = incarnation
        self.is_asleep = False  # it hears what is said, and does not answer
        self.is_mute = False  # what it tells is lost on the way
        self._links = links
        self._loop = loop
        self._answerers: dict[LinkKind, Answerer] = {}
        self._watchers: list[LinkWatcher] = []

    @property
    def living(self) -> Collection[int]:
        """The incarnations that there is a link to."""
        others = [one for one in list(self._links.ends) if one != self.incarnation]
        return {one for one in others if self._links.end_of(self.incarnation, one) is not None}

    def ask(self, incarnation: int, kind: LinkKind, body: bytes) -> Awaitable[bytes]:
        """Return another's answer; raise `Unavailable` if it does not come."""
        asked: Future[bytes] = Future()
        other = self._links.end_of(self.incarnation, incarnation)
        self._links.said.append((self.incarnation, incarnation, kind, body))
        if other is None:
            asked.set_exception(Unavailable(f"there is no link to incarnation {incarnation}"))
        else:
            self._links.note(asked, self.incarnation, incarnation)
            other.hear(self.incarnation, kind, body, asked)
        return asyncio.wrap_future(asked)

    def tell(self, incarnation: int, kind: LinkKind, body: bytes) -> None:
        """Say something that may get lost."""
        other = self._links.end_of(self.incarnation, incarnation)
        self._links.said.append((self.incarnation, incarnation, kind, body))
        if other is not None and not self.is_mute:
            other.hear(self.incarnation, kind, body, None)

    def answer(self, kind: LinkKind, call: Answerer) -> None:
        """Have what is said of a kind answered."""
        self._answerers[kind] = call

    def watch(self, call: LinkWatcher) -> None:
        """Have a call made when a link is there, and when it is no more."""
        self._watchers.append(call)

    def changed(self, other: int, is_open: bool) -> None:
        """Tell those who watch, on their own thread."""
        for call in self._watchers:
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(call, other, is_open)

    def hear(self, asker: int, kind: LinkKind, body: bytes, asked: "Future[bytes] | None") -> None:
        """Take what another has said, on any thread; the answer goes to `asked`."""
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(lambda: self._loop.create_task(self._heard(asker, kind, body, asked)))

    async def _heard(self, asker: int, kind: LinkKind, body: bytes, asked: "Future[bytes] | None") -> None:
        if self.is_asleep:
            return
        try:
            answer = await self._answerers[kind](asker, body)
        except Exception as error:  # noqa: BLE001 - whatever it is, the other side hears of it
            if asked is not None:
                with suppress(Exception):
                    asked.set_exception(Unavailable(f"incarnation {self.incarnation} could not answer: {error!r}"))
            return
        if asked is not None:
            with suppress(Exception):
                asked.set_result(answer)
