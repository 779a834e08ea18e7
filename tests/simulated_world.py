"""A deterministic world of processes, a bucket and clocks: one thread runs at a time, chosen by time and a seed.

Whatever a process asks of the bucket takes time; requests and replies get lost, and a request that was given up may
still arrive much later. Processes are paused and killed, cut off from the bucket, and their wall clocks jump. Listings
may be old.
"""

import heapq
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import TypeVar

from everlog.base import Unavailable
from everlog.tiering import MemoryBucket, StoredObject

T = TypeVar("T")

TIMEOUT_S = 1.0


class Violation(AssertionError):
    """The world saw something that must never be."""


class Killed(BaseException):
    """Ends the thread of a process that was killed."""


class Process:
    """A process: a name, clocks of its own, and what befalls it."""

    def __init__(self, world: "World", name: str) -> None:
        self.world = world
        self.name = name
        self.is_killed = False
        self.paused_until_s = 0.0
        self.cut_until_s = 0.0
        self.rate = world.random.uniform(0.99, 1.01)
        self.wall_ahead_s = 0.0

    def monotonic_s(self) -> float:
        return self.world.now_s * self.rate

    def wall_s(self) -> float:
        return 1.8e9 + self.world.now_s + self.wall_ahead_s


class _Task:
    def __init__(self, process: Process, act: Callable[[], None]) -> None:
        self.process = process
        self.turn = threading.Semaphore(0)
        self.thread = threading.Thread(target=self._run, args=(act,), daemon=True)
        self.is_done = False
        self.error: BaseException | None = None

    def _run(self, act: Callable[[], None]) -> None:
        self.turn.acquire()
        try:
            if not self.process.is_killed:
                act()
        except Killed:
            pass
        except BaseException as error:  # noqa: BLE001 told by the world, in the thread of the test
            self.error = error
        self.is_done = True
        self.process.world.yielded.release()


class World:
    """Virtual time and the one bucket."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now_s = 0.0
        self.bucket = MemoryBucket()
        self.yielded = threading.Semaphore(0)
        self.has_faults = True
        self.listings: list[tuple[float, list[StoredObject]]] = [(0.0, [])]
        self.landed: Callable[[str], None] = lambda name: None  # told of each write that is made
        self.created: dict[str, bytes] = {}  # all that was ever created, the first content of each name
        self.created_again: dict[str, bytes] = {}  # what was created under a name that had been deleted
        self.outages: list[tuple[float, float]] = []  # when nobody could reach the bucket
        self._queue: list[tuple[float, int, _Task | Callable[[], None]]] = []
        self._serial = 0
        self._tasks: list[_Task] = []
        self._running: _Task | None = None

    def spawn(self, process: Process, act: Callable[[], None]) -> None:
        """Let a process do something, from now on."""
        task = _Task(process, act)
        task.thread.start()
        self._tasks.append(task)
        self._push(self.now_s, task)

    def at(self, when_s: float, act: Callable[[], None]) -> None:
        """Let something happen in the world."""
        self._push(when_s, act)

    def sleep(self, seconds: float) -> None:
        """Let the process that calls wait."""
        task = self._running
        assert task is not None
        self._push(self.now_s + seconds, task)
        self.yielded.release()
        task.turn.acquire()
        if task.process.is_killed:
            raise Killed

    def up_s(self, since_s: float) -> float:
        """Return for how long the bucket could be reached since then."""
        down = sum(max(0.0, min(end, self.now_s) - max(begin, since_s)) for begin, end in self.outages)
        return self.now_s - since_s - down

    def is_down(self) -> bool:
        """Return whether nobody can reach the bucket now."""
        return any(begin <= self.now_s < end for begin, end in self.outages)

    def run(self, until_s: float) -> None:
        """Let time pass."""
        while self._queue and self._queue[0][0] <= until_s:
            when_s, _, what = heapq.heappop(self._queue)
            self.now_s = max(self.now_s, when_s)
            if not isinstance(what, _Task):
                what()
                continue
            if what.process.paused_until_s > self.now_s and not what.process.is_killed:
                self._push(what.process.paused_until_s, what)
                continue
            self._resume(what)

    def end(self) -> None:
        """Kill all that still runs."""
        for task in self._tasks:
            task.process.is_killed = True
        for task in self._tasks:
            if not task.is_done:
                self._resume(task)
            task.thread.join()

    def _resume(self, task: _Task) -> None:
        if task.is_done:
            return
        self._running = task
        task.turn.release()
        self.yielded.acquire()
        self._running = None
        if task.error is not None:
            error, task.error = task.error, None
            raise error

    def _push(self, when_s: float, what: "_Task | Callable[[], None]") -> None:
        self._serial += 1
        heapq.heappush(self._queue, (when_s, self._serial, what))


@contextmanager
def new_world(seed: int) -> Iterator[World]:
    """Make a world and leave no thread behind."""
    world = World(seed)
    try:
        yield world
    finally:
        world.end()


class SimulatedBucket:
    """The bucket of a world as one process reaches it."""

    def __init__(self, world: World, process: Process) -> None:
        self._world = world
        self._process = process
        self._really = world.bucket

    def create(self, name: str, data: bytes) -> bytes | None:
        def create() -> bytes | None:
            answer = self._really.create(name, data)
            if self._world.created.setdefault(name, answer or data) != data and answer is None:
                self._world.created_again[name] = data
            return answer

        return self._ask(create, writes=name)

    def put(self, name: str, data: bytes) -> None:
        self._ask(lambda: self._really.put(name, data), writes=name)

    def put_file(self, name: str, path: str) -> None:
        self._ask(lambda: self._really.put_file(name, path), writes=name)

    def get(self, name: str) -> bytes | None:
        return self._ask(lambda: self._really.get(name))

    def get_range(self, name: str, start: int, size: int) -> bytes | None:
        return self._ask(lambda: self._really.get_range(name, start, size))

    def find(self, prefix: str) -> Iterator[StoredObject]:
        return iter(self._ask(lambda: self._listing(prefix)))

    def delete(self, name: str) -> None:
        self._ask(lambda: self._really.delete(name), writes=name)

    def _listing(self, prefix: str) -> list[StoredObject]:
        """Return a listing as it was a while ago, or as it is."""
        world = self._world
        if world.now_s - world.listings[-1][0] > 5:
            world.listings.append((world.now_s, list(self._really.find(""))))
        found = (
            list(self._really.find("")) if world.random.random() < 0.5 else world.random.choice(world.listings[-6:])[1]
        )
        return [one for one in found if one.name.startswith(prefix + "/")]

    def _ask(self, act: Callable[[], T], writes: str = "") -> T:
        world, random = self._world, self._world.random
        chance = random.random() if world.has_faults else 0.5
        cut = self._process.cut_until_s > world.now_s or world.is_down()
        if cut or chance < 0.02:
            if writes and chance < 0.01 and not cut:  # it lands, long after it was given up
                world.at(world.now_s + random.uniform(0.5, 20), lambda: self._act(act, writes))
            world.sleep(TIMEOUT_S)
            raise Unavailable("the bucket does not answer")
        world.sleep(random.uniform(0.001, 0.03) if chance < 0.99 else random.uniform(0.1, 1.5))
        answer = self._act(act, writes)
        if chance < 0.04:
            world.sleep(TIMEOUT_S)
            raise Unavailable("the answer got lost")
        world.sleep(random.uniform(0.001, 0.03))
        return answer

    def _act(self, act: Callable[[], T], writes: str) -> T:
        answer = act()
        if writes:
            self._world.landed(writes)
        return answer
