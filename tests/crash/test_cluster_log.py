"""Brokers that own and follow the shards of a cluster: sealing, following, takeovers, copies that can't be trusted."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.messages import to_columns
from tests.postgres_server import new_schema, shared_server
from tests.shard_logs import rows

from everlog.base import Fenced, StorageError, TopicTable, Unavailable
from everlog.cluster import (
    ClusterDatabase,
    ClusterLog,
    ClusterSettings,
    ClusterShard,
    Gap,
    ShardHistory,
    Stretch,
    Trimmed,
    make_message_tables,
)
from everlog.cluster import cluster_shard as cluster_shard_module
from everlog.cluster.ports import TABLES
from everlog.cluster.rows import ListedSegment, RowFacts
from everlog.cluster.schema import tail_name
from everlog.commitlog import LogSettings, RealDisk
from everlog.tiering import MemoryBucket

SETTINGS = ClusterSettings(
    tail_bytes=8_000, kept_s=0.0, pinned_s=0.0, poll_s=60.0, log=LogSettings(batch_bytes=300, tail_bytes=0)
)
SHARD = 0


class Cluster:
    """A database, a bucket, and shard 0 as several brokers have it."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.database = ClusterDatabase(shared_server().url, new_schema())
        self.bucket = FailingBucket()
        self.table = TopicTable()
        self._stack = stack
        make_message_tables(self.database.url, 1, self.database.schema)

    def broker(self, name: str) -> ClusterShard:
        """The shard, as a broker of this name has it."""
        place, disk = f"{self.folder}/{name}/shard-0", RealDisk()
        shard = ClusterShard.open(SHARD, place, 5, self.database, self.bucket, disk, SETTINGS)  # type: ignore[arg-type]
        self._stack.callback(shard.close)
        return shard

    def history(self) -> ShardHistory:
        """What anybody may read."""
        history = ShardHistory(self.database, self.bucket, SHARD)  # type: ignore[arg-type]
        self._stack.callback(history.close)
        return history

    def publish(self, shard: ClusterShard, count: int, text: bytes = b"m") -> None:
        """Append messages and wait until they are committed."""
        first = shard.log.end
        messages = [(b"t/%d" % (n % 3), 2, b"", b"%s %d" % (text, first + n)) for n in range(count)]
        shard.log.append(to_columns(messages, self.table), 0, count, 1, self.table)
        shard.log.wait_committed(shard.log.end, 20)

    def tail_rows(self) -> int:
        """How many rows are in the tail."""
        counts = " + ".join(f"(select count(*) from {tail_name(SHARD, table)})" for table in range(TABLES))
        with psycopg.connect(self.database.url, options=f"-c search_path={self.database.schema}") as connection:
            return (connection.execute(f"select {counts}").fetchone() or (0,))[0]


class FailingBucket(MemoryBucket):
    """A bucket that can't be reached when the test says so."""

    is_down = False

    def put(self, name: str, data: bytes) -> None:
        if self.is_down:
            raise Unavailable("the bucket can't be reached")
        super().put(name, data)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield Cluster(tmp_path, stack)


def fill(cluster: Cluster, owner: ClusterShard, rounds: int = 40) -> None:
    """Publish more than the tail holds, with what is complete going to the bucket."""
    for _ in range(rounds):
        cluster.publish(owner, 7)
        owner.tend()


def test_what_is_sealed_leaves_the_tail_and_everybody_reads_the_same(cluster: Cluster) -> None:
    owner, follower = cluster.broker("a"), cluster.broker("b")
    owner.own(1, 11)
    for _ in range(8):
        fill(cluster, owner, 5)
        follower.catch_up()
    late = cluster.broker("c")
    assert late.catch_up() == owner.log.committed == 280
    assert rows(late.log) == rows(follower.log) == rows(owner.log)
    assert len(rows(owner.log)) == 280
    assert cluster.tail_rows() < 40  # of them
    names = [found.name for found in cluster.bucket.find("shard-0")]
    assert len(names) == len(set(names)) > 4
    for one in (follower, late):
        one.log.write_behind()
    layouts = [[view.base_offset for view in one.log.segments()] for one in (owner, follower, late)]
    assert layouts[0] == layouts[1] == layouts[2]


