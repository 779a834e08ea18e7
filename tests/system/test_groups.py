"""A shared group and a real broker that is killed: nothing acknowledged to the publisher is lost, nothing done comes
again."""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from random import Random

import pytest
from tests.broker_process import PATIENCE_S, BrokerProcess
from tests.restarts import Client

from everlog.mqtt import Connack, Pingreq, Pingresp, Puback, Publish, Suback, Subscribe, Subscription

FILTER = "$share/workers/jobs/#"


class Served(BrokerProcess):
    """A broker, and those who connect to it as soon as it answers."""

    def __init__(self, directory: Path, shards: int, sync_ms: int = 0) -> None:
        flags = ("--shards", str(shards), "--set", "groups.member_messages=20", "--set", "groups.ack_timeout=1s")
        super().__init__(directory, *flags, sync_ms=sync_ms)

    @contextlib.asynccontextmanager
    async def client(self, name: str, *, durable: bool) -> AsyncIterator[Client]:
        """A client that is connected when the block begins, and gone when it ends."""
        client = await self._connected(name, durable)
        try:
            yield client
        finally:
            await client.drop()

    async def _connected(self, name: str, durable: bool) -> Client:
        expiry = 100_000 if durable else 0
        async with asyncio.timeout(PATIENCE_S):
            while True:
                with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                    client = await Client.open(self.port, name, clean=not durable, expiry=expiry, answer=False)
                    try:
                        client.connack = await client.expect(Connack)
                        return client
                    except BaseException:
                        await client.drop()
                        raise
                await asyncio.sleep(0.02)


class Worker:
    """A member that works until it is stopped, through lost connections; it acknowledges a little late."""

    def __init__(self, served: Served, name: str, durable: bool, random: Random) -> None:
        self.durable = durable
        self.is_subscribed = False  # a SUBACK has come
        self.done: Counter[int] = Counter()
        self._served, self._name, self._random = served, name, random
        self._client: Client | None = None
        self._connects = 0
        self._waiting: list[Publish] = []

    async def run(self) -> None:
        while True:
            async with self._served.client(self._name, durable=self.durable) as client:
                self._client = client
                self._connects += 1
                if not (client.connack.session_present and self.is_subscribed):
                    client.send(Subscribe(1, (Subscription(FILTER, 1),)))
                await self._work(client)

    async def _work(self, client: Client) -> None:
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._receive(client))
                both.create_task(self._acknowledge(client))
        except* (OSError, asyncio.IncompleteReadError):
            pass

    async def _receive(self, client: Client) -> None:
        self._waiting.clear()
        while True:
            packet = await client.receive()
            if isinstance(packet, Publish):
                self._waiting.append(packet)
            self.is_subscribed |= isinstance(packet, Suback)

    async def _acknowledge(self, client: Client) -> None:
        while True:
            await asyncio.sleep(self._random.uniform(0, 0.02))
            self._random.shuffle(self._waiting)
            some, self._waiting = self._waiting[:8], self._waiting[8:]
            self.done.update(int(one.payload) for one in some)
            client.send(*(Puback(one.packet_id) for one in some))

    def state(self) -> str:
        times = self.done.most_common(1)
        return f"{self._name}: {self._connects} connects, {len(self.done)} done, {times}, {len(self._waiting)} waiting"

    async def lose(self) -> None:
        if self._client is not None:
            await self._client.drop()


class Publisher:
    """Publishes numbers; what is not acknowledged it publishes again."""

    def __init__(self, served: Served) -> None:
        self.acknowledged: set[int] = set()
        self.stopped = False
        self._served = served
        self._open: dict[int, int] = {}
        self._next = 0

    def state(self) -> str:
        return f"publisher: {len(self.acknowledged)} acknowledged, {self._open} open"

    async def run(self) -> None:
        while not (self.stopped and not self._open):
            async with self._served.client("publisher", durable=False) as client:
                with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                    for packet_id, number in self._open.items():
                        self._send(client, packet_id, number)
                    await self._publish(client)

    async def _publish(self, client: Client) -> None:
        while not (self.stopped and not self._open):
            while len(self._open) < 20 and not self.stopped:
                packet_id = next(one for one in range(1, 40) if one not in self._open)
                self._open[packet_id] = self._next
                self._send(client, packet_id, self._next)
                self._next += 1
            packet = await client.expect(Puback)
            self.acknowledged.add(self._open.pop(packet.packet_id))

    def _send(self, client: Client, packet_id: int, number: int) -> None:
        client.send(Publish(f"jobs/{number % 7}", str(number).encode(), qos=1, packet_id=packet_id))


