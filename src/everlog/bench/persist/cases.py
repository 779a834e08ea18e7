"""What is measured: appends by many clients and by one, gets, a stream read back, a stream that many follow."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from everlog.bench.persist.asking import WAIT_S, ask_all
from everlog.bench.persist.backlog import BacklogWatch
from everlog.bench.persist.bus_link import BusLink
from everlog.bench.persist.contenders import Contender, Running
from everlog.bench.persist.fleet import TwoServers
from everlog.bench.persist.fleet import play as play_fleet
from everlog.bench.persist.load_loop import LoadLoop
from everlog.bench.persist.on_disk import NoServer, open_cold
from everlog.bench.persist.outcome import Outcome
from everlog.bench.persist.questions import Asked, Questions
from everlog.bench.persist.scale import Scale
from everlog.bench.persist.starts import start_again
from everlog.client import connect
from everlog.streams import Level

_WARM_S = 30.0  # at most, before anything is measured
_ROUNDS = 16


@dataclass(frozen=True, slots=True)
class Case:
    """A load; `play` runs it against one of the contenders. JetStream has no levels: it plays `fsync` only."""

    name: str
    play: Callable[[Contender, Running, Scale], Outcome]
    is_for_peers: bool = True
    own: Contender | None = None  # who alone plays it


def append(clients: int, in_flight: int, level: Level, rate: float = 0.0, with_ids: bool = False) -> Case:
    """Return a case of appends to many streams."""

    def play(contender: Contender, running: Running, scale: Scale) -> Outcome:
        asked, streams = contender.questions(), scale.streams if clients > 1 else 1
        ask_all(running, asked.begin(streams))
        with LoadLoop(running.url) as loop:
            shares = [range(number, streams, clients) or range(1) for number in range(clients)]
            for _ in shares:
                loop.connect()
            if clients > 1:
                _warm(loop, shares, lambda stream: asked.append(stream, scale.size, level, with_ids), scale)
            for link, share in zip(loop.links, shares, strict=True):
                mine = [asked.append(stream, scale.size, level, with_ids) for stream in share]
                loop.ask(link, [one.requests[0] for one in mine], mine[0].mark, in_flight)
            if not rate or not asked.tells_backlog:
                seconds = scale.sustained_s if rate else scale.seconds
                return _measured(loop, running, lambda: loop.run(seconds, rate), lambda: loop.done)
            with BacklogWatch(running.url) as watch:
                found = _measured(loop, running, lambda: loop.run(scale.sustained_s, rate), lambda: loop.done)
            return replace(found, more=watch.figures())

    kind = "sustained" if rate else "append" if clients > 1 else "lone"
    name = f"{kind}-{level.name.lower()}" + (f"-x{in_flight}" if clients > 1 and not rate else "")
    return Case(name + ("-ids" if with_ids else ""), play, level is Level.FSYNC and not with_ids)


def _warm(loop: LoadLoop, shares: Sequence[range], append: Callable[[int], Asked], scale: Scale) -> None:
    """Append to all streams before anything is measured, to each another number of times.

    So their files are there, and those that are written in groups have their turns spread over the time.
    """
    total = 0
    for link, share in zip(loop.links, shares, strict=True):
        times = {stream: (scale.warm + stream % scale.warm) // _ROUNDS for stream in share}
        mine = [append(stream) for again in range(max(times.values())) for stream in share if again < times[stream]]
        loop.ask(link, [one.requests[0] for one in mine], mine[0].mark, 32)
        total += _ROUNDS * len(mine)
    loop.budget.left = total
    deadline = time.monotonic() + _WARM_S
    loop.until(lambda: loop.done >= total or time.monotonic() > deadline, WAIT_S)
    for link in loop.links:
        link.stop()
    loop.until(lambda: all(link.in_flight == 0 for link in loop.links), WAIT_S)


def _get(contender: Contender, running: Running, scale: Scale) -> Outcome:
    asked = contender.questions()
    ask_all(running, asked.begin_store())
    keys = range(1000)
    puts = [asked.put(key, scale.size) for key in keys]
    ask_all(running, Asked([one.requests[0] for one in puts], puts[0].mark))
    with LoadLoop(running.url) as loop:
        gets = [asked.get(key) for key in keys]
        for _ in range(scale.clients):
            loop.ask(loop.connect(), [one.requests[0] for one in gets], gets[0].mark, 4)
        loop.run(0.3)
        return _measured(loop, running, lambda: loop.run(scale.seconds), lambda: loop.done)


def _read_back(contender: Contender, running: Running, scale: Scale) -> Outcome:
    asked = contender.questions()
    ask_all(running, asked.begin(1))
    one = asked.append(0, scale.size, Level.FSYNC, False)
    with LoadLoop(running.url) as loop:
        loop.ask(loop.connect(), one.requests, one.mark, 2000)
        loop.budget.left = scale.messages
        loop.until(lambda: loop.done >= scale.messages, WAIT_S)
    if not asked.counts_events:
        with LoadLoop(running.url) as loop:
            link = loop.connect()
            return _measured(loop, running, lambda: _follow(loop, link, asked, scale.messages), lambda: _heard(link))
    worked, mine, began = running.cpu_s(), time.process_time(), time.monotonic()
    found = asyncio.run(_count(running.url))
    assert found == scale.messages, f"{found} messages were read"
    return Outcome(found, time.monotonic() - began, running.cpu_s() - worked, time.process_time() - mine)


async def _count(url: str) -> int:
    count = 0
    async with connect(url) as client:
        async for _ in client.stream("bench/0").get_all():
            count += 1
    return count


def _fan_out(contender: Contender, running: Running, scale: Scale) -> Outcome:
    asked = contender.questions()
    ask_all(running, asked.begin(1))
    one = asked.append(0, scale.size, Level.FSYNC, False)
    ask_all(running, one)
    with LoadLoop(running.url) as loop:
        followers = [loop.connect(asked.feed(0), asked.counts_events) for _ in range(100)]
        for follower in followers:
            _follow(loop, follower, asked)
            follower.stop()
        loop.ask(loop.connect(), one.requests, one.mark, 16)
        loop.run(0.3)
        return _measured(loop, running, lambda: loop.run(scale.seconds), lambda: loop.received)


def _follow(loop: LoadLoop, link: BusLink, asked: Questions, messages: int = 0) -> None:
    """Have a connection follow stream 0, and wait for the answer and so many messages."""
    follow = asked.follow(0, loop.inbox(link))
    loop.budget.left = 1
    loop.ask(link, follow.requests, follow.mark, 1)
    loop.until(lambda: _heard(link) > messages, WAIT_S)


def _heard(link: BusLink) -> int:
    """Return how many messages came: the first is the answer to whatever it is, as the two may overtake each other."""
    return link.done + link.refused + link.received


def _measured(loop: LoadLoop, running: Running, run: Callable[[], object], done: Callable[[], int]) -> Outcome:
    loop.times.clear()
    before, refused, worked, mine = done(), loop.refused, running.cpu_s(), time.process_time()
    began = time.monotonic()
    run()
    return Outcome(
        done() - before,
        time.monotonic() - began,
        running.cpu_s() - worked,
        time.process_time() - mine,
        loop.times.quantile(0.5) / 1e6,
        loop.times.quantile(0.99) / 1e6,
        loop.refused - refused,
        running.resident_mb(),
    )


CASES: dict[str, Case] = {
    one.name: one
    for one in (
        append(100, 1, Level.FSYNC),
        append(100, 16, Level.FSYNC),
        append(100, 1, Level.MEMORY),
        append(100, 16, Level.MEMORY),
        append(100, 16, Level.FSYNC, with_ids=True),
        append(1, 1, Level.FSYNC),
        append(100, 16, Level.FSYNC, rate=100_000),
        Case("start", start_again),
        Case("many-streams", open_cold, own=NoServer()),
        Case("fleet", play_fleet, own=TwoServers()),
        Case("kv-get", _get),
        Case("read-back", _read_back),
        Case("fan-out", _fan_out),
    )
}
