"""A broker on a simulated disk, durable clients, and the plain model of what each of them is owed.

Everything runs on the test's own event loop. A crash leaves of the log what a power cut would, and of the tables what
was synced. The model knows messages by number; it says what must come, what may, and how often.
"""

import asyncio
import contextlib
from collections.abc import Coroutine
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar

from tests.brokers import serve_on
from tests.inside import Inside
from tests.restarts import Client, SlowTables, check_positions, eventually
from tests.simulated_disk import SimulatedDisk

from everlog.broker import Broker
from everlog.commitlog import LogSettings
from everlog.mqtt import (
    Connack,
    Connect,
    Packet,
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
from everlog.store import LogStore
from everlog.topics import matches, parse_filter

T = TypeVar("T")
EXPIRY_S = 1000
SETTINGS = LogSettings(segment_bytes=700, batch_bytes=300, tail_bytes=400, merge_below=0, retention_bytes=600)
STUCK_S = 10  # nothing came in so long: nothing will
ANY = 0  # is no packet id
WORKERS = ("first", "second")
SHARED = "$share/workers/a/#"


@dataclass(slots=True)
class Model:
    """What one client is owed, by message numbers in the order of publishing."""

    filters: dict[str, int] = field(default_factory=dict)  # with the last message before each was subscribed to
    owed: dict[int, int] = field(default_factory=dict)  # message -> the QoS that it comes with
    maybe: dict[int, int] = field(default_factory=dict)  # so of messages that may come or not
    seen: set[int] = field(default_factory=set)
    unacknowledged: list[tuple[int, int, int]] = field(default_factory=list)  # packet id, QoS, message
    unreleased: dict[int, int] = field(default_factory=dict)  # packet id -> message, of QoS 2
    here: set[int] = field(default_factory=set)  # seen on this connection
    again: dict[int, int] = field(default_factory=dict)  # message -> packet id or ANY, that must come once more
    gone: set[int] = field(default_factory=set)  # the log has these no more
    highest: dict[str, int] = field(default_factory=dict)  # topic -> the last message that came for the first time

    def take(self, packet: Publish, order: str) -> None:
        """A message has come; `order` names what it is in order with."""
        number, packet_id = int(packet.payload), packet.packet_id
        assert packet.qos in (1, 2)
        if self.again.get(number) in (packet_id, ANY):
            del self.again[number]
        if packet.qos == 2 and packet_id in self.unreleased:
            assert (packet.dup, self.unreleased[packet_id]) == (True, number), f"{packet} while {self.unreleased}"
        elif number in self.seen:
            assert packet.dup, f"{number} once more, without DUP"
            assert packet.qos == 1, f"{number} came twice at QoS 2"
            assert number not in self.here, f"{number} came twice on one connection"
        else:
            assert number in self.owed or number in self.maybe, f"{number} is not owed"
            assert number > self.highest.get(order, 0), f"{number} after {self.highest}"
            self.highest[order] = number
            self.owed.pop(number, None)
            self.maybe.pop(number, None)
        self.seen.add(number)
        self.here.add(number)
        self.unacknowledged.append((packet_id, packet.qos, number))
        if packet.qos == 2:
            self.unreleased[packet_id] = number

    def disconnected(self) -> None:
        """What was not acknowledged must come again, with the same packet ids, if it is still there."""
        self.again.update((one, packet_id) for packet_id, _, one in self.unacknowledged if one not in self.gone)
        self.unacknowledged.clear()
        self.here.clear()

    def crashed(self) -> None:
        """Which packet id a QoS 1 message had is written behind: one that was not stored yet may come with another."""
        at_qos_2 = set(self.unreleased.values())
        self.again.update((number, ANY) for number in self.again if number not in at_qos_2)

    def excuse(self, numbers: list[int]) -> None:
        """These need not come any more."""
        for number in numbers:
            if number in self.owed:
                self.maybe[number] = self.owed.pop(number)
            self.again.pop(number, None)


@dataclass(slots=True)
class Group:
    """What the members of a shared group are owed together, at QoS 1."""

    members: set[str] = field(default_factory=set)  # subscribed, connected or not
    owed: set[int] = field(default_factory=set)
    maybe: set[int] = field(default_factory=set)
    unsaved: set[int] = field(default_factory=set)  # acknowledged; a crash may bring them back
    held: dict[str, dict[int, int]] = field(default_factory=dict)  # connected member -> packet id -> message

    def take(self, name: str, packet: Publish) -> None:
        """A message has come to a member."""
        number = int(packet.payload)
        assert packet.qos == 1
        assert number in self.owed | self.maybe, f"{number} is not owed to the group"
        assert packet.packet_id not in self.held[name], f"packet id {packet.packet_id} is in use"
        holders = [other for other, held in self.held.items() if number in held.values()]
        assert not holders, f"{number} is with {holders} and with {name}"
        self.held[name][packet.packet_id] = number

    def acknowledge(self, name: str, packet_id: int) -> None:
        number = self.held[name].pop(packet_id)
        self.owed.discard(number)
        self.maybe.discard(number)
        self.unsaved.add(number)

    def crashed(self) -> None:
        self.maybe |= self.unsaved
        self.unsaved.clear()

    def excuse(self, kept: set[int]) -> None:
        """What the log has no more need not come."""
        gone = self.owed - kept
        self.owed -= gone
        self.maybe |= gone

    def end(self) -> None:
        """Nobody is subscribed any more."""
        for messages in (self.owed, self.maybe, self.unsaved):
            messages.clear()


class World:
    """One broker after another, and the clients of all."""

    def __init__(self, seed: int, shards: int) -> None:
        self.random = Random(seed)
        self.disk = SimulatedDisk(Random(seed))
        self.shards = shards
        self.tables = SlowTables(self._committed)
        self.now_us = 1_000_000_000_000_000
        self.models: dict[str, Model] = {}
        self.group = Group()
        self.clients: dict[str, Client] = {}
        self.topics: dict[int, str] = {}
        self.number = 0
        self._is_disk_slow = False  # nothing is committed
        self._loop = asyncio.new_event_loop()
        self.run(self._start())

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(coroutine)

    def _committed(self) -> list[int]:
        return [shard.committed for shard in self.store.shards]

    async def _start(self) -> None:
        self._is_disk_slow = False
        self.store = LogStore.open("data", SETTINGS, shards=self.shards, disk=self.disk, background=False)
        self.broker = Broker(self.store, tables=self.tables, now_us=lambda: self.now_us)
        self.inside = Inside(self.broker)
        self.broker.start()
        self._server, self.port = await serve_on(self.broker)
        self._committer = self._loop.create_task(self._commit())
        self._publisher = await Client.open(self.port, "", clean=True, expiry=0)

    async def _commit(self) -> None:
        """In place of the committing thread."""
        while True:
            for shard in () if self._is_disk_slow else self.store.shards:
                while shard.commit_step():
                    pass
            await asyncio.sleep(0.001)

    def close(self) -> None:
        self.run(self._kill())
        self._loop.close()

    async def _leave(self) -> None:
        """Every connection ends without a DISCONNECT, and nobody can come."""
        for client in [self._publisher, *self.clients.values()]:
            await client.drop()
        self.clients.clear()
        self._server.close()
        for model in self.models.values():
            model.disconnected()
        self.group.held.clear()

    async def _end_committer(self) -> None:
        self._committer.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._committer

    # What happens to the broker

    def crash(self) -> None:
        """A power cut: another broker starts on what is left."""
        self.disk.crash()
        left = SimulatedDisk(self.random)
        for path, data in self.disk.files().items():
            left.put(path, data)
        tables = self.tables.durable(self._committed)
        self.run(self._kill())
        self.group.crashed()
        for model in self.models.values():
            model.crashed()
        self.disk, self.tables = left, tables
        self.run(self._start())

    async def _kill(self) -> None:
        """What the broker still does reaches nobody: its disk and tables are thrown away."""
        await self._end_committer()
        await self._leave()
        await self.inside.kill()

    def restart(self) -> None:
        """A clean stop, and another broker."""
        self.run(self._stop())
        self.group.unsaved.clear()
        self.run(self._start())

    async def _stop(self) -> None:
        await self._leave()
        await self.broker.stop()
        await self._end_committer()
        self.store.close()

    def pass_time(self) -> None:
        """So much that sessions without a client end."""
        self.now_us += 2 * EXPIRY_S * 1_000_000
        self.run(self._sweep())
        for name in [name for name in self.models if name not in self.clients]:
            del self.models[name]
        self.group.members &= set(self.clients)
        if not self.group.members:
            self.group.end()

    async def _sweep(self) -> None:
        self.inside.sweep_clients()
        await self.inside.save()  # a broker says more often than this that it is alive

    def roll(self) -> None:
        """The next message begins a segment, and those before it are sealed."""
        for shard in self.store.shards:
            assert shard._committer is not None
            shard._committer.roll()
            while shard.seal_step():
                pass

    def retain(self) -> None:
        """Retention runs; who has not read what goes loses it."""
        self.roll()
        self.now_us += 1
        self.store.run_retention(self.now_us)
        kept = set(self._numbers())
        self.group.excuse(kept)
        for model in self.models.values():
            model.excuse([number for number in [*model.owed, *model.again] if number not in kept])
            model.gone = set(self.topics) - kept

    def _numbers(self) -> list[int]:
        reader = self.store.reader(None)
        positions: tuple[int, ...] = (0,) * self.shards
        numbers = []
        while True:
            result = reader.read(positions, 10_000, 1 << 24)
            for found in result.batches:
                numbers += [int(bytes(found.records.row(row)[-1])) for row in found.row_numbers()]
            positions = result.positions
            if result.caught_up:
                return numbers

    # What clients do

    def connect(self, name: str, clean: bool, receive_maximum: int) -> None:
        self.run(self._connect(name, clean, receive_maximum))

    async def _connect(self, name: str, clean: bool, receive_maximum: int) -> None:
        old = self.clients.pop(name, None)
        client = Client(*await asyncio.open_connection("127.0.0.1", self.port))
        properties = Properties(session_expiry_interval=EXPIRY_S, receive_maximum=receive_maximum)
        client.send(Connect(5, name, clean_start=clean, properties=properties))
        present = (await client.expect(Connack)).session_present
        if old is not None:
            self.models[name].disconnected()
            await old.drop()
        assert present == (name in self.models and not clean), f"session present is {present}"
        if not present:
            self.models[name] = Model()
        self.clients[name] = client

    def disconnect(self, name: str) -> None:
        self.run(self.clients.pop(name).drop())
        self.models[name].disconnected()

    def acknowledge_and_go(self, name: str, places: list[int], reads: bool) -> None:
        """Some acks, and the client is gone before it answers what they are answered with, or before that."""
        self._acknowledge(name, places)
        if reads:
            self.clients[name].send(Pingreq())
            self.run(self._take_until(name, Pingresp, answers=False))
        self.disconnect(name)

    def subscribe(self, name: str, text: str, qos: int) -> None:
        client = self.clients[name]
        client.send(Subscribe(1, (Subscription(text, qos),)))
        self.run(self._take_until(name, Suback))
        self.models[name].filters.setdefault(text, self.number)

    def subscribe_meanwhile(self, name: str, text: str, qos: int, topics: list[str]) -> None:
        """A subscription begins while messages are on their way to the disk, where they will not arrive."""
        if text in self.models[name].filters:
            self.unsubscribe(name, text)
        self._is_disk_slow = True
        for topic in topics:
            number = self._begin(topic, 1)
            for model in self._subscribers(topic):
                model.maybe[number] = 1
            if self._is_shared(topic):
                self.group.maybe.add(number)
            if matches(parse_filter(text), topic):
                self.models[name].maybe[number] = 1
        self._publisher.send(Pingreq())
        self.run(self._publisher.expect(Pingresp))  # the messages were appended
        self.subscribe(name, text, qos)

    def check_stored(self) -> None:
        """No position that was stored lies above what is committed."""
        for changes, _ in self.tables.applied:
            check_positions(changes, self._committed())

    def unsubscribe(self, name: str, text: str) -> None:
        self.clients[name].send(Unsubscribe(1, (text,)))
        self.run(self._take_until(name, Unsuback))
        model = self.models[name]
        del model.filters[text]
        left = [(parse_filter(one), before) for one, before in model.filters.items()]
        model.excuse([n for n in model.owed if not any(n > at and matches(flt, self.topics[n]) for flt, at in left)])

    def publish(self, topic: str, qos: int) -> None:
        """A message, until it is acknowledged: from then on it is owed."""
        number = self._begin(topic, qos)
        self.run(self._finish(qos))
        for model in self._subscribers(topic):
            model.owed[number] = qos
        if self._is_shared(topic):
            self.group.owed.add(number)

    def publish_and_crash(self, topic: str, qos: int, turns: int) -> None:
        """A message that nobody has acknowledged when the power goes: it may be there or not."""
        number = self._begin(topic, qos)
        self.run(self._turn(turns))
        for model in self._subscribers(topic):
            model.maybe[number] = qos
        if self._is_shared(topic):
            self.group.maybe.add(number)
        self.crash()

    def _is_shared(self, topic: str) -> bool:
        return bool(self.group.members) and topic.startswith("a/")

    def _begin(self, topic: str, qos: int) -> int:
        self.number += 1
        self.topics[self.number] = topic
        self._publisher.send(Publish(topic, b"%d" % self.number, qos=qos, packet_id=1))
        return self.number

    async def _finish(self, qos: int) -> None:
        if qos == 1:
            await self._publisher.expect(Puback)
            return
        await self._publisher.expect(Pubrec)
        self._publisher.send(Pubrel(1))
        await self._publisher.expect(Pubcomp)

    async def _turn(self, turns: int) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)

    def _subscribers(self, topic: str) -> list[Model]:
        return [
            model for model in self.models.values() if any(matches(parse_filter(text), topic) for text in model.filters)
        ]

    def receive(self, name: str) -> None:
        """Take what has come so far."""
        self.clients[name].send(Pingreq())
        self.run(self._take_until(name, Pingresp))

    async def _take_until(self, name: str, kind: type[Packet], answers: bool = True) -> None:
        client, model = self.clients[name], self.models[name]
        while not isinstance(packet := await client.receive(), kind):
            if isinstance(packet, Publish):
                model.take(packet, self.topics[int(packet.payload)] if self.shards > 1 else "")
                assert packet.topic == self.topics[int(packet.payload)]
            else:
                assert isinstance(packet, Pubrel), packet
                model.unreleased.pop(packet.packet_id, None)
                if answers:
                    client.send(Pubcomp(packet.packet_id))

    def acknowledge(self, name: str, places: list[int]) -> None:
        """Some of what was received, in any order."""
        self._acknowledge(name, places)
        self.receive(name)

    def _acknowledge(self, name: str, places: list[int]) -> None:
        model = self.models[name]
        for place in places:
            if model.unacknowledged:
                packet_id, qos, _ = model.unacknowledged.pop(place % len(model.unacknowledged))
                self.clients[name].send(Pubrec(packet_id) if qos == 2 else Puback(packet_id))

    # What members of the group do

    def work(self, name: str, places: list[int]) -> None:
        """A member is there, takes what has come, and acknowledges some of it."""
        if name not in self.clients:
            self.run(self._come_to_work(name))
        self.run(self._take_work(name))
        held = self.group.held[name]
        for packet_id in {list(held)[place] for place in places if place < len(held)}:
            self.group.acknowledge(name, packet_id)
            self.clients[name].send(Puback(packet_id))
        self.run(self._take_work(name))

    async def _come_to_work(self, name: str) -> None:
        client = await Client.open(self.port, name, expiry=EXPIRY_S)
        assert client.connack.session_present == (name in self.group.members)
        self.clients[name], self.group.held[name] = client, {}
        if not client.connack.session_present:
            client.send(Subscribe(1, (Subscription(SHARED, 1),)))
            await self._take_work(name, Suback)
            self.group.members.add(name)

    async def _take_work(self, name: str, until: type[Packet] = Pingresp) -> None:
        client = self.clients[name]
        if until is Pingresp:
            client.send(Pingreq())
        while not isinstance(packet := await client.receive(), until):
            assert isinstance(packet, Publish), packet
            self.group.take(name, packet)

    def leave_work(self, name: str) -> None:
        """A member is gone, and what it had goes to the other."""
        self.run(self._leave_work(name))

    async def _leave_work(self, name: str) -> None:
        await self.clients.pop(name).drop()
        await eventually(lambda: name not in self.inside.connected_ids)
        del self.group.held[name]

    # The end

    def settle(self) -> None:
        """Everybody is there and acknowledges everything: all that is owed comes."""
        deadline = self._loop.time() + STUCK_S
        while self.group.owed:
            for name in sorted(self.group.members):
                self.work(name, list(range(100)))
            assert self._loop.time() < deadline, f"the group never got {self.group}"
        for name, model in self.models.items():
            if name not in self.clients:
                self.connect(name, False, self.random.choice((1, 2, 10)))
            deadline = self._loop.time() + STUCK_S
            while True:
                self.receive(name)
                self.acknowledge(name, [0] * len(model.unacknowledged))
                if not (model.owed or model.again or model.unacknowledged or model.unreleased):
                    break
                assert self._loop.time() < deadline, f"{name} never got {model}"
