"""The way around a link that is cut: over one other broker that has a link with both.

All brokers tell whom they have a connection with. Of two that have none, the one that would dial asks a third to pass a
HELLO on; the answer comes back the same way, and from then on the third passes on everything that these two say to each
other, in order. To whoever uses the links that is a link like any other: it is there or lost, and what is said over it
arrives once or is lost with it. Offers are not passed on: the tail has them. Nothing is passed on twice.
Owned by the event loop's thread.
"""

import struct
from collections.abc import Iterable
from typing import TYPE_CHECKING

from everlog.base import EverlogError, Unavailable
from everlog.cluster.link_frames import BadFrame, LinkFrame
from everlog.cluster.ports import Bytes, LinkKind

if TYPE_CHECKING:
    from everlog.cluster.link import Link
    from everlog.cluster.links import Links

_HEAD = struct.Struct("<QB")  # the broker it is for, or is from; kind of the frame
_ASKS, _ANSWERS = 0, 1  # numbers of a HELLO that is passed on


class RelayedLink:
    """A link to a broker over another one."""

    def __init__(self, links: "Links", incarnation: int, name: str, via: "Link") -> None:
        self.incarnation = incarnation
        self.name = name
        self.via = via
        self.why: EverlogError | None = None
        self._links = links

    def send(self, kind: int, number: int, body: Bytes, rest: Bytes = b"") -> None:
        """Have a frame passed on."""
        self.via.send(LinkKind.RELAY, number, _HEAD.pack(self.incarnation, kind) + bytes(body), rest)

    def offer(self, head: bytes, body: Bytes, rest: Bytes) -> bool:
        """Send nothing: what is offered can be read elsewhere."""
        return False

    def close(self, why: EverlogError | None = None) -> None:
        """End the link."""
        self.why = self.why or why
        self._links.ended(self)


class Relays:
    """What others reach, and whom this broker reaches over them."""

    def __init__(self, links: "Links") -> None:
        self._links = links
        self._direct: dict[int, Link] = {}  # connections that are open, by incarnation
        self._reached: dict[int, frozenset[int]] = {}  # by broker: whom it has a connection with
        self._relayed: dict[int, RelayedLink] = {}  # by broker at the other end, those that are open
        self._asked: dict[int, int] = {}  # broker -> over whom it was asked last

    def __contains__(self, incarnation: int) -> bool:
        return incarnation in self._relayed

    def __len__(self) -> int:
        return len(self._relayed)

    # What the links tell

    def opened(self, link: "Link | RelayedLink") -> None:
        """Take note of a link that is used from now on."""
        if isinstance(link, RelayedLink):
            self._relayed[link.incarnation] = link
        else:
            self._direct[link.incarnation] = link
            self._tell()

    def ended(self, link: "Link | RelayedLink") -> None:
        """Take note of a link that is used no more, and end all that go over it."""
        if isinstance(link, RelayedLink):
            self._relayed.pop(link.incarnation, None)
            return
        self._direct.pop(link.incarnation, None)
        self._reached.pop(link.incarnation, None)
        self._end([one for one in self._relayed.values() if one.via is link])
        self._tell()

    def look(self, missing: Iterable[int]) -> None:
        """Ask for a way to brokers that there is no link to."""
        for incarnation in missing:
            via = min((one for one, reached in self._reached.items() if incarnation in reached), default=0)
            if via:
                self._asked[incarnation] = via
                self._hello(self._direct[via], incarnation, _ASKS)

    def received(self, link: "Link", frame: LinkFrame) -> bool:
        """Take what concerns relays; return False if a frame does not."""
        if frame.kind == LinkKind.REACHES:
            self._heard_reaches(link, frame.body)
        elif frame.kind == LinkKind.RELAY:
            self._pass_on(link, frame)
        elif frame.kind == LinkKind.RELAYED:
            self._passed_on(link, frame)
        else:
            return False
        return True

    # What others say

    def _tell(self) -> None:
        """Tell all whom this broker has a connection with."""
        for link in self._direct.values():
            others = [one for one in self._direct if one != link.incarnation]
            link.send(LinkKind.REACHES, 0, struct.pack(f"<{len(others)}Q", *others))

    def _heard_reaches(self, link: "Link", body: bytes) -> None:
        if len(body) % 8:
            raise BadFrame("a list of brokers is cut off")
        reached = self._reached[link.incarnation] = frozenset(struct.unpack(f"<{len(body) // 8}Q", body))
        self._end([one for one in self._relayed.values() if one.via is link and one.incarnation not in reached])

    def _pass_on(self, link: "Link", frame: LinkFrame) -> None:
        """Pass something on to a broker there is a connection with; else it is lost, as both know by now or soon."""
        incarnation, kind, body = _parts(frame.body)
        there = self._direct.get(incarnation)
        if there is not None:
            there.send(LinkKind.RELAYED, frame.number, _HEAD.pack(link.incarnation, kind) + body)

    def _passed_on(self, link: "Link", frame: LinkFrame) -> None:
        incarnation, kind, body = _parts(frame.body)
        if kind == LinkKind.HELLO:
            self._heard_hello(link, incarnation, frame.number)
            return
        relayed = self._relayed.get(incarnation)
        if relayed is not None and relayed.via is link:  # else it was on its way when that link was lost
            try:
                self._links.received(relayed, LinkFrame(kind, frame.number, body))
            except EverlogError as error:
                relayed.close(error)

    def _heard_hello(self, link: "Link", incarnation: int, number: int) -> None:
        """Have a link from here on, afresh if there is one; one without detours stays what it is."""
        if incarnation in self._direct or not self._links.may_link(incarnation):
            return
        if number == _ASKS:
            self._hello(link, incarnation, _ANSWERS)  # before anything that is said because there is a link now
        elif self._asked.pop(incarnation, None) != link.incarnation:
            return
        self._links.opened(RelayedLink(self._links, incarnation, self._links.name_of(incarnation), link))

    def _hello(self, via: "Link", incarnation: int, number: int) -> None:
        via.send(LinkKind.RELAY, number, _HEAD.pack(incarnation, LinkKind.HELLO))

    def _end(self, lost: list[RelayedLink]) -> None:
        for one in lost:
            one.close(Unavailable(f"{one.via.name} does not reach {one.name} any more"))


def _parts(body: bytes) -> tuple[int, int, bytes]:
    if len(body) < _HEAD.size:
        raise BadFrame(f"a frame of {len(body)} bytes is too short to be passed on")
    incarnation, kind = _HEAD.unpack_from(body)
    return incarnation, kind, body[_HEAD.size :]
