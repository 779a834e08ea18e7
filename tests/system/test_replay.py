"""Replay with real processes, real files and full speed: no gap, no repeat, and nobody is held up."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from everlog.base import Unavailable
from everlog.bench.load.brokers import free_port
from everlog.cli.client.async_client import AsyncClient
from everlog.mqtt import Connect, Message, Properties, Subscription

PATIENCE_S = 120
EVERLOG = [sys.executable, "-m", "everlog"]


class Served:
    """`everlog serve` in a process of its own, which can be killed and started again on the same data."""

    def __init__(self, data: Path, shards: int) -> None:
        self.port = free_port()
        self.data = data
        self._command = [
            *EVERLOG,
            *("serve", "--port", str(self.port), "--data", str(data), "--http-port", "none", "--keep", "#"),
            *("--set", f"log.shards={shards}", "--set", "limits.connects_per_second=100000"),
        ]
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        assert "listens on" in self.process.stdout.readline()

    def end(self, number: int) -> None:
        if self.process.poll() is None:
            os.kill(self.process.pid, number)
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture(params=[1, 4], ids=["one shard", "four shards"])
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Served]:
    broker = Served(tmp_path / "data", request.param)
    yield broker
    broker.end(signal.SIGKILL)


class Gathering:
    """What a client got, by topic: numbers, and whether each was sent before."""

    def __init__(self) -> None:
        self.numbers: dict[bytes, list[int]] = {}
        self.count = 0

    def take(self, messages: list[Message]) -> int:
        for message in messages:
            self.numbers.setdefault(message.topic, []).append(int(message.payload))
        self.count += len(messages)
        return len(messages)


@contextlib.asynccontextmanager
async def connected(served: Served, handler: object = None, **connect: object) -> AsyncIterator[AsyncClient]:
    client = AsyncClient(Connect(5, **{"client_id": "", **connect}), handler)  # type: ignore[arg-type]
    await client.open("127.0.0.1", served.port)
    try:
        yield client
    finally:
        await client.close()


async def replay(client: AsyncClient, begin: str, *filters: str, qos: int = 0) -> None:
    properties = Properties(user_properties=(("everlog-from", begin),))
    reasons = await client.subscribe(tuple(Subscription(text, qos) for text in filters), properties)
    assert not any(reason.is_error for reason in reasons)


async def publish(served: Served, topics: list[str], count: int) -> None:
    """So many messages to each of the topics in turn, as fast as the broker takes them."""
    async with connected(served) as client:
        for number in range(count):
            for topic in topics:
                await client.publish(topic, b"%d" % number, 1)
        await client.settle()


TOPICS = [[f"p{publisher}/{topic}" for topic in range(5)] for publisher in range(3)]
EACH = 1500


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_replay_turns_live_without_gap_or_repeat_while_publishers_publish_at_full_speed(
    served: Served, qos: int
) -> None:
    async def scenario() -> None:
        publishing = [asyncio.create_task(publish(served, topics, EACH)) for topics in TOPICS]
        everything = Gathering()
        async with contextlib.AsyncExitStack() as stack:
            watching = await stack.enter_async_context(connected(served, everything.take))
            await replay(watching, "earliest", "#")
            gathered = []
            for share in (0.1, 0.4, 0.8):  # of what will be published when the next one begins
                wanted = share * 15 * EACH
                await watching.wait_until(lambda wanted=wanted: everything.count >= wanted)
                one = Gathering()
                gathered.append(one)
                client = await stack.enter_async_context(connected(served, one.take))
                await replay(client, "earliest", "p0/#", "+/0", "p1/+", "p2/#", qos=qos)
            await asyncio.gather(*publishing)
            everybody = [everything, *gathered]
            async with asyncio.timeout(PATIENCE_S):
                while any(one.count < 15 * EACH for one in everybody):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            for one in everybody:
                assert one.numbers == {topic.encode(): list(range(EACH)) for topics in TOPICS for topic in topics}

    asyncio.run(scenario())


def test_a_hundred_replay_at_once_and_others_are_served_meanwhile(served: Served) -> None:
    async def scenario() -> None:
        topics = [f"history/{number}" for number in range(10)]
        await publish(served, topics, 200)
        async with contextlib.AsyncExitStack() as stack:
            gathered = []
            for _ in range(100):
                one = Gathering()
                gathered.append((await stack.enter_async_context(connected(served, one.take)), one))
            echo = Gathering()
            other = await stack.enter_async_context(connected(served, echo.take))
            await other.subscribe((Subscription("echo", 1),))
            replays = asyncio.gather(*(replay(client, "earliest", "history/#") for client, _ in gathered))
            for number in range(50):
                await other.publish("echo", b"%d" % number, 1)
                await other.wait_until(lambda number=number: echo.count > number)
            await replays
            for client, one in gathered:
                await client.wait_until(lambda one=one: one.count >= 2000)
            for _, one in gathered:
                assert one.numbers == {topic.encode(): list(range(200)) for topic in topics}

    asyncio.run(scenario())


def test_a_durable_replay_survives_a_kill_of_the_broker(served: Served) -> None:
    async def scenario() -> None:
        await publish(served, ["t/a", "t/b"], 3000)
        seen: dict[bytes, list[int]] = {}
        connect = {
            "client_id": "durable",
            "clean_start": False,
            "properties": Properties(session_expiry_interval=1000, receive_maximum=50),
        }
        rounds = 0
        while sum(len(set(numbers)) for numbers in seen.values()) < 6000:
            one = Gathering()
            with contextlib.suppress(Unavailable, OSError):
                async with asyncio.timeout(PATIENCE_S), connected(served, one.take, **connect) as client:
                    if rounds == 0:
                        await replay(client, "earliest", "t/#", qos=1)
                    await client.wait_until(lambda one=one, seen=seen: _are_all(seen, one) or one.count >= 1500)
                    if rounds < 3:
                        served.end(signal.SIGKILL)
            for topic, numbers in one.numbers.items():
                assert numbers == sorted(numbers)  # in order within a connection
                seen.setdefault(topic, []).extend(numbers)
            if rounds < 3:
                served.start()
            rounds += 1
        assert rounds > 3
        assert {topic: sorted(set(numbers)) for topic, numbers in seen.items()} == {
            b"t/a": list(range(3000)),
            b"t/b": list(range(3000)),
        }

    def _are_all(seen: dict[bytes, list[int]], one: Gathering) -> bool:
        found = {
            (topic, number) for part in (seen, one.numbers) for topic, numbers in part.items() for number in numbers
        }
        return len(found) == 6000

    asyncio.run(scenario())


def test_a_durable_replay_goes_on_after_a_clean_restart(served: Served) -> None:
    async def scenario() -> None:
        await publish(served, ["t"], 500)
        connect = {
            "client_id": "durable",
            "clean_start": False,
            "properties": Properties(session_expiry_interval=1000, receive_maximum=10),
        }
        first, second = Gathering(), Gathering()
        with contextlib.suppress(Unavailable):
            async with connected(served, first.take, **connect) as client:
                await replay(client, "0:0", "t", qos=2)
                await client.wait_until(lambda: first.count >= 50)
                served.end(signal.SIGTERM)
        served.start()
        async with connected(served, second.take, **connect) as client:
            await client.wait_until(lambda: bool(second.numbers) and second.numbers[b"t"][-1] == 499)
        assert first.numbers[b"t"] + second.numbers[b"t"] == list(range(500))

    asyncio.run(scenario())


def everlog(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*EVERLOG, *arguments], capture_output=True, text=True, timeout=PATIENCE_S)


def test_the_commands_as_processes(served: Served) -> None:
    asyncio.run(publish(served, ["t"], 20))
    numbers = [str(number) for number in range(20)]
    found = everlog("replay", "-p", str(served.port), "--from", "-1h", "t")
    assert (found.returncode, found.stdout.splitlines(), found.stderr) == (0, numbers, "")
    found = everlog("sub", "-p", str(served.port), "-t", "t", "--from", "-1h", "-C", "20")
    assert (found.returncode, found.stdout.splitlines()) == (0, numbers)
