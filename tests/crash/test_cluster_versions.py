"""Brokers of two versions in one cluster: the lowest of the living is written, and who can't take part is told so."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster_processes import PATIENCE_S, ProcessCluster
from tests.postgres_server import new_schema, shared_server

from everlog.base import UsageError
from everlog.cluster import ClusterDatabase, ClusterOwnership, describe, init_cluster, read_status, read_store
from everlog.ownership import PostgresOwnership
from everlog.tiering import DirectoryBucket


class Versions:
    """A cluster that brokers of faked versions join."""

    def __init__(self, folder: Path) -> None:
        self.database = ClusterDatabase(shared_server().url, new_schema())
        init_cluster(self.database, DirectoryBucket(str(folder / "bucket")), 1)
        self._made: list[ClusterOwnership] = []

    def broker(self, lowest: int, highest: int) -> ClusterOwnership:
        about = describe("10.0.0.9:1883", format_min=lowest, format_max=highest)
        self._made.append(ClusterOwnership(self.database, about))
        return self._made[-1]

    @property
    def written(self) -> int:
        return read_status(self.database, read_store(self.database)).format

    def close(self) -> None:
        for one in self._made:
            one.close()


@pytest.fixture
def versions(tmp_path: Path) -> Iterator[Versions]:
    made = Versions(tmp_path)
    yield made
    made.close()


def test_the_lowest_of_the_living_is_written_until_all_understand_more(versions: Versions) -> None:
    old, new = versions.broker(1, 1), versions.broker(1, 2)
    first = old.join("old", "a:1")
    second = new.join("new", "b:1")
    for one in (old, new):
        one.read()
        assert one.format == 1
    assert versions.written == 1
    old.leave(first)
    assert versions.written == 1  # nobody has looked yet
    new.read()
    assert (new.format, versions.written) == (2, 2)
    found = read_status(versions.database, read_store(versions.database)).brokers
    assert [(one.incarnation, one.formats, one.clients) for one in found] == [(second, (1, 2), "10.0.0.9:1883")]


def test_who_can_not_read_what_is_written_is_refused_also_when_nobody_lives(versions: Versions) -> None:
    new = versions.broker(1, 2)
    number = new.join("new", "a:1")
    new.read()
    new.leave(number)
    with pytest.raises(UsageError, match="written in format 2") as refused:
        versions.broker(1, 1).join("old", "b:1")
    assert refused.value.hint == "use a newer Everlog"


def test_who_shares_no_format_with_the_living_is_refused_and_does_not_become_a_member(versions: Versions) -> None:
    old = versions.broker(1, 1)
    old.join("old", "a:1")
    with pytest.raises(
        UsageError, match="'old' understands formats 1 to 1, and this Everlog understands formats 2 to 3"
    ):
        versions.broker(2, 3).join("newest", "b:1")
    assert [member.name for member in old.read().members.values()] == ["old"]


def test_a_broker_that_takes_the_place_of_its_older_self_is_no_conflict_with_it(versions: Versions) -> None:
    versions.broker(1, 1).join("same", "a:1")
    same = versions.broker(2, 2)
    same.join("same", "a:1")
    same.read()
    assert versions.written == 2


def test_what_is_written_is_decided_by_who_lives_when_it_is_stored(
    versions: Versions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A board from before another has joined raises nothing."""
    new, old = versions.broker(1, 2), versions.broker(1, 1)
    new.join("new", "a:1")
    before = PostgresOwnership.read(new)
    old.join("old", "b:1")
    monkeypatch.setattr(PostgresOwnership, "read", lambda _: before)
    new.read()
    assert (new.format, versions.written) == (1, 1)


def test_a_broker_process_says_why_it_may_not_join(tmp_path: Path) -> None:
    with ProcessCluster(tmp_path, 1) as cluster:
        newer = ClusterOwnership(ClusterDatabase(cluster.url, cluster.schema), describe(format_min=7, format_max=8))
        newer.join("newer", "127.0.0.1:1")
        newer.close()
        command = [sys.executable, "-m", "everlog", "serve", "--cluster", cluster.url, "--bucket", str(cluster.bucket)]
        command += ["--set", f"cluster.schema={cluster.schema}", "--data", str(tmp_path / "old"), "--port", "0"]
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert ended.returncode == 2
    assert "the broker 'newer' understands formats 7 to 8, and this Everlog understands formats 1 to 1" in ended.stderr
    assert "releases one apart" in ended.stderr