def test_a_row_of_the_tail_can_be_read_alone(cluster: Cluster) -> None:
    owner = cluster.broker("a")
    owner.own(1, 11)
    for _ in range(3):
        cluster.publish(owner, 4)
    history = cluster.history()
    facts, _ = history.look(0)
    found = []
    for row in reversed(facts):
        records = history.read_row(row)
        assert records is not None
        found += [(one[0], records.table.name(one[2]), one[5]) for one in reversed(records.rows())]
    assert found[::-1] == rows(owner.log)


def test_offers_are_taken_in_and_gaps_are_read_from_the_tail(cluster: Cluster) -> None:
    owner, follower = cluster.broker("a"), cluster.broker("b")
    owner.own(1, 11)
    for _ in range(4):
        cluster.publish(owner, 3)
    history = cluster.history()
    facts, _ = history.look(0)
    bodies = {row.base: read_body(history, row) for row in facts}
    asked: list[int] = []
    follower._history.read = lambda offset: asked.append(offset) or history.read(offset)  # type: ignore[func-returns-value]
    follower.offer(1, 0, 0, bodies[0])
    follower.offer(1, 0, 3, bodies[3])
    assert not follower.take_offered()
    assert follower.log.committed == 6  # at once
    follower.offer(1, 0, 3, bodies[3])  # again
    assert not follower.take_offered()
    follower.offer(1, 0, 9, bodies[9])
    assert follower.take_offered(), "something is missing before it"
    assert follower.log.committed == 6
    assert not asked  # nothing but offers was needed
    assert follower.catch_up() == 12
    assert asked == [6]
    assert rows(follower.log) == rows(owner.log)


def test_offers_that_came_together_are_taken_in_together_and_what_is_known_is_left_out(cluster: Cluster) -> None:
    owner, follower = cluster.broker("a"), cluster.broker("b")
    owner.own(1, 11)
    for _ in range(4):
        cluster.publish(owner, 3)
    history = cluster.history()
    bodies = {row.base: read_body(history, row) for row in history.look(0)[0]}
    seen: list[int] = []
    follower.log.on_commit = lambda log, end: seen.append(end)
    follower.offer(1, 0, 0, bodies[0])
    assert not follower.take_offered()
    for base in (0, 3, 6, 9):  # the first one again
        follower.offer(1, 0, base, b"head" + bodies[base], 4)
    assert not follower.take_offered()
    assert seen == [3, 12], "the others were shown at once"
    assert rows(follower.log) == rows(owner.log)


def test_what_is_offered_and_no_batch_is_left_to_the_tail(cluster: Cluster) -> None:
    owner, follower = cluster.broker("a"), cluster.broker("b")
    owner.own(1, 11)
    cluster.publish(owner, 3)
    cluster.publish(owner, 3)
    history = cluster.history()
    bodies = {row.base: read_body(history, row) for row in history.look(0)[0]}
    follower.offer(1, 0, 0, bodies[0])
    follower.offer(1, 0, 3, bodies[3][:20])
    assert not follower.take_offered()
    assert follower.catch_up() == 6
    assert rows(follower.log) == rows(owner.log)


def read_body(history: ShardHistory, row: RowFacts) -> bytes:
    """The batch of a row, as a link would bring it."""
    return history._bodies(row.table, [row])[0]


def test_a_takeover_goes_on_behind_all_that_was_committed_in_a_new_segment(cluster: Cluster) -> None:
    first, second = cluster.broker("a"), cluster.broker("b")
    first.own(1, 11)
    cluster.publish(first, 5)
    second.own(2, 22)
    assert second.log.committed == 5
    with pytest.raises(Fenced):
        cluster.publish(first, 2, b"nobody commits this")
    cluster.publish(second, 3)
    assert first.catch_up() == 8
    assert rows(first.log) == rows(second.log)
    assert [view.base_offset for view in second.log.segments()] == [0, 5]
    second.tend()  # seals what the owner before has left
    assert [one.epoch for one in cluster.history().look(0)[1]] == [1]
    first.own(3, 33)
    cluster.publish(first, 1)
    second.release()  # it has not heard yet
    assert second.catch_up() == 9


