"""A single broker's directory becomes a cluster, and a cluster a directory: nothing is lost, positions stay."""

import shutil
from pathlib import Path

import psycopg
import pytest
from tests.broker_process import BrokerProcess
from tests.cluster_processes import ProcessCluster
from tests.postgres_server import new_schema, shared_server
from tests.raw_client import RawClient

from everlog.base import UsageError
from everlog.cli import main
from everlog.cluster import (
    Claimant,
    ClusterDatabase,
    ClusterLog,
    ClusterOwnership,
    ClusterSettings,
    PostgresTables,
    SessionClaims,
    describe,
)
from everlog.commitlog import LogSettings
from everlog.mqtt import Pubcomp, Publish, Pubrel
from everlog.sessions import Changes, SqliteTables, StoredSession, saved_tables, settle
from everlog.store import LogStore
from everlog.tiering import DirectoryBucket

SHARDS = 3
Message = tuple[str, bytes]


def content(store: LogStore) -> dict[tuple[int, int], Message]:
    """Return every message by its position."""
    found = {}
    for shard, log in enumerate(store.shards):
        for view in log.segments():
            for records in view.read(0, len(view.batches())):
                for row in range(records.count):
                    _, _, topic, _, _, payload = records.row(row)
                    found[shard, records.offset(row)] = (records.table.name(topic).decode(), bytes(payload))
    return found


def content_of(directory: Path) -> dict[tuple[int, int], Message]:
    store = LogStore.open(str(directory), background=False)
    try:
        return content(store)
    finally:
        store.close()


def write(broker: BrokerProcess) -> None:
    """Have a client miss some messages, of which the first ones are under way to it."""
    publisher, away = broker.client(), broker.client()
    publisher.connect("publisher")
    away.connect("away", False, expiry=10_000)
    away.subscribe("t/#", qos=2)
    publisher.publish("kept/a", "retained", 1, retain=True)
    publisher.publish("kept/b", "gone", 1, retain=True)
    publisher.publish("kept/b", "", 1, retain=True)
    for number in range(40):
        assert not publisher.publish(f"t/{number % 7}", f"first {number}", 1 + number % 2).is_error
    assert len(away.payloads(40)) == 40
    away.close()
    for number in range(200):
        publisher.publish(f"t/{number % 7}", f"missed {number} {'x' * 200}", 1 + number % 2)
    publisher.close()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a single broker that was killed."""
    folder = tmp_path_factory.mktemp("single")
    broker = BrokerProcess(folder, "--shards", str(SHARDS), "--set", "log.segment_bytes=8KiB")
    with broker:
        write(broker)
        broker.kill()  # the import recovers what a crash leaves, as a start does
    return broker.data


class Operator:
    """Who types commands for one cluster."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.url, self.schema, self.bucket = shared_server().url, new_schema(), folder / "bucket"
        self._capsys = capsys

    def bring_in(self, directory: Path) -> tuple[int, str, str]:
        words = ["import", str(directory), self.url, "--bucket", str(self.bucket), "--schema", self.schema]
        return main(["cluster", *words]), *self._capsys.readouterr()

    def bring_out(self, directory: Path) -> tuple[int, str, str]:
        words = ["export", self.url, str(directory), "--bucket", str(self.bucket), "--schema", self.schema]
        return main(["cluster", *words]), *self._capsys.readouterr()

    def execute(self, statement: str) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(f"set search_path = {self.schema}")
            connection.execute(statement.encode())


