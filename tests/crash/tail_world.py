"""A cluster's tail in a simulated database with a standby: replies are lost, commits wait in vain, owners change.

Brokers forward numbered messages to whoever owns the shard, again until they are acknowledged, sometimes out of turn.
In the end each message that was acknowledged is in the log, and each that is there is there once.
"""

from collections.abc import Sequence
from random import Random

from tests.messages import to_columns
from tests.simulated_disk import SimulatedDisk

from everlog.base import EverlogError, Fenced, TopicTable, Unavailable
from everlog.cluster.commit_rounds import CommitRounds
from everlog.cluster.origins import Gap
from everlog.cluster.ports import TABLES, Outcome, ShardRows, TableFill, Takeover
from everlog.cluster.rows import TailRow
from everlog.cluster.shard_target import ShardTarget
from everlog.cluster.tail_commits import TailCommits
from everlog.commitlog import LogSettings, Origin, ShardLog

SETTINGS = LogSettings(durability="flush", segment_bytes=700, batch_bytes=200, merge_below=0)
OWN = 1_000  # owners are origins too; these forwarders are not owners
FORWARDERS = (1, 2, 3)


class Died(BaseException):
    """The process of an owner ends here."""


class SimulatedState:
    """What one server has: the fence, the tail, what was sealed."""

    def __init__(self) -> None:
        self.epoch = 0
        self.probe = 0
        self.rows: list[dict[int, TailRow]] = [{} for _ in range(TABLES)]
        self.sealed: list[TailRow] = []  # in the bucket
        self.sealed_origins: dict[int, int] = {}

    def copy(self) -> "SimulatedState":
        """The same state, apart."""
        other = SimulatedState()
        other.epoch, other.probe = self.epoch, self.probe
        other.rows = [dict(table) for table in self.rows]
        other.sealed, other.sealed_origins = list(self.sealed), dict(self.sealed_origins)
        return other

    def tail(self) -> list[TailRow]:
        """All rows of the tail, in order."""
        return sorted((row for table in self.rows for row in table.values()), key=lambda row: row.base)

    def history(self) -> list[TailRow]:
        """All rows, sealed or not."""
        sealed = self.sealed[-1].end if self.sealed else 0
        return self.sealed + [row for row in self.tail() if row.base >= sealed]

    def origins(self) -> dict[int, int]:
        """The last numbers, as a takeover finds them: by the last segment's rows, or else by the list."""
        tail = self.tail()
        if not tail:
            return dict(self.sealed_origins)
        found: dict[int, int] = {}
        for row in tail:
            if row.segment == tail[-1].segment:
                found.update(row.origins)
        return found


class SimulatedDatabase:
    """A primary and its standby. A commit that is answered cleanly is on both, with all before it."""

    def __init__(self, random: Random, faults: float, shards: int = 1) -> None:
        self.random = random
        self.faults = faults
        self.primary = [SimulatedState() for _ in range(shards)]
        self.standby = [SimulatedState() for _ in range(shards)]

    def replicate(self) -> None:
        """Bring the standby up to the primary."""
        self.standby = [state.copy() for state in self.primary]

    def fail_over(self) -> None:
        """The standby is the primary from now on; what it had not got is gone."""
        self.primary = [state.copy() for state in self.standby]

    def is_busy(self) -> bool:
        """Whether somebody else has a shard's row just now."""
        return self.random.random() < self.faults / 4

    def answer(self) -> None:
        """End a transaction that has written: cleanly, or in doubt."""
        if self.random.random() >= self.faults:
            self.replicate()
            return
        if self.random.random() < 0.5:
            self.replicate()
        if self.random.random() < 0.2:
            raise Died
        raise Unavailable("the reply was lost")

    def may_reach(self) -> None:
        """Begin a transaction, or not."""
        if self.random.random() < self.faults / 2:
            raise Unavailable("it can't be reached")