def test_origins_outlive_seals_and_owners(cluster: Cluster) -> None:
    first, second = cluster.broker("a"), cluster.broker("b")
    first.own(1, 11)
    columns = to_columns([(b"t", 2, b"", b"%d" % number) for number in range(1, 31)], cluster.table)

    def send(owner: ClusterShard, start: int, stop: int) -> int:
        last = owner.append_from(77, start, columns, start - 1, stop, 1, cluster.table)
        owner.log.wait_committed(owner.log.end, 20)
        return last

    assert send(first, 1, 10) == 10
    fill(cluster, first)  # all rows of origin 77 leave the tail
    second.own(2, 22)
    assert second.last_number(77) == 10
    with pytest.raises(Gap):
        send(second, 12, 15)
    assert send(second, 6, 20) == 20
    assert second.close_origin(77, 20) == 20
    fill(cluster, second)
    first.own(3, 33)
    assert first.last_number(77) == 20
    with pytest.raises(Unavailable, match="closed"):
        send(first, 21, 25)
    texts = [text for _, _, text in rows(first.log) if not text.startswith(b"m ")]
    assert texts == [b"%d" % number for number in range(1, 21)]


def test_origins_are_known_when_the_whole_tail_is_in_the_bucket(cluster: Cluster) -> None:
    first = cluster.broker("a")
    first.own(1, 11)
    cluster.publish(first, 6)
    first.own(2, 22)  # so the segment of epoch 1 is complete
    first.tend()
    with psycopg.connect(cluster.database.url, options=f"-c search_path={cluster.database.schema}") as connection:
        connection.execute(f"truncate {tail_name(SHARD, 0)}")
    second = cluster.broker("b")
    second.own(3, 33)
    assert second.log.committed == 6
    assert second.last_number(11) == 6


class Watched(RealDisk):
    """Counts what is written."""

    created = 0

    def create(self, path: str) -> Any:
        self.created += path.endswith(".log")
        return super().create(path)


def test_a_copy_that_fits_is_kept(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, follower = cluster.broker("a"), cluster.broker("b")
    owner.own(1, 11)
    fill(cluster, owner)
    follower.catch_up()
    follower.close()
    disk = Watched()
    place = f"{cluster.folder}/b/shard-0"
    again = ClusterShard.open(SHARD, place, 5, cluster.database, cluster.bucket, disk, SETTINGS)  # type: ignore[arg-type]
    assert again.log.committed == owner.log.committed
    assert disk.created == 0
    cluster.publish(owner, 3)
    again.catch_up()
    assert rows(again.log) == rows(owner.log)
    again.close()


def other_bytes(cluster: Cluster) -> None:
    """Give broker b a copy with the right offsets and another content, as of a process that was fenced."""
    liar = Cluster.__new__(Cluster)
    liar.__dict__.update(cluster.__dict__)
    liar.database = ClusterDatabase(shared_server().url, new_schema())
    make_message_tables(liar.database.url, 1, liar.database.schema)
    with psycopg.connect(cluster.database.url) as connection:  # the same shard, by its salt
        source, target = (f"{one.database.schema}.message_shards" for one in (cluster, liar))
        connection.execute(f"update {target} set salt = (select salt from {source} where shard = 0)")
    wrong = liar.broker("b")
    wrong.own(1, 11)
    liar.publish(wrong, 9, b"never committed")
    wrong.close()


@pytest.mark.parametrize("is_checked", [True, False])
def test_a_copy_that_does_not_fit_is_read_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, is_checked: bool
) -> None:
    other_bytes(cluster)
    owner = cluster.broker("a")
    owner.own(1, 11)
    for count in (9, 4):
        cluster.publish(owner, count)
    if not is_checked:  # the disk is believed (M8)
        monkeypatch.setattr(cluster_shard_module, "keep_what_fits", lambda *args: 1)
    follower = cluster.broker("b")
    follower.catch_up()
    assert (rows(follower.log) == rows(owner.log)) == is_checked


