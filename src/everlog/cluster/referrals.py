"""Which broker of a cluster a client is referred to: on drain to the living by turns, on imbalance to the emptiest.

Each broker tells the others once a second how many clients it has. With `above` set, one that has more than so many
times the mean refers new MQTT 5 clients to the broker with the fewest, which is below the mean and so refers nobody.
Only brokers that tell how clients reach them are named. Owned by the event loop's thread.
"""

import asyncio
import struct
from collections.abc import Callable

from everlog.broker import Referral
from everlog.cluster.broker_keeper import BrokerKeeper
from everlog.cluster.formats import about_of
from everlog.cluster.links import Links
from everlog.cluster.ports import LinkKind

TELL_S = 1.0
FEW = 20  # connections above the mean that are no imbalance, however few there are in all
_COUNT = struct.Struct("<Q")


class ClusterReferrals:
    """The broker's `Referrals` over the members of its cluster."""

    def __init__(
        self, keeper: BrokerKeeper, links: Links, connected: Callable[[], int], above: float | None = None
    ) -> None:
        self.is_leaving = False  # this broker ends, which the board may not say yet
        self._keeper = keeper
        self._links = links
        self._connected = connected
        self._above = above
        self._counts: dict[int, int] = {}  # of clients, by incarnation
        self._turn = 0
        links.hear(LinkKind.CLIENTS, self._heard)
        links.watch(self._link_changed)

    async def run(self) -> None:
        """Tell the others how many clients are here, again and again."""
        while True:
            for incarnation in list(self._links.living):
                self._links.tell(incarnation, LinkKind.CLIENTS, _COUNT.pack(self._connected()))
            await asyncio.sleep(TELL_S)

    def at_connect(self, version: int) -> Referral | None:
        """Return where a client has to go instead."""
        if self.is_leaving or self._keeper.is_draining:
            return Referral("this broker is drained", self.at_end())
        if self._above is None or version != 5:
            return None
        server = self._emptier()
        return None if server is None else Referral("this broker has far more clients than others", server)

    def at_end(self) -> str | None:
        """Return the next of the living brokers, by turns."""
        servers = list(self._servers().values())
        self._turn += 1
        return servers[self._turn % len(servers)] if servers else None

    def _servers(self) -> dict[int, str]:
        """Return the addresses for clients of all others that live, stay and tell theirs."""
        me, found = self._keeper.incarnation, {}
        for number, member in self._keeper.board.members.items():
            clients = about_of(member).clients
            if number != me and clients and not member.draining and number in self._links.living:
                found[number] = clients
        return found

    def _emptier(self) -> str | None:
        assert self._above is not None
        here = self._connected()
        counts = [here, *self._counts.values()]
        mean = sum(counts) / len(counts)
        if here <= max(self._above * mean, mean + FEW):
            return None
        below = [(self._counts[one], address) for one, address in self._servers().items() if one in self._counts]
        fewest, address = min(below, default=(here, ""))
        return address if address and fewest < mean else None

    def _heard(self, sender: int, number: int, body: bytes) -> None:
        if len(body) == _COUNT.size:
            self._counts[sender] = _COUNT.unpack(body)[0]

    def _link_changed(self, incarnation: int, is_there: bool) -> None:
        if not is_there:
            self._counts.pop(incarnation, None)
