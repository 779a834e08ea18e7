"""`everlog cluster` on a real database: made once, seen, drained, and errors that say what to do."""

import json
from pathlib import Path

import psycopg
import pytest
from tests.postgres_server import new_schema, shared_server

from everlog.cli import main
from everlog.cluster import ClusterDatabase, ClusterOwnership, message_shard


class Operator:
    """Who types commands for one cluster."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.url, self.schema, self.bucket = shared_server().url, new_schema(), folder / "bucket"
        self._capsys = capsys

    def run(self, *words: str) -> tuple[int, str, str]:
        """Return the exit code, and what was printed."""
        code = main(["cluster", *words, "--schema", self.schema])
        return code, *self._capsys.readouterr()

    def init(self, shards: int = 3) -> tuple[int, str, str]:
        return self.run("init", self.url, "--bucket", str(self.bucket), "--shards", str(shards))


@pytest.fixture
def operator(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Operator:
    return Operator(tmp_path, capsys)


def test_a_cluster_is_made_once_and_its_shards_are_for_ever(operator: Operator) -> None:
    code, first, _ = operator.init()
    assert (code, "3 shards" in first) == (0, True)
    assert operator.init()[:2] == (0, first)
    code, _, said = operator.init(4)
    assert code == 2
    assert "with 3 shards" in said


def test_a_role_for_readers_has_a_limit_of_connections_and_reads_messages_alone(operator: Operator) -> None:
    role = f"reader_{operator.schema}"
    operator.init()
    words = ("init", operator.url, "--bucket", str(operator.bucket), "--shards", "3", "--reader", role)
    for _ in range(2):
        code, said, _ = operator.run(*words)
        assert (code, f"{role} may read its messages, with 4 connections at most" in said) == (0, True)
    with psycopg.connect(operator.url, autocommit=True) as connection:
        limit = connection.execute(
            "select rolconnlimit, rolsuper, rolcanlogin from pg_roles where rolname = %s", (role,)
        )
        assert limit.fetchone() == (4, False, True)
        connection.execute(f"alter role {role} connection limit 9".encode())
    assert "with 9 connections" in operator.run(*words)[1], "what an operator has set stays"
    url = operator.url.replace("//postgres@", f"//{role}@")
    with psycopg.connect(url, autocommit=True, options=f"-c search_path={operator.schema}") as connection:
        assert connection.execute("select shards from message_store").fetchone() == (3,)
        connection.execute("insert into message_pins (reader, until) values ('me', now())")
        for forbidden in (
            "select * from sessions",
            "update message_shards set epoch = 0",
            "delete from message_segments",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(forbidden.encode())
    code, _, said = operator.run(*words[:-1], "postgres")
    assert (code, "may do everything" in said) == (2, True)


def test_a_bucket_belongs_to_one_cluster(operator: Operator) -> None:
    operator.init()
    operator.schema = new_schema()
    code, _, said = operator.init()
    assert code == 1
    assert "another cluster" in said


def test_status_shows_who_owns_what_and_fails_while_a_shard_has_no_owner(operator: Operator) -> None:
    operator.init()
    ownership = ClusterOwnership(ClusterDatabase(operator.url, operator.schema))
    one = ownership.join("one", "127.0.0.1:1")
    ownership.claim([message_shard(0), message_shard(2)], one)
    code, text, _ = operator.run("status", operator.url)
    assert code == 1
    assert "2 of 3 shards have an owner; without: 1" in text
    code, text, _ = operator.run("status", operator.url, "--json")
    found = json.loads(text)
    assert [(broker["name"], broker["shards"]) for broker in found["brokers"]] == [("one", 2)]
    assert (found["owned"], found["unowned"], found["standbys_demanded"]) == (2, [1], 0)
    ownership.claim([message_shard(1)], one)
    assert operator.run("status", operator.url)[0] == 0
    ownership.close()


def test_who_is_drained_is_marked_and_who_is_not_there_is_named(operator: Operator) -> None:
    operator.init()
    ownership = ClusterOwnership(ClusterDatabase(operator.url, operator.schema))
    one = ownership.join("one", "127.0.0.1:1")
    code, _, said = operator.run("drain", "two", operator.url)
    assert code == 2
    assert "one" in said
    assert operator.run("drain", "one", operator.url)[0] == 0
    assert ownership.read().members[one].draining
    assert "is drained" in operator.run("status", operator.url)[1]
    ownership.close()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("status", "mysql://localhost/x"), "postgresql://HOST/NAME"),
        (("status", "postgresql://127.0.0.1:1/x"), "whether PostgreSQL runs"),
        (("init", "postgresql://127.0.0.1:1/x"), "needs a bucket"),
        (("status",), "cluster.url"),
    ],
)
def test_errors_say_what_to_do(operator: Operator, words: tuple[str, ...], says: str) -> None:
    code, _, said = operator.run(*words)
    assert code in (1, 2)
    assert says in said


def test_where_no_cluster_is_one_is_told_how_to_make_it(operator: Operator) -> None:
    code, _, said = operator.run("status", operator.url)
    assert code == 1
    assert "everlog cluster init" in said
