"""A real broker under load is killed at random moments and started again: nothing acknowledged is lost, nothing of
QoS 2 comes twice, order is kept."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import pytest
from tests.crash.persistent_clients import PersistentClient, Publisher, Subscriber, connected

from everlog.bench.load.brokers import free_port
from everlog.commitlog import LogSettings
from everlog.store import LogStore

STUCK_S = 60  # nothing has come for so long: nothing will


class Served:
    """`everlog serve` in a process of its own, killed and started again on the same data and port."""

    def __init__(self, data: Path, shards: int) -> None:
        self.port = free_port()
        self._command = [
            *(sys.executable, "-m", "everlog", "serve", "--port", str(self.port), "--data", str(data)),
            *("--http-port", "none", "--set", f"log.shards={shards}", "--set", "limits.connects_per_second=100000"),
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Served":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)

    def send(self, number: int) -> None:
        assert self._process is not None
        assert self._process.poll() is None, "the broker ended by itself"
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        """At once, also where it is ending already."""
        assert self._process is not None
        self._process.kill()
        assert self._process.wait() in (0, -signal.SIGTERM, -signal.SIGKILL)

    def stop(self) -> None:
        self.send(signal.SIGTERM)
        assert self._process is not None
        assert self._process.wait() == 0


async def until(
    condition: Callable[[], bool],
    clients: Sequence[PersistentClient],
    what: str,
    progress: Callable[[], object] = lambda: None,
    state: Callable[[], object] = lambda: "",
) -> None:
    """Let the clients work until something is so; `state` is told when it stays otherwise without any progress."""
    before, since = progress(), time.monotonic()
    while not condition():
        for client in clients:
            if client.failure is not None:
                raise client.failure
        await asyncio.sleep(0.005)
        now = progress()
        if now != before:
            before, since = now, time.monotonic()
        assert time.monotonic() - since < STUCK_S, f"never: {what} {state()}"


async def torture(
    served: Served, publishers: list[Publisher], subscribers: list[Subscriber], rounds: int, random: Random
) -> None:
    """Load, with a kill and a restart each round; then all that is owed is waited for."""
    clients: list[PersistentClient] = [*publishers, *subscribers]
    async with connected(list(subscribers), served.port), contextlib.AsyncExitStack() as more:
        await until(lambda: all(one.is_subscribed.is_set() for one in subscribers), clients, "subscribed")
        await more.enter_async_context(connected(list(publishers), served.port))
        for _ in range(rounds):
            if random.random() < 0.85:  # else while it starts
                await until(lambda: all(client.connected for client in clients), clients, "everybody connected")
            await asyncio.sleep(random.uniform(0.02, 0.5))
            if random.random() < 0.2:  # while it stops
                served.send(signal.SIGTERM)
                await asyncio.sleep(random.uniform(0, 0.05))
            served.kill()
            served.start()
        for publisher in publishers:
            publisher.stopped = True
        await until(
            lambda: all(one.is_done for one in publishers),
            clients,
            "everything acknowledged",
            lambda: [len(one.acknowledged) for one in publishers],
        )

        def is_owed_nothing() -> bool:
            for one in subscribers:
                one.acknowledge()
            return all(len(one.distinct) >= owed for one in subscribers)

        owed = sum(publisher.count for publisher in publishers)
        await until(
            is_owed_nothing,
            clients,
            "everything delivered",
            lambda: [len(one.seen) for one in subscribers],
            lambda: [missing(one, publishers) for one in subscribers],
        )
    served.stop()


def missing(subscriber: Subscriber, publishers: list[Publisher]) -> str:
    """What a subscriber was not given, for who has to find out why."""
    seen = subscriber.distinct
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


def check_delivered(publishers: list[Publisher], subscribers: list[Subscriber]) -> None:
    """Everything acknowledged came, first time in order; nothing of QoS 2 came twice."""
    for subscriber in subscribers:
        for publisher in publishers:
            seen = [message for message in subscriber.seen if message.publisher == publisher.client_id]
            assert publisher.acknowledged <= {message.number for message in seen}
            for topic in publisher.topics:
                first = dict.fromkeys(message.number for message in seen if message.topic == topic)
                assert in_order(list(first)), f"{topic} out of order at {subscriber.client_id}"
            if publisher.qos == subscriber.qos == 2:
                assert max(Counter(message.number for message in seen).values()) == 1


def kill_again_and_again(data: Path, shards: int, rounds: int, seed: int) -> None:
    topics = [f"t/{k}" for k in range(3)]
    publishers = [Publisher(f"p{qos}{k}", qos, [f"{one}/{qos}{k}" for one in topics]) for qos in (1, 2) for k in (1, 2)]
    subscribers = [Subscriber(f"s{qos}", "t/#", qos, Random(seed + qos)) for qos in (1, 2)]
    with Served(data, shards) as served:
        asyncio.run(torture(served, publishers, subscribers, rounds, Random(seed)))
    assert not any(client.forgotten for client in [*publishers, *subscribers])
    check_delivered(publishers, subscribers)
    check_log(data, publishers, shards)
    assert all(len(publisher.acknowledged) == publisher.count > 20 * rounds for publisher in publishers)


@pytest.mark.slow
@pytest.mark.parametrize(("shards", "rounds"), [(1, 6), (4, 4)])
def test_a_broker_killed_a_few_times_loses_nothing(tmp_path: Path, shards: int, rounds: int) -> None:
    kill_again_and_again(tmp_path, shards, rounds, shards)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("shards", "rounds"), [(1, 50), (4, 50)])
def test_a_broker_killed_again_and_again_loses_nothing(tmp_path: Path, shards: int, rounds: int) -> None:
    kill_again_and_again(tmp_path, shards, rounds, shards)
