"""A real broker under load is killed at random moments and started again: nothing acknowledged is lost, nothing of
QoS 2 comes twice, order is kept."""

import asyncio
import contextlib
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import pytest
from tests.broker_process import BrokerProcess
from tests.crash.persistent_clients import WINDOW, PersistentClient, Publisher, Subscriber, connected

from everlog.commitlog import LogSettings
from everlog.store import LogStore

STUCK_S = 120  # nothing has come for so long: nothing will


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
    served: BrokerProcess,
    publishers: list[Publisher],
    subscribers: list[Subscriber],
    rounds: int,
    sync_s: float,
    random: Random,
) -> None:
    """Load, with a kill and a restart each round; then all that is owed is waited for."""
    clients: list[PersistentClient] = [*publishers, *subscribers]
    async with connected(list(subscribers), served.port), contextlib.AsyncExitStack() as more:
        await until(lambda: all(one.is_subscribed.is_set() for one in subscribers), clients, "subscribed")
        await more.enter_async_context(connected(list(publishers), served.port))
        for kill in range(rounds):
            if random.random() < 0.85:  # else while it starts
                await until(lambda: all(client.connected for client in clients), clients, "everybody connected")
            if kill == rounds - 1:  # however slow the machine is, some kill comes amidst acknowledgements
                await until(lambda: any(one.acknowledged for one in publishers), clients, "something acknowledged")
            await asyncio.sleep(random.uniform(0.02, 0.5 + 5 * sync_s))
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


def kill_again_and_again(directory: Path, shards: int, rounds: int, sync_ms: int, seed: int) -> None:
    topics = [f"t/{k}" for k in range(3)]
    publishers = [Publisher(f"p{qos}{k}", qos, [f"{one}/{qos}{k}" for one in topics]) for qos in (1, 2) for k in (1, 2)]
    subscribers = [Subscriber(f"s{qos}", "t/#", qos, Random(seed + qos)) for qos in (1, 2)]
    flags = ("--shards", str(shards), "--set", "limits.connects_per_second=100000")
    with BrokerProcess(directory, *flags, sync_ms=sync_ms) as served:
        asyncio.run(torture(served, publishers, subscribers, rounds, sync_ms / 1000, Random(seed)))
    assert not any(client.forgotten for client in [*publishers, *subscribers])
    check_delivered(publishers, subscribers)
    check_log(served.data, publishers, shards)
    counts = [publisher.count for publisher in publishers]
    assert counts == [len(publisher.acknowledged) for publisher in publishers]
    if sync_ms:
        assert max(counts) > WINDOW, "nothing was acknowledged between kills"
    else:
        assert min(counts) > 20 * rounds


@pytest.mark.slow
@pytest.mark.parametrize(("shards", "rounds", "sync_ms"), [(1, 6, 0), (4, 4, 0), (4, 3, 20), (1, 3, 40), (1, 2, 400)])
def test_a_broker_killed_a_few_times_loses_nothing(tmp_path: Path, shards: int, rounds: int, sync_ms: int) -> None:
    kill_again_and_again(tmp_path, shards, rounds, sync_ms, seed=shards + sync_ms)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("sync_ms", [0, 20, 40, 400])
@pytest.mark.parametrize("shards", [1, 4])
def test_a_broker_killed_again_and_again_loses_nothing(tmp_path: Path, shards: int, sync_ms: int) -> None:
    kill_again_and_again(tmp_path, shards, 50, sync_ms, seed=shards + sync_ms)