def test_a_copy_that_is_ahead_says_that_commits_were_lost(cluster: Cluster) -> None:
    other_bytes(cluster)
    with pytest.raises(StorageError, match="ends at 0 in the database, and at 9 here: commits were lost"):
        cluster.broker("b")


def test_a_follower_that_is_ahead_stops(cluster: Cluster) -> None:
    owner, follower = cluster.broker("a"), cluster.broker("b")
    owner.own(1, 11)
    cluster.publish(owner, 5)
    follower.catch_up()
    with psycopg.connect(cluster.database.url, options=f"-c search_path={cluster.database.schema}") as connection:
        connection.execute(f"truncate {tail_name(SHARD, 0)}")
    with pytest.raises(StorageError, match="commits were lost"):
        follower.catch_up()


class Interrupted(ShardHistory):
    """Something happens between the two looks."""

    between: Callable[[], None] = lambda: None

    def look(self, offset: int) -> tuple[list[RowFacts], list[ListedSegment]]:
        facts = self._connection.call(lambda cursor: self._read_facts(cursor, offset))
        self.between()
        return facts, super().look(offset)[1]


class ListFirst(Interrupted):
    """Looks at the list first, then at the tail, and takes what is there (M9)."""

    def look(self, offset: int) -> tuple[list[RowFacts], list[ListedSegment]]:
        listed = ShardHistory.look(self, offset)[1]
        self.between()
        return ShardHistory.look(self, offset)[0], listed

    def read(self, offset: int) -> Stretch | None:
        facts, listed = self.look(offset)
        for one in listed:
            if one.base <= offset < one.end:
                return self._from_bucket(offset, listed)
        return self._from_tail(facts[0].base, facts) if facts else None


def bases(history: ShardHistory) -> list[int]:
    """The offsets of all messages that a reader finds, from the first to the last."""
    found: list[int] = []
    at = 0
    while (stretch := history.read(at)) is not None:
        for body in stretch.bodies:
            base, count = int.from_bytes(body[16:24], "little"), int.from_bytes(body[24:28], "little")
            found += range(base, base + count)
            at = base + count
    return found


@pytest.mark.parametrize("kind", [Interrupted, ListFirst])
def test_a_reader_misses_nothing_that_is_sealed_while_it_reads(cluster: Cluster, kind: type[Interrupted]) -> None:
    owner = cluster.broker("a")
    owner.own(1, 11)
    cluster.publish(owner, 50)
    history = kind(cluster.database, cluster.bucket, SHARD)  # type: ignore[arg-type]
    history.between = lambda: fill(cluster, owner, 25) if owner.log.committed < 400 else None  # type: ignore[method-assign]
    found = bases(history)
    history.close()
    assert (found == list(range(owner.log.committed))) == (kind is Interrupted)


def test_readers_in_a_loop_over_a_shard_that_is_sealed(cluster: Cluster) -> None:
    read_beside(cluster, 60)


@pytest.mark.soak
def test_readers_in_a_long_loop(cluster: Cluster) -> None:
    read_beside(cluster, 3_000)


def read_beside(cluster: Cluster, rounds: int) -> None:
    """Readers read all, again and again, while a shard is written and sealed."""
    owner = cluster.broker("a")
    owner.own(1, 11)
    is_over = threading.Event()
    wrong: list[object] = []

    def read() -> None:
        history = ShardHistory(cluster.database, cluster.bucket, SHARD)  # type: ignore[arg-type]
        while not is_over.is_set() and not wrong:
            try:
                before = owner.log.committed
                found = bases(history)
                if found != list(range(len(found))) or len(found) < before:
                    wrong.append(found)
            except StorageError as error:
                wrong.append(error)
        history.close()

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    fill(cluster, owner, rounds)
    is_over.set()
    for reader in readers:
        reader.join()
    assert not wrong


