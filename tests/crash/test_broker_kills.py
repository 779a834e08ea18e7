"""A real broker under load is killed at random moments and started again: nothing acknowledged is lost, nothing of
QoS 2 comes twice, order is kept."""

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
from tests.crash.persistent_clients import PersistentClient, Publisher, Subscriber, connected

from everlog.bench.load.brokers import free_port
from everlog.commitlog import LogSettings
from everlog.store import LogStore


class Served:
    """`everlog serve` in a process of its own, killed and started again on the same data and port."""

    def __init__(self, data: Path, shards: int) -> None:
        self.port = free_port()
        self._command = [
            *(sys.executable, "-m", "everlog", "serve", "--port", str(self.port), "--data", str(data)),
            *("--http-port", "none", "--set", f"log.shards={shards}", "--set", "limits.connects_per_second=100000"),
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)

    def end(self, number: int) -> int:
        """Send a signal and wait for the end; the exit status."""
        assert self._process is not None
        assert self._process.poll() is None, "the broker ended by itself"
        os.kill(self._process.pid, number)
        return self._process.wait()


async def until(condition: Callable[[], bool], what: str, state: Callable[[], object] = lambda: "") -> None:
    """Let the clients work until something is so; `state` is told when it never is."""
    try:
        async with asyncio.timeout(120):
            while not condition():  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"never: {what} {state()}") from None


async def torture(
    served: Served, publishers: list[Publisher], subscribers: list[Subscriber], rounds: int, random: Random
) -> None:
    """Load, with a kill and a restart each round; then all that is owed is waited for."""
    clients: list[PersistentClient] = [*publishers, *subscribers]
    served.start()
    async with connected(list(subscribers), served.port), contextlib.AsyncExitStack() as more:
        for subscriber in subscribers:
            await subscriber.is_subscribed.wait()
        await more.enter_async_context(connected(list(publishers), served.port))
        for _ in range(rounds):
            await until(lambda: all(client.connected for client in clients), "everybody connected")
            await asyncio.sleep(random.uniform(0.02, 0.5))
            assert served.end(signal.SIGKILL) == -signal.SIGKILL
            served.start()
        for publisher in publishers:
            publisher.stopped = True
        await until(lambda: all(one.is_done for one in publishers), "everything acknowledged")

        def is_owed_nothing() -> bool:
            for one in subscribers:
                one.acknowledge()
            return all(len({(m.publisher, m.number) for m in one.seen}) >= owed for one in subscribers)

        owed = sum(publisher.count for publisher in publishers)
        await until(is_owed_nothing, "everything delivered", lambda: [missing(one, publishers) for one in subscribers])
    assert served.end(signal.SIGTERM) == 0


def missing(subscriber: Subscriber, publishers: list[Publisher]) -> str:
    """What a subscriber was not given, for who has to find out why."""
    seen = {(message.publisher, message.number) for message in subscriber.seen}
    lacks = {one.client_id: [n for n in range(one.count) if (one.client_id, n) not in seen] for one in publishers}
    counts = {name: (len(numbers), numbers[:5]) for name, numbers in lacks.items()}
    return f"{subscriber.client_id} {subscriber.connected=} {subscriber.state()} lacks {counts}"


def in_order(numbers: list[int]) -> bool:
    return numbers == sorted(numbers)


def check_log(data: Path, publishers: list[Publisher], shards: int) -> None:
    """Every acknowledged message is in the log; of a QoS 2 publisher each once and in order of its topics."""
    kept: dict[str, list[tuple[str, int]]] = {one.client_id: [] for one in publishers}
    store = LogStore.open(str(data), LogSettings(), shards=shards)
    try:
        reader, positions = store.reader(None), (0,) * shards
        while True:
            result = reader.read(positions, 100_000, 1 << 24)
            for found in result.batches:
                for row in found.row_numbers():
                    record = found.records.row(row)
                    publisher, number = bytes(record[-1]).decode().split()
                    kept[publisher].append((found.records.table.name(record[2]).decode(), int(number)))
            positions = result.positions
            if result.caught_up:
                break
    finally:
        store.close()
    for one in publishers:
        numbers = [number for _, number in kept[one.client_id]]
        assert one.acknowledged <= set(numbers)
        if one.qos == 2:
            assert max(Counter(numbers).values()) == 1
            for topic in one.topics:
                assert in_order([number for where, number in kept[one.client_id] if where == topic])


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("shards", "rounds"), [(1, 50), (4, 5)])
def test_a_broker_killed_again_and_again_loses_nothing(tmp_path: Path, shards: int, rounds: int) -> None:
    random = Random(shards)
    topics = [f"t/{k}" for k in range(3)]
    publishers = [Publisher(f"p{qos}{k}", qos, [f"{one}/{qos}{k}" for one in topics]) for qos in (1, 2) for k in (1, 2)]
    subscribers = [Subscriber(f"s{qos}", "t/#", qos, Random(qos)) for qos in (1, 2)]
    served = Served(tmp_path, shards)
    asyncio.run(torture(served, publishers, subscribers, rounds, random))
    assert not any(client.forgotten for client in [*publishers, *subscribers])
    for subscriber in subscribers:
        for publisher in publishers:
            seen = [message for message in subscriber.seen if message.publisher == publisher.client_id]
            assert publisher.acknowledged <= {message.number for message in seen}
            for topic in publisher.topics:
                first = dict.fromkeys(message.number for message in seen if message.topic == topic)
                assert in_order(list(first)), f"{topic} out of order at {subscriber.client_id}"
            if publisher.qos == subscriber.qos == 2:
                assert max(Counter(message.number for message in seen).values()) == 1
    check_log(tmp_path, publishers, shards)
    assert all(len(publisher.acknowledged) == publisher.count > 20 * rounds for publisher in publishers)
