"""Whatever the disk does meanwhile, what is read by filter is what was committed, each once, by old readers and new."""

import errno
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.messages import to_columns
from tests.simulated_disk import SimulatedDisk
from tests.stores import PLENTY, drain, filters, open_store, rows_of

from everlog.base import TopicTable
from everlog.store import LogStore

KINDS = ("write", "sync", "sync_directory", "create", "truncate", "open")
CHOICES = ("#", "t/1", "t/+/new")
STEPS = st.lists(
    st.sampled_from(["append", "append", "commit", "commit", "seal", "read", "fail", "heal"]), min_size=5, max_size=60
)


class World:
    """A store, and what was appended to it."""

    def __init__(self, random: Random, durability: str, tail_bytes: int) -> None:
        self.random = random
        self.disk = SimulatedDisk(random)
        self.store: LogStore = open_store(
            1, self.disk, durability=durability, tail_bytes=tail_bytes, segment_bytes=3000, preallocate_bytes=500
        )
        self.shard = self.store.shards[0]
        self.readers = [(self.store.reader(filters(text)), text) for text in CHOICES for _ in range(3)]
        self.at = [(0,)] * len(self.readers)
        self.found: list[list[tuple[int, bytes]]] = [[] for _ in self.readers]
        self.appended: list[tuple[str, bytes]] = []
        self.table = TopicTable()

    def append(self) -> None:
        messages = []
        for _ in range(self.random.choice((1, 3, 12))):
            number = len(self.appended)
            topic = f"t/{self.random.randrange(4)}" if self.random.random() < 0.7 else f"t/{number}/new"
            self.appended.append((topic, b"%d" % number))
            messages.append((topic.encode(), 2, b"", b"%d" % number))
        columns = to_columns(messages, self.table)
        assert self.shard.append(columns, 0, len(messages), len(self.appended), self.table) == len(messages)

    def commit(self) -> None:
        self.shard.commit_step()

    def seal(self) -> None:
        self.shard.seal_step()

    def read(self) -> None:
        """Let everybody who reads take a few steps."""
        for number, (reader, _) in enumerate(self.readers):
            result = reader.read(self.at[number], self.random.choice((2, 50)), PLENTY)
            self.at[number] = result.positions
            self.found[number] += [(row[1], row[6]) for row in rows_of(result)]
            assert result.lost == ()

    def fail(self) -> None:
        kind, left = self.random.choice(KINDS), self.random.choice((1, 2, 1 << 30))
        number = self.random.choice((errno.EIO, errno.ENOSPC))

        def fault(k: str, path: str) -> int | None:
            nonlocal left
            if k != kind or not path.endswith((".log", "mark", "shard-0")) or not left or self.reading(k):
                return None
            left -= 1
            return number

        self.disk.fault = fault

    def reading(self, kind: str) -> bool:
        """Whether a call is one that readers make too."""
        return kind == "open" and self.shard.trouble is None

    def heal(self) -> None:
        self.disk.fault = lambda kind, path: None
        self.shard.commit_step()
        self.shard.commit_step()
        assert (self.shard.trouble, self.shard.committed) == (None, len(self.appended))


@settings(max_examples=150, deadline=None)
@given(
    STEPS, st.integers(0, 1 << 30), st.sampled_from(["fsync", "fsync", "flush", "memory"]), st.sampled_from([0, 4000])
)
def test_what_is_read_by_filter_is_what_was_appended(steps: list, seed: int, durability: str, tail: int) -> None:
    world = World(Random(seed), durability, tail)
    for step in steps:
        getattr(world, step)()
    world.heal()
    while world.shard.seal_step():
        pass
    for (reader, text), at, found in zip(world.readers, world.at, world.found, strict=True):
        wanted = [
            (offset, payload)
            for offset, (topic, payload) in enumerate(world.appended)
            if text == "#" or topic == text or (text == "t/+/new" and topic.endswith("/new"))
        ]
        assert found + [(row[1], row[6]) for row in drain(reader, at)] == wanted
        assert [(row[1], row[6]) for row in drain(world.store.reader(filters(text)), (0,))] == wanted
    assert world.shard.damage == []
    world.store.close()