class SimulatedTail:
    """The tables as one owner writes them."""

    def __init__(self, database: SimulatedDatabase) -> None:
        self._database = database

    def take_over(self, shard: int, epoch: int, probe: int) -> Takeover:
        """Raise the epoch, then look."""
        self._database.may_reach()
        state = self._database.primary[shard]
        if state.epoch > epoch or (state.epoch == epoch and state.probe != probe):
            raise Fenced("replaced")
        state.epoch, state.probe = epoch, probe
        self._database.answer()
        state = self._database.primary[shard]
        if state.epoch != epoch:
            raise Fenced("replaced")
        history = state.history()
        fills = [
            TableFill(
                sum(row.size for row in table.values()), len(table), max((r.end for r in table.values()), default=0)
            )
            for table in state.rows
        ]
        last = max(range(TABLES), key=lambda table: fills[table].end)
        return Takeover(history[-1].end if history else 0, state.origins(), {}, fills, last)

    def insert(self, parts: Sequence[ShardRows]) -> list[Outcome]:
        """Commit rows behind the fence."""
        self._database.may_reach()
        outcomes = [self._write(part) for part in parts]
        if Outcome.COMMITTED in outcomes:
            self._database.answer()
        return outcomes

    def settle(self, parts: Sequence[ShardRows]) -> list[Outcome]:
        """Commit rows that may be there."""
        return self.insert(parts)

    def _write(self, part: ShardRows) -> Outcome:
        if self._database.is_busy():
            return Outcome.BUSY
        state = self._database.primary[part.shard]
        if state.epoch != part.epoch:
            return Outcome.FENCED
        for row in part.rows:
            if state.rows[part.table].setdefault(row.base, row).nonce != row.nonce:
                return Outcome.FENCED
        return Outcome.COMMITTED

    def is_there(self, part: ShardRows) -> bool:
        """Whether a look finds the rows."""
        return all(row.base in self._database.primary[part.shard].rows[part.table] for row in part.rows)

    def close_origin(self, shard: int, origin: int, final: int, epoch: int) -> None:
        """Not simulated."""

    def interrupt(self) -> None:
        """Nothing waits."""

    def close(self) -> None:
        """Nothing is held."""


class Owner:
    """A broker that owns the shard."""

    target_kind = ShardTarget
    tail_kind = SimulatedTail

    def __init__(self, world: "TailWorld", epoch: int) -> None:
        self.shard = world.shard
        commits = world.commits or TailCommits(self.tail_kind(world.database), lambda attempt: 0.0)
        sizes = {"tail_bytes": 64_000, "transaction_bytes": 400}
        self.target = self.target_kind(commits, world.shard, epoch, OWN + epoch, **sizes)
        end = self.target.take_over().end
        origin = Origin(1, world.shard, epoch)
        self.log = ShardLog.open(
            SimulatedDisk(world.random),
            "shard",
            SETTINGS,
            background=False,
            not_below=end,
            origin=origin,
            is_copy=True,
        )
        self.log.follow(Unavailable("not owned"))
        self.log.own(epoch, self.target)
        self.table = TopicTable()
        self._random = world.random

    def forward(self, origin: int, first: int, count: int) -> int:
        """Append messages of a broker; its last number."""
        columns = to_columns([(b"t", 2, b"", b"%d:%d" % (origin, first + k)) for k in range(count)], self.table)

        def append(skipped: int) -> int:
            self.log.append(columns, skipped, count, 1, self.table)
            return self.log.end

        return self.append(origin, first, count, append)

    def append(self, origin: int, first: int, count: int, append: object) -> int:
        """Append behind the numbers."""
        return self.target.origins.append(origin, first, count, append)  # type: ignore[arg-type]

    def own_messages(self, count: int) -> None:
        """Append messages without a number."""
        columns = to_columns([(b"t", 2, b"", b"own") for _ in range(count)], self.table)
        self.log.append(columns, 0, count, 1, self.table)

    def commit(self) -> bool:
        """Commit what gathered; whether it still owns the shard."""
        self.log.commit_step()
        return self.log.barred is None