def test_no_commit_waits_for_a_reader_that_stays(cluster: Cluster) -> None:
    owner = cluster.broker("a")
    owner.own(1, 11)
    fill(cluster, owner, 12)
    with psycopg.connect(cluster.database.url, options=f"-c search_path={cluster.database.schema}") as reader:
        for table in range(TABLES):
            reader.execute(f"select count(*) from {tail_name(SHARD, table)}")
        before = owner.tail_bytes
        for _ in range(8):
            cluster.publish(owner, 7)
            owner.tend()
        assert owner.tail_bytes > before  # nothing could be emptied
        assert owner.log.trouble is None
    fill(cluster, owner, 4)
    assert owner.tail_bytes < before + 2_000


def test_a_bucket_that_is_down_makes_publishers_wait_at_the_limit(cluster: Cluster) -> None:
    owner = cluster.broker("a")
    owner.own(1, 11)
    told: list[StorageError | None] = []
    is_told = threading.Event()
    owner.log.on_trouble = lambda _, trouble: (told.append(trouble), is_told.set())[1]  # type: ignore[func-returns-value]
    cluster.bucket.is_down = True
    columns = to_columns([(b"t", 2, b"", b"x" * 100) for _ in range(4)], cluster.table)
    for _ in range(40):
        owner.log.append(columns, 0, 4, 1, cluster.table)
        owner.log.commit()
        owner.tend()
    assert is_told.wait(20)
    assert "not in the bucket" in str(told[0])
    assert owner.tail_bytes < 2 * SETTINGS.tail_bytes
    assert owner.log.committed < owner.log.end
    cluster.bucket.is_down = False
    while owner.log.committed < owner.log.end:
        owner.tend()
    assert told[-1] is None


def test_what_is_dropped_is_deleted_when_no_reader_can_be_in_it(cluster: Cluster) -> None:
    owner = cluster.broker("a")
    owner.own(1, 11)
    fill(cluster, owner)
    uploads, history = owner._uploads, cluster.history()
    assert uploads is not None
    before = [one.name for one in cluster.bucket.find("shard-0")]
    middle = history.look(0)[1][2]
    uploads.drop(middle.base)
    with pytest.raises(Trimmed) as raised:
        history.read(0)
    assert raised.value.start == middle.base
    assert [one.name for one in cluster.bucket.find("shard-0")] == before
    assert uploads.delete_dropped() == 2
    assert len(list(cluster.bucket.find("shard-0"))) == len(before) - 2
    late = cluster.broker("c")
    assert late.catch_up() == owner.log.committed
    assert late.log.start == middle.base


def test_a_log_of_several_shards_is_followed_by_itself(cluster: Cluster, tmp_path: Path) -> None:
    database = ClusterDatabase(shared_server().url, new_schema())
    make_message_tables(database.url, 3, database.schema)
    settings = ClusterSettings(poll_s=0.01)
    bucket = MemoryBucket()
    one = ClusterLog.join(f"{tmp_path}/one", database, bucket, settings)
    other = ClusterLog.join(f"{tmp_path}/other", database, bucket, settings)
    one.own({0: 1, 1: 1}, 11)
    other.own({2: 1}, 22)
    assert one.identity == other.identity
    heard = threading.Condition()

    def committed(shard: int) -> None:
        with heard:
            heard.notify_all()

    other.on_commit(committed)
    one.on_commit(committed)
    for log in (one, other):
        for number, shard in enumerate(log.shards):
            if shard.barred is None:
                columns = to_columns([(b"t", 2, b"", b"%d" % number)], cluster.table)
                shard.append(columns, 0, 1, 1, cluster.table)
        log.commit()
    with heard:
        assert heard.wait_for(lambda: one.committed() == other.committed() == (1, 1, 1), 20)
    assert one.follow_trouble is other.follow_trouble is None
    assert [rows(shard) for shard in one.shards] == [rows(shard) for shard in other.shards]
    one.release([0])
    with pytest.raises(Fenced):
        one.shards[0].append(to_columns([(b"t", 2, b"", b"")], cluster.table), 0, 1, 1, cluster.table)
    one.close()
    other.close()