class Crew:
    """The workers and a publisher at work, until the block ends."""

    def __init__(self, served: Served, random: Random) -> None:
        self.workers = [Worker(served, f"w{k}", k < 3, random) for k in range(5)]
        self.publisher = Publisher(served)

    async def __aenter__(self) -> "Crew":
        self._tasks = [asyncio.create_task(one.run()) for one in self.workers]
        try:  # until a durable member has its SUBACK, the group is one of clean members, which keeps nothing
            await self.until(lambda: all(one.is_subscribed for one in self.workers if one.durable), "all subscribed")
        except BaseException:
            await self.__aexit__(BaseException)
            raise
        self._tasks.append(asyncio.create_task(self.publisher.run()))
        return self

    async def __aexit__(self, kind: object = None, *_: object) -> None:
        if kind is not None:
            print(self.state())
        pending = set(self._tasks)
        while pending:  # Python 3.11 can lose a cancellation that meets the end of a wait
            for task in pending:
                task.cancel()
            _, pending = await asyncio.wait(pending, timeout=1)

    def count(self) -> int:
        """How often a job was done."""
        return sum(one.done.total() for one in self.workers)

    def state(self) -> str:
        """What stands where, for whoever has to find out why it stays so."""
        workers = ", ".join(f"{one.state()}" for one in self.workers)
        done = {number for one in self.workers for number in one.done}
        return f"{workers}, {self.publisher.state()}, not done: {sorted(self.publisher.acknowledged - done)[:20]}"

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        """Let them work until something is so; it is never so when all stand still, or one of them fails."""
        before, since = -1, time.monotonic()
        while not condition():
            await asyncio.sleep(0.01)
            for task in self._tasks:
                if task.done():
                    task.result()
            if before != (before := self.count()):
                since = time.monotonic()
            assert time.monotonic() - since < PATIENCE_S, f"never: {what}: {self.state()}"

    async def finish(self) -> None:
        """Publish no more, and do every acknowledged job."""
        self.publisher.stopped = True
        publishing = self._tasks[-1]
        await self.until(publishing.done, "everything acknowledged")
        await self.until(self._is_done, "every acknowledged job done")

    def _is_done(self) -> bool:
        return self.publisher.acknowledged <= {number for one in self.workers for number in one.done}


@pytest.mark.parametrize(("shards", "sync_ms"), [(1, 0), (4, 0), (4, 20), (1, 40)])
def test_nothing_is_lost_when_members_and_the_broker_are_killed(tmp_path: Path, shards: int, sync_ms: int) -> None:
    random = Random(shards)

    async def run() -> None:
        with Served(tmp_path, shards, sync_ms) as served:
            async with Crew(served, random) as crew:
                for kill in (False, True, False, True, True):
                    goal = crew.count() + 300
                    await crew.until(lambda goal=goal: crew.count() >= goal, "300 more jobs done")  # type: ignore[misc]
                    if kill:
                        served.kill()
                        served.start()
                    else:
                        await random.choice(crew.workers).lose()
                await crew.finish()

    asyncio.run(run())


def test_a_group_that_nobody_serves_outlives_the_broker_and_what_is_done_does_not_come_again(tmp_path: Path) -> None:
    async def run() -> None:
        with Served(tmp_path, 1) as served:
            async with served.client("one", durable=True) as one:
                await one.subscribe(FILTER)
                await one.leave()
            async with served.client("publisher", durable=False) as publisher:
                for number in range(100):
                    await publisher.publish("jobs/a", str(number).encode())
            served.kill()
            served.start()
            async with served.client("one", durable=True) as one:
                assert one.connack.session_present
                first = await one.publishes(20)
                one.send(*(Puback(message.packet_id) for message in first[:15]), Pingreq())
                while not isinstance(await one.receive(), Pingresp):  # until the broker has read the acknowledgements
                    pass
                served.stop()  # in order: what was acknowledged is stored
            served.start()
            async with served.client("one", durable=True) as one:
                rest = []
                while len(rest) < 85:
                    rest.append(await one.expect(Publish))
                    one.send(Puback(rest[-1].packet_id))
                await one.nothing_more()
            assert [int(message.payload) for message in rest] == list(range(15, 100))

    asyncio.run(run())
