"""One log lives many short lives on a simulated disk, and a model says what must be true of it after each.

Everything that happens follows from the seed. `Violation` says which promise was broken.
"""

import contextlib
import errno
from collections.abc import Callable, Sequence
from random import Random

from tests.shard_logs import Message, Row, columns_of, rows
from tests.simulated_disk import SimulatedCrash, SimulatedDisk

from everlog.base import GONE, RecordBuilder, StorageError, TopicTable, Unavailable
from everlog.commitlog import LogSettings, ShardLog, verify_directory
from everlog.commitlog.damage import GAP, MISPLACED, MISSING
from everlog.commitlog.segment_format import Frame

DIRECTORY = "data/shard-0"
TOPICS = 40
SHORT = {b"t/%d" % n for n in range(8)}  # topics that are kept for less long than others


class Violation(AssertionError):
    """A promise of the log was broken."""


class CountingIndexer:
    """An indexer whose section says how many topics and batches there were."""

    def build(self, names: object, batch_topics: object) -> list[bytes]:
        return [b"%d topics " % len(names), b"in %d batches" % len(batch_topics)]  # type: ignore[arg-type]


class ShortTopics:
    """Two classes of topics: those that are kept for `age_us`, and the others."""

    def __init__(self, age_us: int) -> None:
        self.ages_us = (age_us,)

    def sort(self, names: Sequence[bytes]) -> bytes:
        return bytes(name in SHORT for name in names)