@pytest.fixture
def operator(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Operator:
    return Operator(tmp_path, capsys)


def test_history_stays_byte_for_byte_there_and_back(operator: Operator, made: Path, tmp_path: Path) -> None:
    before = content_of(made)
    code, said, _ = operator.bring_in(made)
    assert code == 0
    assert f"{len(before)} messages in {SHARDS} shards, 1 sessions, 1 retained messages" in said
    database, bucket = ClusterDatabase(operator.url, operator.schema), DirectoryBucket(str(operator.bucket))
    settings = ClusterSettings(log=LogSettings(), poll_s=3600.0)
    for _ in range(2):  # the second time from the copy, which fits the list
        log = ClusterLog.join(str(tmp_path / "copy"), database, bucket, settings)
        there = [shard.log.committed for shard in log.cluster_shards]
        log.catch_up()
        assert content(log) == before
        log.close()
    assert sum(there) - sum(min(o for s, o in before if s == shard) for shard in range(SHARDS)) == len(before)
    code, said, _ = operator.bring_out(tmp_path / "back")
    assert code == 0
    assert f"--shards {SHARDS}" in said
    assert content_of(tmp_path / "back") == before


def stored_session(found: StoredSession) -> object:
    return found.row.client_id, found.subscriptions, found.cursor.positions, found.cursor.inflight


def test_a_session_is_what_it_was_there_and_back(operator: Operator, made: Path, tmp_path: Path) -> None:
    """Its filters, positions and messages under way stay, and whoever takes it on gets them."""
    store, source = LogStore.open(str(made), background=False), saved_tables(made / "sessions.db")
    snapshot, ends = source.load(), [shard.committed for shard in store.shards]
    (before,) = [settle(one, snapshot.routed, snapshot.alive_us, ends) for one in snapshot.sessions]
    source.close()
    store.close()
    assert operator.bring_in(made)[0] == 0
    database = ClusterDatabase(operator.url, operator.schema)
    ownership = ClusterOwnership(database, describe())
    claims = SessionClaims(database.connect(), ownership.join("one", "127.0.0.1:1"), SHARDS)
    taken = claims.claim([Claimant("away")], ends).taken["away"]
    assert taken is not None
    assert stored_session(taken) == stored_session(before)
    tables = PostgresTables(database.connect(), claims.incarnation, SHARDS)
    assert [row.topic for row in tables.load().retained] == ["kept/a"]
    claims.release(["away"], Changes(routed=tuple(ends), alive_us=1))
    for one in (tables, claims):
        one.close()
    ownership.leave(claims.incarnation)
    ownership.close()
    assert operator.bring_out(tmp_path / "back")[0] == 0
    back = SqliteTables(str(tmp_path / "back" / "sessions.db"))
    (after,) = back.load().sessions
    assert stored_session(after) == stored_session(before)
    assert [row.topic for row in back.load().retained] == ["kept/a"]
    back.close()


def payloads(client: RawClient, count: int) -> list[str]:
    """The payloads of the next messages; a PUBREL of one that came before the broker was killed may be sent again."""
    found: list[str] = []
    while len(found) < count:
        packet = client.receive()
        if isinstance(packet, Pubrel):
            client.send(Pubcomp(packet.packet_id))
        else:
            assert isinstance(packet, Publish)
            client.acknowledge(packet)
            found.append(packet.payload.decode())
    return found


@pytest.mark.soak
def test_a_session_goes_on_in_the_cluster_and_back_on_a_single_broker(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    operator = Operator(tmp_path, capsys)
    assert operator.bring_in(made)[0] == 0
    with ProcessCluster(tmp_path, SHARDS, schema=operator.schema) as cluster:
        broker = cluster.add("one")
        away = broker.client("away", clean_start=False, expiry=10_000)
        assert broker.connack.session_present
        got = payloads(away, 150)
        away.subscribe("kept/#", qos=1)
        away.close()
        assert all(payload.startswith("missed") for payload in got)
        publisher = broker.client("publisher")
        for number in range(10):
            assert not publisher.publish("t/0", f"later {number}", 2).is_error
        publisher.close()
        assert broker.drain() == 0
    assert operator.bring_out(tmp_path / "single" / "data")[0] == 0
    with BrokerProcess(tmp_path / "single", "--shards", str(SHARDS)) as single:
        client = single.client()
        assert client.connect("away", False, expiry=10_000).session_present
        rest: list[str] = []
        while f"later {9}" not in rest:
            message = client.message()
            rest.append(message.payload.decode())
        client.close()
    everything = {text for text in [*got, *rest] if text != "retained"}
    assert {text.split(" x")[0] for text in everything} == {
        *(f"missed {number}" for number in range(200)),
        *(f"later {number}" for number in range(10)),
    }


def test_a_running_broker_is_refused_and_so_is_a_directory_without_messages(operator: Operator, tmp_path: Path) -> None:
    code, _, said = operator.bring_in(tmp_path)
    assert code == 2
    assert "holds no messages of a broker" in said
    with BrokerProcess(tmp_path) as broker:
        broker.client().close()
        code, _, said = operator.bring_in(broker.data)
        assert code != 0
        assert "which writes to this log (stop that process" in said


def test_a_cluster_that_holds_something_is_refused_as_is_another_number_of_shards(
    operator: Operator, made: Path, tmp_path: Path
) -> None:
    assert operator.bring_in(made)[0] == 0
    code, _, said = operator.bring_in(made)
    assert code == 2
    assert "into a new one only" in said
    other = Operator(tmp_path / "other", operator._capsys)
    main(["cluster", "init", other.url, "--bucket", str(other.bucket), "--shards", "5", "--schema", other.schema])
    code, _, said = other.bring_in(made)
    assert code == 2
    assert "with 5 shards" in said


def test_what_was_broken_off_is_begun_anew_and_no_broker_joins_meanwhile(operator: Operator, made: Path) -> None:
    assert operator.bring_in(made)[0] == 0
    operator.execute("update message_store set importing = true")
    operator.execute("delete from message_segments where base = (select max(base) from message_segments)")
    joining = ClusterOwnership(ClusterDatabase(operator.url, operator.schema), describe())
    with pytest.raises(UsageError, match="an import into this cluster is under way"):
        joining.join("one", "127.0.0.1:1")
    assert operator.bring_in(made)[0] == 0
    joining.join("one", "127.0.0.1:1")
    joining.close()


def test_what_is_damaged_is_refused(operator: Operator, made: Path, tmp_path: Path) -> None:
    copy = tmp_path / "damaged"
    shutil.copytree(made, copy)
    first = sorted((copy / "shard-0").glob("*.log"))[0]
    data = bytearray(first.read_bytes())
    data[len(data) // 2] ^= 0xFF
    first.write_bytes(data)
    code, _, said = operator.bring_in(copy)
    assert code == 1
    assert "damage" in said


def test_an_export_refuses_what_is_not_decided_and_a_directory_with_something_in_it(
    operator: Operator, made: Path, tmp_path: Path
) -> None:
    assert operator.bring_in(made)[0] == 0
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("x")
    code, _, said = operator.bring_out(tmp_path / "full")
    assert code == 2
    assert "is not empty" in said
    operator.execute("update session_cursors set unsure = '\\x00'")
    code, _, said = operator.bring_out(tmp_path / "new")
    assert code == 2
    assert "may have arrived or not" in said
    assert "drain it" in said
