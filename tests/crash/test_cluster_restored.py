"""After a restore from a backup nothing is given out twice: offsets, epochs, incarnations, names of objects."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster_messages import WrittenCluster
from tests.postgres_server import shared_server
from tests.shard_logs import rows
from tests.spark.lake_data import messages

from everlog.base import StorageError, UsageError
from everlog.cli import main
from everlog.cluster import LogReader, lift_restored, make_session_tables
from everlog.cluster import restored as restored_module
from everlog.cluster.restored import EPOCH_LIFT, LIFT
from everlog.ownership import PostgresOwnership, make_ownership_tables
from everlog.tiering import DirectoryBucket

SENT = messages(2400)
Row = tuple[int, bytes, bytes]


class Backup:
    """A cluster's database and bucket as of one moment."""

    def __init__(self, cluster: WrittenCluster, folder: Path) -> None:
        self._cluster, self._copy = cluster, folder / "backup"
        self._dump = self._call("pg_dump", "-n", cluster.schema)
        shutil.copytree(cluster.place, self._copy)

    def restore(self, *, bucket_too: bool) -> None:
        """Set the database back; the bucket has its newer objects still, or not."""
        self._cluster.execute(f"drop schema {self._cluster.schema} cascade")
        self._call("psql", "-q", "-v", "ON_ERROR_STOP=1", given=self._dump)
        if bucket_too:
            shutil.rmtree(self._cluster.place)
            shutil.copytree(self._copy, self._cluster.place)
            self._cluster.bucket = DirectoryBucket(str(self._cluster.place))

    def _call(self, program: str, *arguments: str, given: bytes = b"") -> bytes:
        binary = str((shared_server().bin or Path()) / program)
        done = subprocess.run([binary, *arguments, self._cluster.database.url], input=given, capture_output=True)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[WrittenCluster]:
    with WrittenCluster(tmp_path, shards=2) as made:
        make_ownership_tables(made.database.url, made.schema)
        make_session_tables(made.database.url, made.schema)
        yield made


def of_shards(cluster: WrittenCluster) -> list[list[Row]]:
    return [rows(log, max_bytes=100_000) for log in cluster.log.shards]


def again(cluster: WrittenCluster, epoch: int) -> None:
    """Have the broker start again and own all."""
    cluster.log = cluster.join(cluster.folder)
    cluster.log.own(dict.fromkeys(range(2), epoch), epoch)


def lift(cluster: WrittenCluster) -> list[restored_module.Lifted]:
    return lift_restored(cluster.database, pause=lambda seconds: None)


@pytest.mark.parametrize("bucket_too", [True, False])
def test_no_offset_and_no_name_is_given_out_again(cluster: WrittenCluster, tmp_path: Path, bucket_too: bool) -> None:
    cluster.write(SENT[:800])
    cluster.store()
    cluster.empty_tail()
    kept = of_shards(cluster)
    backup = Backup(cluster, tmp_path)
    cluster.write(SENT[800:1600])
    cluster.store()
    lost = [after[len(before) :] for before, after in zip(kept, of_shards(cluster), strict=True)]
    names = {found.name for shard in range(2) for found in cluster.bucket.find(f"shard-{shard}")}
    cluster.log.close()

    backup.restore(bucket_too=bucket_too)
    lifted = lift(cluster)
    assert [one.end for one in lifted] == [len(one) for one in kept]
    assert all(one.goes_on == one.end + LIFT and one.epoch >= EPOCH_LIFT for one in lifted)
    again(cluster, EPOCH_LIFT + 2)
    assert of_shards(cluster) == kept  # the copy of what was lost is not served

    cluster.write(SENT[1600:])
    cluster.store()
    cluster.empty_tail()
    cluster.write(SENT[:100])
    now = of_shards(cluster)
    for shard in range(2):
        assert now[shard][: len(kept[shard])] == kept[shard]
        new = now[shard][len(kept[shard]) :]
        assert [row[0] for row in new] == list(range(lifted[shard].goes_on, lifted[shard].goes_on + len(new)))
        assert not {row[0] for row in new} & {row[0] for row in lost[shard]}
    assert sum(map(len, now)) == 800 + 800 + 100
    assert [shard.upload_trouble for shard in cluster.log.cluster_shards] == [None, None]
    added = [name for (name,) in cluster.execute("select name from message_segments where epoch > %s", EPOCH_LIFT)]
    assert len(added) > 2
    assert not names & set(added)

    other = cluster.join(tmp_path / "other")  # one that has nothing follows over the gap, from bucket and tail
    other.catch_up()
    found = [rows(log, max_bytes=100_000) for log in other.shards]
    other.close()
    assert found == now
    cluster.log.close()  # and a copy that has the gap in it is kept as it is
    files = {path: path.stat().st_ino for path in sorted(cluster.folder.rglob("*.log"))}
    again(cluster, EPOCH_LIFT + 3)
    assert {path: path.stat().st_ino for path in files if path.exists()} == files
    assert of_shards(cluster) == now
    reader = LogReader(cluster.database)
    extents = reader.look()
    reader.close()
    assert [extent.end for extent in extents] == [one[-1][0] + 1 for one in now]