class World:
    """A log, the disk under it, and what is known to have happened."""

    def __init__(self, seed: int, durability: str | None = None) -> None:
        self.random = random = Random(seed)
        self.disk = SimulatedDisk(random)
        self.disk.pads = random.random() < 0.5
        self.disk.leaves = 0.5
        self.durability = durability or random.choice(("fsync", "fsync", "fsync", "flush", "memory"))
        self.settings = LogSettings(
            durability=self.durability,  # type: ignore[arg-type]
            segment_bytes=random.choice((400, 900, 2000)),
            batch_bytes=random.choice((150, 400, 900)),
            preallocate_bytes=random.choice((0, 700, 2000)),
            segment_us=random.choice((None, None, 5000)),
            tail_bytes=random.choice((0, 500, 5000)),
            merge_below=random.choice((0, 0, 100)),
            merge_records=random.choice((5, 50)),
            cache_bytes=random.choice((0, 10_000)),
            retention_bytes=random.choice((None, 4000)),
            thin_percent=random.choice((0, 25)),
        )
        self.classes = ShortTopics(random.choice((0, 20_000)))
        self.thinnable: set[int] = set()  # offsets that were short-lived topics' when thinning was asked for
        self.emptied: set[int] = set()  # those of them that are empty for sure
        self.now = 1_000_000
        self.number = 0
        self.floor = 0  # what was committed when the log was opened
        self.start = 0  # below it retention may have removed anything
        self.appended: dict[int, set[tuple[bytes, bytes]]] = {}  # what was ever appended at an offset
        self.latest: dict[int, tuple[bytes, bytes]] = {}  # what was last appended at it
        self.reported: dict[int, tuple[bytes, bytes]] = {}  # what was reported committed at it
        self.table = TopicTable()
        self.log: ShardLog | None = None
        self.broken = False
        self.opening = False
        self.committing = False
        self.left = False  # a commit may be under way
        self.seal_from = 14  # of 20: commits below it, seals from it to 16
        self.faulty = 0.0  # how likely the disk breaks before anything that is done
        self.undo: Callable[[], None] = lambda: None

    def violated(self, promise: str) -> Violation:
        return Violation(f"{promise} (durability {self.durability})")

    def clock(self) -> int:
        self.now += self.random.randrange(1000)
        return self.now

    def run(self, lives: int) -> None:
        """Live, crash or stop, and look at what is left."""
        for _ in range(lives):
            try:
                self.live()
            except SimulatedCrash:
                pass
            self.log = None
            self.disk.fault = lambda kind, path: None
            self.broken = False
            self.disk.crash_after = None
            self.stop()
        self.live(final=True)

    def stop(self) -> None:
        """The process is killed, and then perhaps the machine stops."""
        self.disk.life += 1
        self.disk.locks.clear()
        self.check_reader()
        if self.random.random() < 0.7:
            self.disk.crash()
            self.check_reader()

    def open(self) -> ShardLog:
        log = ShardLog.open(
            self.disk, DIRECTORY, self.settings, indexer=CountingIndexer(), classes=self.classes, background=False,
            now_us=self.clock, random_bytes=self.random.randbytes,
        )  # fmt: skip
        self.floor = log.committed
        log.on_commit = lambda _, committed: self.report(committed)
        self.log = log
        return log

    def live(self, final: bool = False) -> None:
        random = self.random
        if not final:
            self.disk.crash_after = random.choice((random.randrange(12), random.randrange(60), 100_000))
        self.opening = True  # what recovery finds whole is committed before `open` returns
        log = self.open()
        self.check(log)
        self.opening = self.committing = self.left = False
        for _ in range(0 if final else random.randrange(25)):
            if log.failure is not None:
                self.check(log)
                self.committing = True
                if random.random() < 0.5:
                    log.close()
                return  # to be reopened
            self.act(log)
        if final or random.random() < 0.3:
            self.committing = True
            try:
                log.close()
            except StorageError:
                if not self.broken:
                    raise
                return
            kept = rows(log)
            self.disk.fault = lambda kind, path: None
            if self.random.random() < 0.5 or final:
                self.disk.crash()
            self.check_reader(everything=True)
            again = self.open()
            self.check(again)
            if log.failure is None and not self.broken and (rows(again) != kept or again.end != log.end):
                raise self.violated("a clean stop loses nothing, at any durability")

    def act(self, log: ShardLog) -> None:
        if self.faulty and self.random.random() < self.faulty:
            self.break_disk()
        dice = self.random.randrange(23)
        if dice < 9:
            self.append(log)
        elif dice < self.seal_from:
            self.commit(log)
        elif dice < 16:
            log.seal_step()
        elif dice == 16:
            now = self.clock()
            goes = log.plan_retention(now).start
            self.start = max(self.start, goes)
            try:
                log.run_retention(now, keep_from=goes)  # a quiet log may have more to remove once it is rolled
            except StorageError:
                if not self.broken:
                    raise
        elif dice in (20, 21):
            self.thin(log)
        elif dice == 22:
            self.heal_disk(log)
        elif dice == 17:
            self.check(log)
        elif dice == 18:
            self.check_reader()
        elif self.random.random() < 0.5:
            self.break_disk()

    def thin(self, log: ShardLog) -> None:
        short = {offset for offset, (topic, _) in self.reported.items() if topic in SHORT}
        self.thinnable |= short
        for one in log.thin(self.clock()):
            self.emptied |= {offset for offset in short if one.base_offset <= offset < one.end_offset}

    def append(self, log: ShardLog) -> None:
        messages = self.messages()
        first = log.end
        try:
            log.append(columns_of(messages, self.table), 0, len(messages), self.clock(), self.table)
        except (StorageError, Unavailable):
            return
        for offset, message in enumerate(messages, first):
            if offset in self.reported:
                raise self.violated(f"offset {offset} was given again")
            self.appended.setdefault(offset, set()).add(message)
            self.latest[offset] = message

    def messages(self) -> list[Message]:
        found = []
        for _ in range(self.random.choice((1, 1, 2, 5, 12))):
            self.number += 1
            topic = b"t/%d" % min(self.random.randrange(TOPICS), self.random.randrange(TOPICS))
            found.append((topic, b"%d:" % self.number + b"x" * self.random.choice((0, 3, 20, 90))))
        if self.random.random() < 0.1:
            found.append((b"t/0", self.forgery()))
        return found

    def forgery(self) -> bytes:
        """A payload that would be a frame and a batch, if it stood where one may stand."""
        self.number += 1
        builder, end = RecordBuilder(), self.log.end if self.log is not None else 0
        forged = columns_of([(b"forged", b"%d" % self.number)], self.table)
        builder.append(forged, 0, 1, self.now, self.table)
        batch = builder.take(end + self.random.randrange(3)).to_bytes()
        frame = Frame(self.random.randrange(128, 2000, 8), end, len(batch), 1, True).to_bytes(self.random.randrange(9))
        return b"%-8d" % self.number + bytes(self.random.randrange(8)) + frame + bytes(batch)

    def commit(self, log: ShardLog) -> None:
        self.committing = True  # what is synced is committed before `step` returns
        asked = log.end
        if self.random.random() < 0.4:
            assert log._committer is not None
            self.left = log._committer.quick_step(asked, 0) < 0  # or there was more to do; either way a step is due
            self.committing = self.left or log.trouble is not None
            return
        if not self.left and log.committed < log.end and self.random.random() < 0.3:
            asked = self.random.randrange(log.committed, log.end) + 1
            with contextlib.suppress(StorageError):
                log.wait_committed(asked, 0)
        else:
            log.commit_step()
            self.left = False
        self.committing = log.trouble is not None  # and what failed may be there all the same
        if log.trouble is None and log.committed < asked:
            raise self.violated("a step commits what was asked for")

    def report(self, committed: int) -> None:
        """What the log says is committed is committed."""
        offset = committed - 1
        while offset >= self.floor and offset in self.latest and offset not in self.reported:
            self.reported[offset] = self.latest[offset]
            offset -= 1

    def break_disk(self) -> None:
        """From now on some kind of call fails, the next few times or for good."""
        kind = self.random.choice(
            ("write", "sync", "sync", "sync_directory", "create", "rename", "allocate", "truncate")
        )
        number = self.random.choice((errno.EIO, errno.ENOSPC))
        self.broken = True
        suffix = self.random.choice((".log", ".log", ".tmp", "shard-0", "mark"))
        left = self.random.choice((1, 1, 2, 4, 1 << 30))

        def fault(k: str, path: str) -> int | None:
            nonlocal left
            if k != kind or not path.endswith(suffix) or not left:
                return None
            left -= 1
            return number

        self.disk.fault = fault

    def heal_disk(self, log: ShardLog) -> None:
        """The disk is well again, and so is the log: all that was appended is committed."""
        self.disk.fault = lambda kind, path: None
        self.committing = True
        log.commit_step()  # what was held
        log.commit_step()  # what came meanwhile
        self.committing = False
        if log.trouble is not None or log.committed != log.end:
            raise self.violated(f"a log goes on when its disk does, but: {log.trouble}")

    def check(self, log: ShardLog) -> None:
        """Everything readable was appended there, and everything committed is readable."""
        committed = log.committed
        self.compare(rows(log, max_bytes=self.random.choice((1, 300, 5000))), committed)
        if committed < max(self.reported, default=-1) + 1:
            raise self.violated("the committed offset went back")
        self.report_found(log)
        harm = [damage for damage in log.damage if damage.position or damage.to_offset > damage.from_offset]
        if self.durability == "fsync" and harm:  # a header may be torn before anything is committed
            raise self.violated(f"what was synced is whole, but {harm[0]}")
        if log.segments() and any(view.end_offset > committed for view in log.segments()):
            raise self.violated("a segment ends behind the committed offset")

    def report_found(self, log: ShardLog) -> None:
        """After a start, what survived is committed too."""
        for offset, topic, payload in rows(log):
            if topic != GONE:
                self.reported.setdefault(offset, (topic, payload))

    def compare(self, found: list[Row], committed: int) -> None:
        offsets = [row[0] for row in found]
        if offsets != sorted(set(offsets)):
            raise self.violated("offsets come in order, each once")
        for offset, topic, payload in found:
            if self.is_emptied(offset, topic, payload):
                continue
            if (topic, payload) not in self.appended.get(offset, ()):
                raise self.violated(f"offset {offset} holds {payload!r}, which was never appended there")
            if self.reported.get(offset, (topic, payload)) != (topic, payload):
                raise self.violated(f"offset {offset} was committed with other content")
        if self.durability == "fsync":
            there = set(offsets)
            missing = [o for o in self.reported if self.start <= o < committed and o not in there]
            if missing:
                raise self.violated(f"committed offsets {missing[:5]} are gone")

    def is_emptied(self, offset: int, topic: bytes, payload: bytes) -> bool:
        if topic == GONE and (payload or offset not in self.thinnable):
            raise self.violated(f"offset {offset} was emptied, which is not short-lived")
        if topic != GONE and offset in self.emptied:
            raise self.violated(f"offset {offset} was emptied, and is there again")
        return topic == GONE

    def check_reader(self, everything: bool = False) -> None:
        """A reader beside the writer sees what was committed and nothing else."""
        after = self.disk.crash_after
        self.disk.crash_after = None
        try:
            reader = ShardLog.open(self.disk, DIRECTORY, self.settings, writable=False)
        except StorageError:
            if self.disk.list(DIRECTORY):
                raise
            return
        found = [row for row in rows(reader) if not self.is_emptied(*row)]
        limit = self.log.committed if self.log is not None and self.log.trouble is None else None
        if self.durability != "fsync" or self.opening or self.committing:
            self.compare(found, 0)
            self.reported.update({offset: (topic, payload) for offset, topic, payload in found})
        for offset, topic, payload in found:
            if self.reported.get(offset) != (topic, payload):
                raise self.violated(f"a reader sees offset {offset}, which was not committed")
        if limit is not None and reader.committed > limit:
            raise self.violated("a reader is ahead of the writer")
        if everything and self.durability == "fsync":
            self.compare(rows(reader), reader.committed)
        noticed = (*reader.damage, *verify_directory(self.disk, DIRECTORY).damage)
        lost = [damage for damage in noticed if damage.what in (GAP, MISPLACED, MISSING)]
        if self.durability == "fsync" and lost:
            raise self.violated(f"every segment is there, but {lost[0]}")
        self.disk.crash_after = after


def simulate(
    seed: int, durability: str | None = None, lives: int = 5, mutate: Callable[[World], None] = lambda world: None
) -> World:
    """A whole history."""
    world = World(seed, durability)
    mutate(world)
    try:
        world.run(lives)
    finally:
        world.undo()
    return world
