"""Servers that own shards and write their journals, in a simulated world, and a checker that sees everything.

What must hold, whatever happens to processes, requests and clocks:
- nobody is declared dead who beat in the last five seconds in which the bucket could be reached (one, if its machine
  refuses connections);
- no epoch of a thing is given twice;
- every acknowledged record stays where it was acknowledged, once; every record is there once at most;
- epochs never go down within a journal, and a new owner has read all that the ones before it ever wrote;
- once the faults end, every shard is written again.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.simulated_world import Process, SimulatedBucket, Violation, World, new_world

from everlog.base import Fenced, Unavailable
from everlog.ownership import (
    LedgerOwnership,
    Membership,
    Overruled,
    Replaced,
    Suspicion,
    things_to_claim,
    things_to_release,
)
from everlog.tiering import JournalReader, JournalWriter, numbered
from everlog.tiering.journal_format import decode_header, decode_records

SHARDS = ["shard-0", "shard-1", "shard-2"]
FAULTS_S, END_S = 50.0, 95.0


@dataclass
class Ways:
    """How servers do things; a mutant has another way."""

    ownership: type[LedgerOwnership] = LedgerOwnership
    suspicion: Callable[[Process], Suspicion] = lambda process: Suspicion()
    writer: type[JournalWriter] = JournalWriter


@dataclass
class Seen:
    """What the checker knows."""

    beats: dict[int, list[float]] = field(default_factory=dict)  # when each beat of an incarnation landed
    epochs: dict[tuple[str, int], int] = field(default_factory=dict)
    acked: dict[str, dict[int, bytes]] = field(default_factory=lambda: {shard: {} for shard in SHARDS})
    last_ack_s: dict[str, float] = field(default_factory=dict)
    incarnations: dict[int, Process] = field(default_factory=dict)
    takeovers: list[tuple[str, int, int]] = field(default_factory=list)  # shard, epoch, the end that it found
    deaths: int = 0
    fenced: int = 0
    records: int = 0


class Server:
    """One process, as `everlog persist serve` will be: joins, ticks, claims what is placed on it, and writes."""

    def __init__(self, world: World, seen: Seen, ways: Ways, name: str) -> None:
        self.world, self.seen, self.ways, self.name = world, seen, ways, name
        self.process = Process(world, name)
        world.spawn(self.process, self.run)

    def kill(self) -> None:
        self.process.is_killed = True

    def run(self) -> None:
        while True:
            bucket = SimulatedBucket(self.world, self.process)
            ownership = watched(self.ways.ownership, self.world, self.seen, self.process)(bucket, "ownership")
            membership = Membership(
                ownership,
                self.name,
                self.name,
                SHARDS,
                refuses=lambda address: SERVERS[self.world][address].process.is_killed,
                clock=self.process.monotonic_s,
                suspicion=self.ways.suspicion(self.process),
            )
            try:
                self.serve(bucket, ownership, membership)
            except Replaced:
                return
            except (Overruled, Unavailable):
                self.world.sleep(self.world.random.uniform(0.1, 1))

    def serve(self, bucket: SimulatedBucket, ownership: LedgerOwnership, membership: Membership) -> None:
        me = membership.join()
        self.seen.incarnations[me] = self.process
        writing: dict[str, _Shard] = {}
        while True:
            try:
                board = membership.tick()
                leaving = things_to_release(board, me)
                for thing in leaving:
                    writing.pop(thing, _Shard()).stop = True
                ownership.release(leaving, me)
                self._claim(ownership, things_to_claim(board, me), me)
                owned = ownership.read().owned_by(me)
                for shard in SHARDS:
                    if shard in owned and shard not in writing:
                        writing[shard] = one = _Shard()
                        self.world.spawn(
                            self.process, lambda s=shard, e=owned[shard], o=one: self.write(bucket, s, e, o)
                        )
                for shard in [shard for shard, one in writing.items() if one.is_lost]:
                    del writing[shard]
                    ownership.release([shard], me)  # to claim it at another epoch
            except Overruled:
                for one in writing.values():  # its writers find out by themselves
                    one.is_lost = True
                raise
            except Unavailable:
                pass
            self.world.sleep(1)

    def _begin(self, bucket: SimulatedBucket, shard: str, epoch: int, state: "_Shard") -> None:
        self.world.spawn(self.process, lambda: self.write(bucket, shard, epoch, state))

    def _claim(self, ownership: LedgerOwnership, things: list[str], me: int) -> None:
        for thing, epoch in (ownership.claim(things, me) if things else {}).items():
            other = self.seen.epochs.setdefault((thing, epoch), me)
            if other != me:
                raise Violation(f"{thing}: epoch {epoch} was given to {other} and {me}")

    def write(self, bucket: SimulatedBucket, shard: str, epoch: int, state: "_Shard") -> None:
        """Take a shard over, and write to it until fenced, at a random pace."""
        random = self.world.random
        if random.random() < 0.15:
            self.world.sleep(random.uniform(1, 15))  # it is slow to begin, and may have lost the shard meanwhile
        writer = self.ways.writer(bucket, shard, epoch, lambda: int(self.process.wall_s() * 1e6))
        try:
            while True:
                try:
                    writer.take_over()
                    self.seen.takeovers.append((shard, epoch, writer.end))
                    break
                except Fenced:
                    raise
                except Unavailable:
                    self.world.sleep(0.2)
            while not state.stop:
                self.world.sleep(random.uniform(0.05, 0.6))
                records = [(f"stream-{random.randrange(5)}", self._effect(shard)) for _ in range(random.randint(1, 3))]
                self._commit(writer, shard, records)
        except Fenced:
            self.seen.fenced += 1
            state.is_lost = True

    def _commit(self, writer: JournalWriter, shard: str, records: list[tuple[str, bytes]]) -> None:
        while True:
            try:
                end = writer.write(records)
                break
            except Fenced:
                raise
            except Unavailable:
                self.world.sleep(self.world.random.uniform(0.05, 0.3))
        for place, (_, effect) in enumerate(records, end - len(records)):
            if self.seen.acked[shard].setdefault(place, effect) != effect:
                raise Violation(f"{shard}: position {place} was acknowledged twice, for two records")
        self.seen.last_ack_s[shard] = self.world.now_s
        try:
            if self.world.random.random() < 0.4:
                writer.trim(end - 10)
            writer.tidy()
        except Fenced:
            raise
        except Unavailable:
            pass

    def _effect(self, shard: str) -> bytes:
        self.seen.records += 1
        return f"{self.name} {shard} {self.seen.records}".encode()


@dataclass
class _Shard:
    is_lost: bool = False
    stop: bool = False


SERVERS: dict[World, dict[str, Server]] = {}


def watched(kind: type[LedgerOwnership], world: World, seen: Seen, process: Process) -> type[LedgerOwnership]:
    """Return an ownership that the checker looks at."""

    class Watched(kind):  # type: ignore[misc,valid-type]
        me = process

        def declare_dead(self, incarnation: int, beat: int) -> bool:
            called_s = world.now_s
            was_alive = incarnation in self.read().members
            is_dead = super().declare_dead(incarnation, beat)
            if is_dead and was_alive:
                seen.deaths += 1
                victim = seen.incarnations.get(incarnation)
                patience_s = 0.9 if victim is not None and victim.is_killed else 4.8
                still_s = world.up_s(
                    max([0.0, *(when for when in seen.beats.get(incarnation, []) if when <= called_s)])
                )
                if still_s - (world.now_s - called_s) < patience_s:
                    raise Violation(f"{incarnation} was declared dead {still_s:.1f} s after it beat")
            return is_dead

    return Watched


def simulate(seed: int, ways: Ways | None = None) -> Seen:
    """Run one history and check all that must hold."""
    ways = ways or Ways()
    with new_world(seed) as world, small_blocks():
        seen = Seen()

        def landed(name: str) -> None:
            folder, _, last = name.rpartition("/")
            if folder == "ownership/beats":
                seen.beats.setdefault(int(last), []).append(world.now_s)

        world.landed = landed
        servers = SERVERS[world] = {name: Server(world, seen, ways, name) for name in "abc"}
        try:
            befall(world, servers)
            world.at(FAULTS_S, lambda: heal(world, servers))
            world.run(END_S)
            check(world, seen)
        finally:
            del SERVERS[world]
        return seen


@contextmanager
def small_blocks() -> Iterator[None]:
    """Let numbers be deleted soon."""
    usual = numbered.MILESTONES
    numbered.MILESTONES = (4, 16, 64)
    try:
        yield
    finally:
        numbered.MILESTONES = usual


def befall(world: World, servers: dict[str, Server]) -> None:
    """Plan what will happen to processes and clocks."""
    random = world.random
    when = random.uniform(3, 10)
    while when < FAULTS_S:
        name = random.choice(sorted(servers))
        kind = random.choice(["pause", "pause", "long pause", "long pause", "kill", "cut", "jump", "outage"])
        world.at(when, lambda name=name, kind=kind: happen(world, servers, name, kind))
        when += random.uniform(1, 9)


def happen(world: World, servers: dict[str, Server], name: str, kind: str) -> None:
    """Let something happen to a server."""
    random = world.random
    server = servers[name]
    match kind:
        case "pause":
            server.process.paused_until_s = world.now_s + random.uniform(0.5, 4)
        case "long pause":
            server.process.paused_until_s = world.now_s + random.uniform(5, 25)
        case "cut":
            server.process.cut_until_s = world.now_s + random.uniform(1, 12)
        case "outage" if not world.is_down():
            world.outages.append((world.now_s, min(world.now_s + random.uniform(1, 12), FAULTS_S)))
        case "jump":
            server.process.wall_ahead_s += random.choice([-3600, -7, 7, 3600, 3e7])
        case "kill":
            server.kill()
            restart = f"{name}{len(servers)}" if random.random() < 0.5 else name
            world.at(
                world.now_s + random.uniform(0.1, 10),
                lambda: servers.__setitem__(restart, Server(world, server.seen, server.ways, restart)),
            )


def heal(world: World, servers: dict[str, Server]) -> None:
    """End all faults."""
    world.has_faults = False
    for server in servers.values():
        server.process.paused_until_s = server.process.cut_until_s = 0.0


def check(world: World, seen: Seen) -> None:
    """Compare the journals with what was acknowledged."""
    for name, data in world.created_again.items():
        if name.startswith("shard-") and decode_header(data, int(name.rpartition("/")[2])).count:
            raise Violation(f"{name} was deleted, and then written again")
    for shard in SHARDS:
        if seen.last_ack_s.get(shard, 0) < FAULTS_S:
            raise Violation(f"{shard} was not written again after the faults had ended")
        reader = JournalReader(world.bucket, shard)
        reader.follow()
        found = list(reader.read(reader.start, reader.end))
        if [position for position, _, _ in found] != list(range(reader.start, reader.end)):
            raise Violation(f"{shard}: positions are missing")
        effects = {position: effect for position, _, effect in found}
        for position, effect in seen.acked[shard].items():
            if position >= reader.start and effects.get(position) != effect:
                there = effects.get(position)
                raise Violation(f"{shard}: position {position} was acknowledged as {effect!r} and is {there!r}")
        created = {name: data for name, data in world.created.items() if name.startswith(f"{shard}/")}
        check_history(shard, created, [(epoch, end) for one, epoch, end in seen.takeovers if one == shard])


def check_history(shard: str, created: dict[str, bytes], takeovers: list[tuple[int, int]]) -> None:
    """Look at all objects of a journal that ever were."""
    effects: set[bytes] = set()
    epoch = 0
    for name, data in sorted(created.items()):
        number = int(name.rpartition("/")[2])
        header = decode_header(data, number)
        if header.epoch < epoch:
            raise Violation(f"{shard}: epochs go down")
        epoch = header.epoch
        if any(epoch < later and header.end > end for later, end in takeovers):
            raise Violation(f"{shard}: epoch {epoch} wrote what a later owner has not read")
        for _, _, effect in decode_records(data, number):
            if effect in effects:
                raise Violation(f"{shard}: {effect!r} is there twice")
            effects.add(effect)
