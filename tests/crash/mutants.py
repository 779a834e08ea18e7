"""Ways to get durability wrong, each by one step that is left out or comes too late; the simulation must notice."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from tests.crash.simulation import World
from tests.simulated_disk import SimulatedDisk, SimulatedFile

import everlog.commitlog.recovery as recovery
from everlog.commitlog import ShardLog
from everlog.commitlog.ports import Block, Note

Mutation = Callable[[World], None]


def skip(kind: str, suffix: str, *, opening: bool | None = None) -> Mutation:
    """Leave out one kind of sync, at any time or only while a log is opened or is not."""

    def mutate(world: World) -> None:
        world.disk.skips = lambda k, path: (
            k == kind and path.endswith(suffix) and (opening is None or opening == world.opening)
        )

    return mutate


class EarlySyncFile(SimulatedFile):
    """Syncs before it writes."""

    def commit_at(self, position: int, blocks: Sequence[Block], note: Note | None = None, **how: bool) -> None:
        self.sync()
        self.write_at(position, blocks)
        if note is not None:
            note[0].write_at(0, [note[1]])


class EarlyMarkFile(SimulatedFile):
    """Marks what is not synced yet."""

    def commit_at(self, position: int, blocks: Sequence[Block], note: Note | None = None, **how: bool) -> None:
        self.write_at(position, blocks, note)
        self.sync()


class LateSyncFile(SimulatedFile):
    """Leaves the sync to the rename."""

    def commit_at(self, position: int, blocks: Sequence[Block], note: Note | None = None, **how: bool) -> None:
        self.write_at(position, blocks)

    def sync(self) -> None:
        pass


class MutantDisk(SimulatedDisk):
    """Opens files of another kind for some paths, and syncs temporary files only after it renamed them."""

    file_of: type[SimulatedFile] = SimulatedFile
    suffix = ""

    def create(self, path: str) -> SimulatedFile:
        file = super().create(path)
        return self.file_of(self, path, file._inode) if path.endswith(self.suffix) else file

    def open(self, path: str, *, write: bool = False) -> SimulatedFile:
        file = super().open(path, write=write)
        return self.file_of(self, path, file._inode) if path.endswith(self.suffix) else file


class UnsyncedCutFile(SimulatedFile):
    """Leaves out the sync of a cut."""

    cutting = False

    def truncate(self, size: int) -> None:
        super().truncate(size)
        self.cutting = True

    def sync(self) -> None:
        if not self.cutting:
            super().sync()
        self.cutting = False


class SyncAgainFile(SimulatedFile):
    """Syncs once more when a sync fails, and believes the second."""

    def sync(self) -> None:
        try:
            super().sync()
        except OSError:
            super().sync()


class LateZerosFile(SimulatedFile):
    """Writes the zeros ahead of a batch after the batch."""

    zeros: tuple[int, int] | None = None

    def allocate(self, position: int, size: int) -> None:
        self.zeros = (position, size)

    def commit_at(self, position: int, blocks: Sequence[Block], note: Note | None = None, **how: bool) -> None:
        super().commit_at(position, blocks, note, **how)
        if self.zeros is not None:
            super().allocate(*self.zeros)
            self.zeros = None


class LateSyncDisk(MutantDisk):
    """Renames, then syncs."""

    file_of, suffix = LateSyncFile, ".log.tmp"

    def rename(self, old: str, new: str) -> None:
        file = super().open(old)
        super().rename(old, new)
        super().sync_directory(new.rpartition("/")[0])
        SimulatedFile.sync(file)


class EarlySyncDisk(MutantDisk):
    """Syncs segments before it writes to them."""

    file_of, suffix = EarlySyncFile, ".log"


class EarlyMarkDisk(MutantDisk):
    """Marks commits before it syncs them."""

    file_of, suffix = EarlyMarkFile, ".log"


class UnsyncedCutDisk(MutantDisk):
    """Syncs no cut."""

    file_of, suffix = UnsyncedCutFile, ".log"


class SyncAgainDisk(MutantDisk):
    """A failed sync is tried again."""

    file_of, suffix = SyncAgainFile, ".log"


class LateZerosDisk(MutantDisk):
    """Zeros come last."""

    file_of, suffix = LateZerosFile, ".log"


def no_cut(but: Callable[[World], bool] = lambda world: world.opening) -> Mutation:
    """Leave zeros where they are, but while a log is opened."""

    def mutate(world: World) -> None:
        class UncutFile(SimulatedFile):
            def truncate(self, size: int) -> None:
                if but(world):
                    super().truncate(size)

        class UncutDisk(MutantDisk):
            file_of, suffix = UncutFile, ".log"

        world.disk = UncutDisk(world.random)

    return mutate


def allocating(mutation: Mutation) -> Mutation:
    """In a world that writes zeros ahead, into segments that are complete before they are full."""

    def mutate(world: World) -> None:
        mutation(world)
        world.settings = replace(world.settings, preallocate_bytes=2000, segment_bytes=2000, segment_us=3000)

    return mutate


def on(disk: type[SimulatedDisk]) -> Mutation:
    """Another kind of disk."""

    def mutate(world: World) -> None:
        world.disk = disk(world.random)

    return mutate


def failing(mutation: Mutation) -> Mutation:
    """In a world whose disk fails more than others."""

    def mutate(world: World) -> None:
        mutation(world)
        world.faulty = 0.2

    return mutate


def merging(mutation: Mutation) -> Mutation:
    """In a world that seals and merges more than others."""

    def mutate(world: World) -> None:
        mutation(world)
        world.settings = replace(world.settings, merge_below=100, segment_bytes=400)
        world.seal_from = 12

    return mutate


def thinning(mutation: Mutation) -> Mutation:
    """In a world that empties old topics more than others, and merges nothing."""

    def mutate(world: World) -> None:
        mutation(world)
        world.settings = replace(world.settings, merge_below=0, segment_bytes=400, thin_percent=0)
        world.classes.ages_us = (0,)
        world.seal_from = 12

    return mutate


def in_trouble(world: World) -> bool:
    """Whether the log tries to write again what it could not."""
    return not world.opening and world.log is not None and world.log.trouble is not None


def no_rewriting(world: World) -> None:
    """Take what a failed sync left for granted: what is held is not written again, only synced."""

    class UnwrittenFile(SimulatedFile):
        def write_at(
            self, position: int, blocks: Sequence[Block], note: Note | None = None, *, padded: bool = False
        ) -> None:
            if in_trouble(world):
                self._disk.tick()
                self._inode.seen[position : position + sum(map(len, blocks))] = b"".join(blocks)
            else:
                super().write_at(position, blocks, note, padded=padded)

    class UnwrittenDisk(MutantDisk):
        file_of, suffix = UnwrittenFile, ".log"

    world.disk = UnwrittenDisk(world.random)


def no_forgetting(world: World) -> None:
    """Leave what was emptied in memory."""
    forget = ShardLog.thin
    ShardLog.thin = lambda log, now_us, below=None: log._maintenance.thin(now_us, below)  # type: ignore[assignment,method-assign,misc,union-attr]
    world.undo = lambda: setattr(ShardLog, "thin", forget)


def no_rewrite(world: World) -> None:
    """Trust that a sync repairs what an earlier sync failed to write."""
    rewrite = recovery.write_again
    recovery.write_again = lambda file, start, end: None
    world.undo = lambda: setattr(recovery, "write_again", rewrite)


MUTANTS: dict[str, tuple[Mutation, str]] = {
    "a commit is not synced": (skip("sync", ".log", opening=False), "fsync"),
    "a commit is synced before it is written": (on(EarlySyncDisk), "fsync"),
    "a commit is marked before it is synced": (on(EarlyMarkDisk), "fsync"),
    "recovery does not sync what it found": (skip("sync", ".log", opening=True), "fsync"),
    "recovery trusts what a failed sync left": (failing(no_rewrite), "fsync"),
    "a failed sync is tried again": (failing(on(SyncAgainDisk)), "fsync"),
    "what a failed sync forgot is not written again": (failing(no_rewriting), "fsync"),
    "what a failed write left is not cut off": (failing(no_cut(lambda world: not in_trouble(world))), "fsync"),
    "a new segment's name is not synced": (skip("sync_directory", "", opening=False), "fsync"),
    "the mark's name is not synced": (skip("sync_directory", "", opening=True), "flush"),
    "a complete segment keeps the zeros ahead of its end": (allocating(no_cut()), "fsync"),
    "the cut of a complete segment is not synced": (allocating(on(UnsyncedCutDisk)), "fsync"),
    "zeros are written after what they make room for": (allocating(on(LateZerosDisk)), "fsync"),
    "a merged segment is not synced": (merging(skip("sync", ".log.tmp")), "fsync"),
    "a merged segment is synced after its rename": (merging(on(LateSyncDisk)), "fsync"),
    "a thinned segment is not synced": (thinning(skip("sync", ".log.tmp")), "fsync"),
    "a thinned segment is synced after its rename": (thinning(on(LateSyncDisk)), "fsync"),
    "what was emptied is still read from memory": (thinning(no_forgetting), "fsync"),
    "the mark is not synced": (skip("sync", "mark"), "flush"),
    "the mark is not synced at memory level": (skip("sync", "mark"), "memory"),
}