class TailWorld:
    """Everything, driven by one seed."""

    owner_kind = Owner

    def __init__(
        self, seed: int, faults: float = 0.2, shard: int = 0, database: SimulatedDatabase | None = None
    ) -> None:
        self.random = database.random if database is not None else Random(seed)
        self.database = database or SimulatedDatabase(self.random, faults)
        self.shard = shard
        self.commits: TailCommits | None = None  # of the broker that takes over; None: an owner has its own
        self.epoch = 0
        self.sent = dict.fromkeys(FORWARDERS, 0)
        self.acked = dict.fromkeys(FORWARDERS, 0)
        self.promised = 0  # how far the log was told to be committed
        self.owner: Owner | None = None

    def run(self, steps: int) -> None:
        """Let things happen, then let all end well, and check."""
        for _ in range(steps):
            self._step()
            self.check()
        self.database.faults = 0.0
        self._lose_owner()
        for _ in range(3):
            self._act(self._settle_all)
        self.check()
        assert self.acked == self.sent

    def _step(self) -> None:
        chance = self.random.random()
        if self.owner is None or chance < 0.08:
            self._lose_owner()
            self._act(self._take_over)
        elif chance < 0.12:
            self.database.fail_over()
        elif chance < 0.25:
            self._seal()
        else:
            self._act(self._forward)

    def _act(self, act: object) -> None:
        try:
            act()  # type: ignore[operator]
        except (Died, EverlogError):
            self._lose_owner()

    def _take_over(self) -> None:
        self.epoch += 1
        self.owner = self.owner_kind(self, self.epoch)

    def _lose_owner(self) -> None:
        self.owner = None

    def _forward(self) -> None:
        owner = self.owner
        assert owner is not None
        heard = self.send(owner)
        owner.commit()
        if not self.acknowledge(owner, heard):
            self._lose_owner()

    def send(self, owner: Owner) -> dict[int, int]:
        """Let an owner append some messages; return up to which of each origin it has then."""
        heard: dict[int, int] = {}
        for _ in range(self.random.randrange(1, 4)):
            origin = self.random.choice(FORWARDERS)
            if self.random.random() < 0.5:
                self.sent[origin] += self.random.randrange(1, 9)
            first = self.acked[origin] + 1
            if self.random.random() < 0.2:  # what was before it is still on its way
                first += self.random.randrange(1, 4)
            if first <= self.sent[origin]:
                try:
                    heard[origin] = owner.forward(origin, first, self.sent[origin] + 1 - first)
                except Gap:
                    continue
        owner.own_messages(self.random.randrange(3))
        return heard

    def acknowledge(self, owner: Owner, heard: dict[int, int]) -> bool:
        """Let the brokers hear what an owner has committed; return whether it still owns the shard."""
        if owner.log.barred is not None:
            return False
        for origin, last in heard.items():
            if self.random.random() < 0.8:  # or the answer is lost
                self.acked[origin] = max(self.acked[origin], last)
        self.promised = max(self.promised, owner.log.committed)
        return True

    def _settle_all(self) -> None:
        if self.owner is None:
            self._take_over()
        owner = self.owner
        assert owner is not None
        for origin in FORWARDERS:
            if self.acked[origin] < self.sent[origin]:
                first = self.acked[origin] + 1
                last = owner.forward(origin, first, self.sent[origin] + 1 - first)
                assert owner.commit()
                self.acked[origin] = last

    def _seal(self) -> None:
        """Everything but the segment that is written to goes into the bucket, and out of the tables."""
        state = self.database.primary[self.shard]
        tail = state.tail()
        if not tail or self.owner is None or self.random.random() < 0.5:
            return
        everything = self.random.random() < 0.3 and self.owner.log.end == tail[-1].end
        done = [row for row in state.history() if everything or row.segment != tail[-1].segment]
        if len(done) <= len(state.sealed):
            return
        state.sealed_origins = self._numbers_of(done)
        state.sealed = done
        kept = done[-1].end
        for number, table in enumerate(state.rows):
            if all(row.end <= kept for row in table.values()):
                state.rows[number] = {}
                self.owner.target.emptied(number)
        if everything:
            self._lose_owner()  # a segment is sealed whole: the next owner begins another
        self.database.replicate()

    def _numbers_of(self, rows: list[TailRow]) -> dict[int, int]:
        found: dict[int, int] = {}
        for row in rows:
            found.update(row.origins)
        return found

    def check(self) -> None:
        """Everything acknowledged is on both servers, once, and offsets have no gap."""
        for state in (self.database.primary[self.shard], self.database.standby[self.shard]):
            numbers = dict.fromkeys(FORWARDERS, 0)
            end = 0
            for row in state.history():
                assert row.base == end, "offsets have a gap"
                end = row.end
                for text in payloads(row):
                    if text != b"own":
                        origin, number = (int(part) for part in text.split(b":"))
                        assert number == numbers[origin] + 1, "a message is there twice, or one before it is missing"
                        numbers[origin] = number
            assert end >= self.promised, "what was committed is gone"
            for origin, acked in self.acked.items():
                assert numbers[origin] >= acked, "what was acknowledged is gone"


