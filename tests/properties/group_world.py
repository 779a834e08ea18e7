"""A broker that crashes, the members of one shared group, and the plain model of who may have which message.

Messages are numbers. Everything runs on the test's own event loop; a crash leaves of the tables what was synced.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from tests.restarts import Client, Disk, Running, eventually

from everlog.broker import GroupOptions
from everlog.mqtt import (
    Pingreq,
    Pingresp,
    Properties,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
)

T = TypeVar("T")
DURABLE = ("d1", "d2")
CLEAN = ("c1", "c2")
FILTER = "$share/g/t/#"


class GroupWorld:
    """One broker after another, the members, and what the model knows of every message."""

    def __init__(self, shards: int, qos: int, ordered: bool) -> None:
        self.qos, self.ordered = qos, ordered
        self.disk = Disk(shards)
        self.clients: dict[str, Client] = {}
        self.subscribed: set[str] = set()
        self.published: dict[int, str] = {}
        self.done: set[int] = set()  # acknowledged, and known to the broker
        self.unsaved: set[int] = set()  # of these, not known to be stored
        self.excused: set[int] = set()  # these need not come
        self.late: set[int] = set()  # these may be with two members at a time: one had them, read or not, for too long
        self.held: dict[str, dict[int, int]] = {}  # member -> packet id -> number, of QoS 1
        self.owner: dict[int, tuple[str, int]] = {}  # number -> the only one that may get it, of QoS 2
        self._loop = asyncio.new_event_loop()
        self.run(self._start())
        self.run(self._connect("d1"))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(work)

    async def _start(self) -> None:
        options = GroupOptions(inflight_messages=9, member_messages=4, ack_timeout_s=60)
        self._running = await Running(self.disk, groups=options).__aenter__()
        self.inside = self._running.inside
        self._publisher = await self._running.client("", clean=True, expiry=0)

    def close(self) -> None:
        self.run(self._running.__aexit__(None, None, None))
        self._loop.close()

    # Members

    def come(self, name: str) -> None:
        if name not in self.clients:
            self.run(self._connect(name))
        if name not in self.subscribed:
            self.run(self._subscribe(name))

    async def _connect(self, name: str) -> None:
        durable = name in DURABLE
        self.clients[name] = await self._running.client(name, clean=not durable, expiry=100_000 if durable else 0)
        self.held[name] = {}
        if name not in self.subscribed:
            await self._subscribe(name)

    async def _subscribe(self, name: str) -> None:
        order = Properties(user_properties=(("everlog-order", "topic"),) if self.ordered else ())
        self.clients[name].send(Subscribe(1, (Subscription(FILTER, self.qos),), order))
        await self._until(name, Suback)
        self.subscribed.add(name)

    def unsubscribe(self, name: str) -> None:
        if name in self.clients and name in self.subscribed and len(self.subscribed & set(DURABLE)) > 1:
            self.run(self._unsubscribe(name))

    async def _unsubscribe(self, name: str) -> None:
        self.clients[name].send(Unsubscribe(2, (FILTER,)))
        await self._until(name, Unsuback)
        self.subscribed.discard(name)

    def drop(self, name: str) -> None:
        if name in self.clients:
            self.run(self._drop(name))

    async def _drop(self, name: str) -> None:
        client = self.clients.pop(name)
        await client.drop()
        await eventually(lambda: name not in self.inside.connected_ids)
        self._forget(name)

    def _forget(self, name: str) -> None:
        self.held[name] = {}
        if name in CLEAN:
            self.subscribed.discard(name)
            self.excused |= self.unseen_exactly_once()

    def unseen_exactly_once(self) -> set[int]:
        """QoS 2 messages that may have been sent to a member that did not read them, and go to nobody else."""
        return set(self.published) - set(self.owner) if self.qos == 2 else set()

    # Messages

    def publish(self, topics: list[str]) -> None:
        for topic in topics:
            number = len(self.published) + 1
            self.published[number] = topic
            self.run(self._publish(topic, number))

    async def _publish(self, topic: str, number: int) -> None:
        self._publisher.send(Publish(topic, str(number).encode(), qos=self.qos, packet_id=1))
        await self._publisher.expect(Puback if self.qos == 1 else Pubrec)
        if self.qos == 2:
            self._publisher.send(Pubrel(1))
            await self._publisher.expect(Pubcomp)

    def receive(self, name: str) -> int:
        """All that has come; how many messages."""
        self.clients[name].send(Pingreq())
        return self.run(self._until(name, Pingresp))

    async def _until(self, name: str, kind: type) -> int:
        count = 0
        while not isinstance(packet := await self.clients[name].receive(), kind):
            if isinstance(packet, Pubrel):
                self.clients[name].send(Pubcomp(packet.packet_id))
            else:
                assert isinstance(packet, Publish), packet
                count += 1
                self._take(name, packet)
        return count

    def _take(self, name: str, packet: Publish) -> None:
        number, packet_id = int(packet.payload), packet.packet_id
        assert packet.topic == self.published[number]
        if packet.qos == 2:
            owner = self.owner.setdefault(number, (name, packet_id))
            assert owner == (name, packet_id), f"{number} went to {owner} and to {name}"
            self.clients[name].send(Pubrec(packet_id))
            return
        assert packet_id not in self.held[name], f"{packet_id} is in use"
        assert number not in self.done - self.late, f"{number} was acknowledged"
        holders = [other for other, held in self.held.items() if number in held.values()]
        assert not holders or (number in self.late and name not in holders), f"{number} is with {holders} and {name}"
        if self.ordered:
            self._check_order(name, number)
        self.held[name][packet_id] = number

    def _check_order(self, name: str, number: int) -> None:
        """Every older message of the topic is done, or with the same member."""
        mine = set(self.held[name].values()) | self.done | self.late | self.excused
        older = [one for one, topic in self.published.items() if one < number and topic == self.published[number]]
        assert all(one in mine for one in older), f"{number} before one of {older}, which are not done"
        others = [other for other in self.held if other != name]
        theirs = {one for other in others for one in self.held[other].values()} - self.late - self.done
        assert not [one for one in theirs if self.published[one] == self.published[number]]

    def acknowledge(self, name: str, places: list[int]) -> None:
        held = self.held[name]
        ids = list(held)
        for packet_id in {ids[place] for place in places if place < len(ids)}:
            number = held.pop(packet_id)
            self.clients[name].send(Puback(packet_id))
            self.done.add(number)
            self.unsaved.add(number)
        self.receive(name)  # the broker has seen them

    # Calamities

    def time_out(self) -> None:
        """Whoever is not alone loses what it has not acknowledged."""
        self.late.update(set(self.published) - self.done)
        self.run(self._sweep())

    async def _sweep(self) -> None:
        self.inside.sweep_groups(61)

    def save(self) -> None:
        self.run(self._running.saved())
        self.unsaved.clear()

    def crash(self) -> None:
        """A power cut: what was acknowledged and not stored comes again, or not."""
        left = self.disk.after_crash()
        self.done -= self.unsaved
        self.excused |= self.unsaved
        self.unsaved.clear()
        self._everyone_leaves()
        self.close_broker()
        self.disk = left
        self.run(self._start())

    def restart(self) -> None:
        """A clean stop."""
        self._everyone_leaves()
        self.close_broker()
        self.unsaved.clear()
        self.run(self._start())

    def close_broker(self) -> None:
        self.run(self._running.__aexit__(None, None, None))

    def _everyone_leaves(self) -> None:
        for name in list(self.clients):
            self.run(self.clients.pop(name).drop())
            self._forget(name)

    def settle(self) -> None:
        """Everybody comes and acknowledges everything, until nothing is left: then all has come."""
        for name in (*DURABLE, *CLEAN):
            self.come(name)
        quiet = 0
        while quiet < 2:
            quiet += 1
            for name in self.clients:
                count = self.receive(name)
                self.acknowledge(name, list(range(100)))
                quiet = 0 if count or self.held[name] else quiet
        come = self.done | self.excused | set(self.owner)
        assert set(self.published) <= come, f"{sorted(set(self.published) - come)} never came"
        (state,) = self.inside.group_states()
        assert (state.lag, state.inflight, state.owed) == (0, 0, 0)
