"""A broker that a test moves step by step and crashes between any two: no thread, no socket, no clock of its own.

One step is a turn of the event loop, a batch of the session tables, a commit of the log, or some packets on their way.
What is asked of a thread waits in `SteppedLoop.jobs` and in `SteppedBroker.asked` until the test has it done.
"""

import asyncio
import copy
from collections import deque
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from everlog.broker import Broker, Connection, Limits
from everlog.commitlog import LogSettings
from everlog.mqtt import Packet, decode, encode, read_fixed_header
from everlog.sessions import Changes, Refused
from everlog.store import LogStore
from tests.inside import Inside
from tests.restarts import SlowTables
from tests.simulated_disk import SimulatedCrash, SimulatedDisk

SETTINGS = LogSettings(
    segment_bytes=700, batch_bytes=300, tail_bytes=400, merge_below=4, merge_records=8, preallocate_bytes=0
)
SLOW = 0.5  # how likely a commit is left to the thread that commits, or turns out to take long
KEEP = [("#", 0)]


class SteppedLoop(asyncio.SelectorEventLoop):
    """An event loop with a clock that stands still and threads that do nothing until they are told to."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.jobs: deque[tuple[asyncio.Future[Any], Callable[[], Any]]] = deque()

    def time(self) -> float:
        return self.now

    def run_in_executor(self, executor: Any, call: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        done = self.create_future()
        self.jobs.append((done, partial(call, *arguments)))
        return done

    def call_soon_threadsafe(self, call: Callable[..., Any], *arguments: Any, context: Any = None) -> asyncio.Handle:
        return self.call_soon(call, *arguments, context=context)

    def turn(self) -> None:
        """Call what is ready, once."""
        self.call_soon(self.stop)
        self.run_forever()

    def work(self) -> None:
        """Do the job that waits longest, as its thread would; the loop learns of it with its next turn."""
        done, call = self.jobs.popleft()
        done.set_result(call())


class Wire(asyncio.Transport):
    """A connection's two directions, in memory: `out` was sent by the broker and is not yet read.

    With more than `room` bytes in it the broker is told to pause, and when it is empty to go on.
    """

    def __init__(self, loop: SteppedLoop, connection: Connection, room: int) -> None:
        super().__init__()
        self._loop = loop
        self._connection = connection
        self.out = bytearray()
        self.sent = bytearray()  # by the client, and not yet read
        self.is_gone = False
        self._room = room
        self._is_paused = False
        self._is_full = False
        loop.call_soon(connection.connection_made, self)

    # What the broker calls

    def write(self, data: Any) -> None:
        if not self.is_gone:
            self.out += data
            if len(self.out) > self._room and not self._is_full:
                self._is_full = True
                self._connection.pause_writing()

    def close(self) -> None:
        if not self.is_gone:
            self.is_gone = True
            self._loop.call_soon(self._connection.connection_lost, None)

    abort = close

    def get_write_buffer_size(self) -> int:
        return len(self.out)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        self._is_paused = True

    def resume_reading(self) -> None:
        self._is_paused = False

    # What the client does

    @property
    def is_readable(self) -> bool:
        """Whether the broker would read what was sent to it."""
        return bool(self.sent) and not self._is_paused and not self.is_gone

    def deliver(self) -> None:
        """Have the broker read what was sent, in its next turn."""
        data, self.sent = bytes(self.sent), bytearray()
        self._loop.call_soon(self._feed, data)

    def _feed(self, data: bytes) -> None:
        while data and not self.is_gone:
            room = self._connection.get_buffer(-1)
            part, data = data[: len(room)], data[len(room) :]
            room[: len(part)] = part
            del room
            self._connection.buffer_updated(len(part))

    def send(self, *packets: Packet) -> None:
        self.sent += b"".join(encode(packet, 5) for packet in packets)

    def receive(self) -> Packet | None:
        """Return the next packet that the broker has sent."""
        header = read_fixed_header(bytes(self.out[:5]), 5)
        if header is None:
            return None
        first, length, size = header
        body = bytes(self.out[size : size + length])
        del self.out[: size + length]
        if self._is_full and not self.out:
            self._is_full = False
            if not self.is_gone:
                self._loop.call_soon(self._connection.resume_writing)
        return decode(first, body, 5, from_client=False)


class CrashTables(SlowTables):
    """Tables that know every state that a power cut could leave: the last synced one, and all since."""

    def __init__(self, committed: Any = None) -> None:
        super().__init__(committed)
        self.states = [self._state()]

    def _state(self) -> dict[str, Any]:
        state = {name: value for name, value in super()._state().items() if name != "states"}
        state["_subscriptions"] = {name: dict(rows) for name, rows in self._subscriptions.items()}
        return {name: dict(value) if isinstance(value, dict) else value for name, value in state.items()}

    def apply(self, changes: Changes, durable: bool = False) -> Refused:
        refused = super().apply(changes, durable)
        self.states = [*([] if durable else self.states), self._state()]
        return refused

    def left(self, place: int, committed: Any) -> "CrashTables":
        """Return the tables after a crash: 0 for what was synced, -1 for all that was written."""
        tables = CrashTables(committed)
        vars(tables).update(self.states[place % len(self.states)])
        tables.states = [tables._state()]
        tables._synced = tables._state()
        return tables


class SteppedBroker:
    """One life of a broker on a disk and tables; the next begins with what `kill` or `cut_power` leaves of them."""

    def __init__(
        self, disk: SimulatedDisk, tables: CrashTables | None = None, shards: int = 1, room: int = 1 << 20
    ) -> None:
        self.loop = SteppedLoop()
        self.disk = disk
        disk.leaves = SLOW
        self.room = room  # bytes that a client need not have read
        self.store = LogStore.open("data", SETTINGS, shards=shards, disk=disk, background=False)
        self.tables = tables if tables is not None else CrashTables()
        self.tables._committed = self.committed
        self.asked: deque[int] = deque()  # shards that were asked to commit
        for number, shard in enumerate(self.store.shards):
            shard._wake = partial(self._ask, number)
            shard.commit_here = partial(self._commit_here, number)  # type: ignore[method-assign]
        self.broker = Broker(
            self.store,
            Limits(output_bytes=room),
            tables=self.tables,
            now_us=lambda: int(self.loop.now * 1_000_000),
            keep=KEEP,
        )
        self.inside = Inside(self.broker)
        self.loop.call_soon(self.broker.start)
        self.loop.turn()

    def committed(self) -> list[int]:
        return [shard.committed for shard in self.store.shards]

    def _ask(self, number: int) -> None:
        if number not in self.asked:
            self.asked.append(number)

    def _commit_here(self, number: int, until_ns: int) -> bool:
        """Have a commit that is quick now and then, or turns out to take longer, or is left to the thread at once."""
        shard, chance = self.store.shards[number], self.disk.random.random()
        assert shard._committer is not None
        if chance < SLOW or shard._committer.quick_step(shard.end, 0) < 0:
            shard.commit()
            return False
        return shard.committed == shard.end

    def connect(self) -> Wire:
        return Wire(self.loop, self.broker.connections.new(), self.room)

    def turn(self) -> None:
        self.loop.turn()

    def commit(self) -> None:
        """Commit what a shard was asked to, as its thread would."""
        committer = self.store.shards[self.asked.popleft()]._committer
        assert committer is not None
        committer.step()

    def seal(self) -> None:
        """Seal a segment that is complete."""
        for shard in self.store.shards:
            shard.seal_step()

    def pass_time(self, seconds: float) -> None:
        self.loop.now += seconds
        self.loop.turn()

    # The end

    def kill(self, applies: bool, writes: int) -> tuple[SimulatedDisk, CrashTables]:
        """Return what a killed process leaves: all it has written, maybe what its threads were about to, in part."""
        if applies and self.loop.jobs:
            self.loop.jobs.popleft()[1]()
        if self.asked:
            self.disk.crash_after = writes
            try:
                self.commit()
            except SimulatedCrash:
                pass
            self.disk.crash_after = None
        return self._left(self.disk.files(), -1)

    def cut_power(self, place: int) -> tuple[SimulatedDisk, CrashTables]:
        """Return what a machine without power leaves: all that was synced, and some of the rest."""
        disk = copy.deepcopy(self.disk)  # the broker's own goes on until its loop has ended
        disk.random = self.disk.random
        disk.crash()
        return self._left(disk.files(), place)

    def _left(self, files: dict[str, bytes], place: int) -> tuple[SimulatedDisk, CrashTables]:
        disk = SimulatedDisk(self.disk.random)
        for path, data in files.items():
            disk.put(path, data)
        left = self.tables.left(place, None)
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.loop.turn()
        self.loop.turn()
        self.loop.close()
        return disk, left

    def stop(self) -> tuple[SimulatedDisk, CrashTables]:
        """Stop in order."""
        stopping = self.loop.create_task(self.broker.stop())
        while not stopping.done():
            self.pass_time(0.01)
            while self.loop.jobs:
                self.loop.work()
            while self.asked:
                self.commit()
        stopping.result()
        self.store.close()
        return self._left(self.disk.files(), -1)


def new_disk(seed: int) -> SimulatedDisk:
    return SimulatedDisk(Random(seed))
