"""A shared group and a real broker that is killed: nothing acknowledged to the publisher is lost, nothing done comes
again."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from tests.restarts import Client

from everlog.bench.load.brokers import free_port
from everlog.mqtt import Connack, Puback, Publish, Subscribe, Subscription

FILTER = "$share/workers/jobs/#"


class Served:
    """`everlog serve` in a process of its own, killed and started again on the same data and port."""

    def __init__(self, data: Path, shards: int) -> None:
        self.port = free_port()
        self.clients: list[Client] = []
        self._command = [
            *(sys.executable, "-m", "everlog", "serve", "--port", str(self.port), "--data", str(data)),
            *("--http-port", "none", "--shards", str(shards), "--set", "groups.member_messages=20"),
            *("--set", "groups.ack_timeout=1s"),
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Served":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end(signal.SIGTERM)

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)

    def end(self, number: int) -> None:
        assert self._process is not None
        assert self._process.poll() is None, "the broker ended by itself"
        os.kill(self._process.pid, number)
        self._process.wait()

    async def client(self, name: str, *, durable: bool) -> Client:
        """As soon as the broker answers."""
        expiry = 100_000 if durable else 0
        async with asyncio.timeout(60):
            while True:
                with contextlib.suppress(OSError):
                    client = await Client.open(self.port, name, clean=not durable, expiry=expiry, answer=False)
                    try:
                        client.connack = await client.expect(Connack)
                        self.clients.append(client)
                        return client
                    except (OSError, asyncio.IncompleteReadError):
                        await client.drop()
                await asyncio.sleep(0.02)

    async def drop_all(self) -> None:
        for client in self.clients:
            await client.drop()


class Worker:
    """A member that works until it is stopped, through lost connections; it acknowledges a little late."""

    def __init__(self, served: Served, name: str, durable: bool, random: Random) -> None:
        self.done: Counter[int] = Counter()
        self._served, self._name, self._durable, self._random = served, name, durable, random
        self._client: Client | None = None
        self._waiting: list[Publish] = []

    async def run(self) -> None:
        while True:
            self._client = client = await self._served.client(self._name, durable=self._durable)
            if not client.connack.session_present:
                client.send(subscribe())
            try:
                async with asyncio.TaskGroup() as both:
                    both.create_task(self._receive(client))
                    both.create_task(self._acknowledge(client))
            except* (OSError, asyncio.IncompleteReadError):
                await client.drop()

    async def _receive(self, client: Client) -> None:
        self._waiting.clear()
        while True:
            packet = await client.receive()
            if isinstance(packet, Publish):
                self._waiting.append(packet)

    async def _acknowledge(self, client: Client) -> None:
        while True:
            await asyncio.sleep(self._random.uniform(0, 0.02))
            self._random.shuffle(self._waiting)
            some, self._waiting = self._waiting[:8], self._waiting[8:]
            self.done.update(int(one.payload) for one in some)
            client.send(*(Puback(one.packet_id) for one in some))

    async def lose(self) -> None:
        if self._client is not None:
            await self._client.drop()


def subscribe() -> Subscribe:
    return Subscribe(1, (Subscription(FILTER, 1),))


class Publisher:
    """Publishes numbers; what is not acknowledged it publishes again."""

    def __init__(self, served: Served) -> None:
        self.acknowledged: set[int] = set()
        self.stopped = False
        self._served = served
        self._open: dict[int, int] = {}
        self._next = 0

    async def run(self) -> None:
        while not (self.stopped and not self._open):
            client = await self._served.client("publisher", durable=False)
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                for packet_id, number in self._open.items():
                    self._send(client, packet_id, number)
                await self._publish(client)
            await client.drop()

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


async def until(condition: Callable[[], bool], what: str) -> None:
    """Let the others work until something is so."""
    try:
        async with asyncio.timeout(90):
            while not condition():  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"never: {what}") from None


@pytest.mark.parametrize("shards", [1, 4])
def test_nothing_is_lost_when_members_and_the_broker_are_killed(tmp_path: Path, shards: int) -> None:
    random = Random(shards)

    async def run() -> None:
        with Served(tmp_path, shards) as served:
            workers = [Worker(served, f"w{k}", k < 3, random) for k in range(5)]
            publisher = Publisher(served)
            tasks = [asyncio.create_task(one.run()) for one in workers]
            publishing = asyncio.create_task(publisher.run())

            def count() -> int:
                return sum(one.done.total() for one in workers)

            for kill in (False, True, False, True, True):
                goal = count() + 300
                await until(lambda goal=goal: count() >= goal, "300 more jobs done")  # type: ignore[misc]
                if kill:
                    served.end(signal.SIGKILL)
                    served.start()
                else:
                    await random.choice(workers).lose()
            publisher.stopped = True
            await publishing
            await until(lambda: publisher.acknowledged <= done(workers), "every acknowledged job done")
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await served.drop_all()

    asyncio.run(run())


def done(workers: list[Worker]) -> set[int]:
    return {number for one in workers for number in one.done}


def test_a_group_that_nobody_serves_outlives_the_broker_and_what_is_done_does_not_come_again(tmp_path: Path) -> None:
    async def run() -> None:
        with Served(tmp_path, 1) as served:
            one = await served.client("one", durable=True)
            await one.subscribe(FILTER)
            await one.leave()
            publisher = await served.client("publisher", durable=False)
            for number in range(100):
                await publisher.publish("jobs/a", str(number).encode())
            served.end(signal.SIGKILL)
            served.start()
            one = await served.client("one", durable=True)
            assert one.connack.session_present
            first = [await one.expect(Publish) for _ in range(20)]
            one.send(*(Puback(message.packet_id) for message in first[:15]))
            served.end(signal.SIGTERM)  # in order: what was acknowledged is stored
            served.start()
            one = await served.client("one", durable=True)
            rest = []
            while len(rest) < 85:
                rest.append(await one.expect(Publish))
                one.send(Puback(rest[-1].packet_id))
            await one.nothing_more()
            assert [int(message.payload) for message in rest] == list(range(15, 100))
            await served.drop_all()

    asyncio.run(run())