def test_without_it_a_copy_says_that_commits_were_lost(cluster: WrittenCluster, tmp_path: Path) -> None:
    cluster.write(SENT[:800])
    cluster.store()
    backup = Backup(cluster, tmp_path)
    cluster.write(SENT[800:1000])
    cluster.log.close()
    backup.restore(bucket_too=True)
    with pytest.raises(StorageError, match="cluster restored"):
        cluster.join(cluster.folder)
    lift(cluster)
    again(cluster, EPOCH_LIFT + 2)


def test_restored_twice_leaves_two_gaps(cluster: WrittenCluster) -> None:
    cluster.write(SENT[:200])
    cluster.log.close()
    first, second = lift(cluster), lift(cluster)
    assert [one.goes_on for one in first] == [one.end for one in second]
    again(cluster, 2 * EPOCH_LIFT + 2)
    cluster.write(SENT[200:400])
    cluster.store()
    assert sum(map(len, of_shards(cluster))) == 400


def test_incarnations_and_claims_go_on_far_ahead(cluster: WrittenCluster) -> None:
    ownership = PostgresOwnership(cluster.database.url, cluster.schema)
    before = ownership.join("a", "a:1")
    epochs = ownership.claim(["messages-0"], before)
    lift(cluster)
    assert ownership.read().members == {}
    after = ownership.join("a", "a:1")
    assert after > before + LIFT
    assert ownership.claim(["messages-0"], after)["messages-0"] > epochs["messages-0"] + EPOCH_LIFT
    ownership.close()


def test_it_is_refused_while_a_broker_runs(cluster: WrittenCluster) -> None:
    ownership = PostgresOwnership(cluster.database.url, cluster.schema)
    number = ownership.join("a", "a:1")
    with pytest.raises(UsageError, match="these brokers run: a"):
        lift_restored(cluster.database, pause=lambda seconds: ownership.beat(number))
    assert cluster.execute("select max(epoch) from message_shards") == [(1,)]
    ownership.close()


def test_the_command_says_where_shards_go_on(cluster: WrittenCluster, capsys: pytest.CaptureFixture[str]) -> None:
    cluster.log.close()
    words = ["cluster", "restored", cluster.database.url, "--schema", cluster.schema]
    assert main(words) == 2
    assert "--yes" in capsys.readouterr().err
    assert main([*words, "--yes"]) == 0
    assert str(LIFT) in capsys.readouterr().out
    assert cluster.execute("select distinct stop from message_gaps") == [(LIFT,)]
    assert main(["cluster", "restored", "somewhere", "--yes"]) == 2