class Broker:
    """A broker that commits what all of its shards have in common transactions."""

    tail_kind = SimulatedTail

    def __init__(self, database: SimulatedDatabase) -> None:
        self.commits = TailCommits(self.tail_kind(database), lambda attempt: 0.0)
        self.rounds = CommitRounds(self.commits)
        self.owners: dict[int, Owner] = {}  # of shards, though another broker may have them by now

    def own(self, world: TailWorld) -> None:
        """Take over a shard."""
        world.commits = self.commits
        world.epoch += 1
        owner = world.owner = self.owners[world.shard] = world.owner_kind(world, world.epoch)
        self.rounds.add(owner.log, lambda: owner.target)

    def commit(self) -> None:
        """Commit what all shards have."""
        for owner in self.owners.values():
            owner.log._committer.ask(owner.log.end)
        while self.rounds.step() or self.rounds._steps:
            pass


class ManyShards:
    """Shards of one database that brokers take from each other, without a word to the owner before."""

    broker_kind = Broker
    shards = 4

    def __init__(self, seed: int, faults: float = 0.2) -> None:
        self.random = Random(seed)
        self.database = SimulatedDatabase(self.random, faults, self.shards)
        self.worlds = [TailWorld(0, 0.0, shard, self.database) for shard in range(self.shards)]
        self.brokers = [self.broker_kind(self.database) for _ in range(2)]

    def run(self, steps: int) -> None:
        """Let things happen, then let all end well, and check."""
        for _ in range(steps):
            self._step()
            self._check()
        self.database.faults = 0.0
        last = self.broker_kind(self.database)
        for world in self.worlds:
            last.own(world)
            world._settle_all()
        self._check()
        for world in self.worlds:
            assert world.acked == world.sent

    def _step(self) -> None:
        chance = self.random.random()
        place = self.random.randrange(len(self.brokers))
        try:
            if chance < 0.25:
                self.brokers[place].own(self.random.choice(self.worlds))
            elif chance < 0.3:
                self.database.fail_over()
            elif chance < 0.4:
                self._seal(self.random.choice(self.worlds))
            else:
                self._work(self.brokers[place])
        except (Died, EverlogError):
            for world in self.worlds:
                if world.owner in self.brokers[place].owners.values():
                    world.owner = None
            self.brokers[place] = self.broker_kind(self.database)

    def _seal(self, world: TailWorld) -> None:
        owner = world.owner
        world._seal()
        if world.owner is None:  # the segment that it wrote to was sealed
            for broker in self.brokers:
                broker.owners = {shard: one for shard, one in broker.owners.items() if one is not owner}

    def _work(self, broker: Broker) -> None:
        chosen = [one for one in broker.owners.values() if self.random.random() < 0.8]
        heard = [(owner, self.worlds[owner.shard].send(owner)) for owner in chosen]
        broker.commit()
        for owner, numbers in heard:
            if not self.worlds[owner.shard].acknowledge(owner, numbers):
                del broker.owners[owner.shard]

    def _check(self) -> None:
        for world in self.worlds:
            world.check()


def payloads(row: TailRow) -> list[bytes]:
    """The payloads of a row, which needs no other."""
    from everlog.cluster.row_names import read_alone

    return [one[5] for one in read_alone(bytes(row.body), row.names).rows()]
