"""`everlog log` and `everlog sessions` tell what is there."""

import json
from pathlib import Path

import pytest
from tests.brokers import RunningBroker
from tests.listening import eventually
from tests.raw_client import RawClient
from tests.shard_logs import columns_of

from everlog.base import TopicTable
from everlog.cli import main
from everlog.cli.waiting import WaitingCounter
from everlog.commitlog import LogSettings
from everlog.sessions import SqliteTables
from everlog.store import LogStore, TopicClasses

SECOND = 1_000_000


def make_store(data: Path, count: int, shards: int = 1) -> None:
    """Messages 0, 1, 2, ... a second apart, on topics a/0, a/1, a/2 by turns, in several segments."""
    store = LogStore.open(str(data), LogSettings(durability="flush", segment_bytes=2000), shards=shards)
    table = TopicTable()
    for number in range(count):
        columns = columns_of([(b"a/%d" % (number % 3), b"%d" % number)], table)
        store.append(columns, 0, 1, number * SECOND, table)
        store.commit()
        for shard in store.shards:
            shard.wait_committed(shard.end, 10)
    store.close()


def output(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    capsys.readouterr()
    assert main([str(word) for word in words]) == 0
    return capsys.readouterr().out


@pytest.fixture
def data(tmp_path: Path) -> Path:
    make_store(tmp_path / "data", 100)
    return tmp_path / "data"


def test_segments_are_listed_with_their_offsets(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    listed = output(capsys, "log", "segments", data)
    assert "open" in listed
    assert " 100 " in listed


def test_a_segment_in_which_short_lived_topics_were_emptied_is_marked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    make_store(data, 100)
    classes = TopicClasses([("a/0", None), ("#", 10 * SECOND)])
    store = LogStore.open(str(data), LogSettings(segment_bytes=2000, thin_percent=0), classes=classes)
    eventually(lambda: store.shards[0].statistics().waiting_to_seal == 0, "segments are sealed")
    thinned = store.thin(1000 * SECOND)
    store.close()
    rows = [line.split("│")[1:-1] for line in output(capsys, "log", "segments", data).splitlines() if "│" in line]
    cells = [[cell.strip() for cell in row] for row in rows]
    marked = {int(row[1]): row for row in cells if row[8] == "thinned"}
    assert sorted(marked) == [one.base_offset for _, one in thinned] != []
    assert {row[7] for row in marked.values()} == {"1"}, "topics that are left"
    first = thinned[0][1]
    assert marked[first.base_offset][2:4] == [str(first.end_offset), str(first.end_offset - first.base_offset)]
    left = output(capsys, "log", "dump", data, "--to", f"0:{first.end_offset}").splitlines()
    assert len(left) == first.end_offset - first.base_offset - first.records
    assert all(" a/0 " in line for line in left)
    topics = output(capsys, "log", "topics", data)
    assert "gone" not in topics


def test_segments_that_retention_removed_are_not_listed(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = LogStore.open(str(data), LogSettings(segment_bytes=2000, retention_us=50 * SECOND))
    store.run_retention(100 * SECOND)
    start = store.shards[0].start
    store.close()
    assert start > 0
    first = next(line for line in output(capsys, "log", "segments", data).splitlines() if line.startswith("│ 0"))
    assert first.split("│")[2].strip() == str(start)
    assert len(output(capsys, "log", "dump", data).splitlines()) == 100 - start


def test_topics_are_counted(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = output(capsys, "log", "topics", data, "a/0", "a/2").splitlines()
    found = {line.split("│")[2].strip(): line.split("│")[1].strip() for line in lines if "a/" in line}
    assert found == {"a/0": "34", "a/2": "33"}


def test_only_so_many_topics_are_shown_and_the_rest_is_said(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "2 more topics" in output(capsys, "log", "topics", data, "-n", 1)


@pytest.mark.parametrize("shards", [1, 4])
def test_the_tail_is_the_last_messages_in_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], shards: int
) -> None:
    make_store(tmp_path, 30, shards)
    assert output(capsys, "log", "tail", tmp_path, "-n", 4, "-F", "%p").split() == ["26", "27", "28", "29"]
    assert output(capsys, "log", "tail", tmp_path, "a/0", "-n", 2, "-F", "%p").split() == ["24", "27"]


def test_a_tail_longer_than_the_log_is_all_of_it(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(output(capsys, "log", "tail", data, "-n", 500).splitlines()) == 100


def test_a_range_is_dumped_by_position_and_time(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dumped = output(capsys, "log", "dump", data, "--from", "0:90", "--to", "1970-01-01T00:01:35Z", "-F", "%p")
    assert dumped.split() == ["90", "91", "92", "93", "94"]
    assert output(capsys, "log", "dump", data, "a/1", "-n", 2, "-F", "%p").split() == ["1", "4"]


def test_json_has_position_topic_and_time(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (one,) = map(json.loads, output(capsys, "log", "dump", data, "--from", "0:7", "-n", 1, "--json").splitlines())
    assert (one["position"], one["topic"], one["payload"]) == ("0:7", "a/1", "7")


def test_a_folder_without_a_store_is_refused_with_advice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["log", "tail", str(tmp_path)]) == 2
    assert "everlog serve --data" in capsys.readouterr().err


@pytest.fixture
def left_behind(tmp_path: Path) -> Path:
    """A broker ran here: `pump` went away with 1 of 3 messages acknowledged, then 4 more came."""
    data = tmp_path / "data"
    store = LogStore.open(str(data))
    tables = SqliteTables(data / "sessions.db")
    with RunningBroker(store, tables=tables) as broker:  # type: ignore[arg-type]
        with RawClient(broker.port) as pump, RawClient(broker.port) as other:
            pump.connect("pump", False, expiry=3600)
            pump.subscribe("a/#", "b", qos=1)
            other.connect("other")
            publish(other, 3)
            for _ in range(3):
                packet = pump.receive()
            pump.send_bytes(b"\x40\x02" + (packet.packet_id - 2).to_bytes(2, "big"))
            pump.expect_nothing()
        with RawClient(broker.port) as other:
            other.connect("other")
            eventually(lambda: broker.call(lambda: len(broker.inside.connections)) == 1, "pump is away")
            publish(other, 4)
    tables.close()
    store.close()
    return data


def publish(client: RawClient, count: int) -> None:
    from everlog.mqtt import Puback, Publish

    for _ in range(count):
        client.send(Publish("a/x", b"m", qos=1, packet_id=1))
        client.expect(Puback)


def test_sessions_are_listed_with_how_far_behind_they_are(
    left_behind: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (line,) = [line for line in output(capsys, "sessions", "list", left_behind).splitlines() if "pump" in line]
    cells = [cell.strip() for cell in line.split("│")[1:-1]]
    assert (cells[0], cells[4], cells[5], cells[6], cells[7]) == ("pump", "2", "2", "4", "")


def test_only_messages_that_match_wait_for_a_session(
    left_behind: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, table = LogStore.open(str(left_behind)), TopicTable()
    for _ in range(100):
        store.append(columns_of([(b"other", b"x")], table), 0, 1, 1, table)
    store.commit()
    store.shards[0].wait_committed(store.shards[0].end, 10)
    store.close()

    def waiting() -> tuple[str, dict[str, object]]:
        (line,) = [line for line in output(capsys, "sessions", "list", left_behind).splitlines() if "pump" in line]
        (found,) = map(json.loads, output(capsys, "sessions", "list", left_behind, "--json").splitlines())
        return line.split("│")[7].strip(), found

    text, found = waiting()
    assert (text, found["waiting"], found["exact"]) == ("4", 4, True)
    assert (found["client_id"], found["filters"], found["under_way"]) == ("pump", 2, 2)
    monkeypatch.setattr(WaitingCounter.__init__, "__defaults__", (50,))
    text, found = waiting()
    assert (text, found["waiting"], found["exact"]) == ("≤ 104", 104, False)


def test_listings_are_json_where_that_is_asked_for(left_behind: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def rows(*words: object) -> list[dict[str, object]]:
        return [json.loads(line) for line in output(capsys, *words, "--json").splitlines()]

    assert rows("log", "topics", left_behind) == [{"topic": "a/x", "messages": 7}]
    (segment,) = rows("log", "segments", left_behind)
    assert [segment[name] for name in ("from", "to", "records", "state")] == [0, 7, 7, "open"]
    (shown,) = rows("sessions", "show", left_behind, "pump")
    waits = {"filter": "a/#", "qos": 1, "waiting": 4}, {"filter": "b", "qos": 1, "waiting": 0}
    assert shown["subscriptions"] == list(waits)
    assert {"setting": "log.shards", "value": "1", "source": "default"} in rows("config", "show")


def test_a_session_is_shown_with_what_waits_for_each_filter(
    left_behind: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = output(capsys, "sessions", "show", left_behind, "pump")
    waiting = {line.split("│")[1].strip(): line.split("│")[3].strip() for line in shown.splitlines() if "│" in line}
    assert (waiting["a/#"], waiting["b"]) == ("4", "0")


def test_a_session_that_lost_messages_to_retention_is_listed_with_how_many(
    left_behind: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = LogStore.open(str(left_behind), LogSettings(retention_us=1))
    store.run_retention(1 << 60)  # of 7 messages, `pump` was sent 3
    store.close()
    (line,) = [line for line in output(capsys, "sessions", "list", left_behind).splitlines() if "pump" in line]
    assert [cell.strip() for cell in line.split("│")[1:-1]][6:8] == ["0", "4"]
    assert "4 messages before its position were removed by retention" in output(
        capsys, "sessions", "show", left_behind, "pump"
    )


def test_an_unknown_session_is_refused_with_advice(left_behind: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sessions", "show", str(left_behind), "nobody"]) == 2
    assert main(["sessions", "drop", "nobody", "--data", str(left_behind)]) == 2
    assert "everlog sessions list" in capsys.readouterr().err


def test_a_stored_session_is_dropped(left_behind: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output(capsys, "sessions", "drop", "pump", "--data", left_behind)
    assert "pump" not in output(capsys, "sessions", "list", left_behind)


def test_a_running_broker_keeps_its_directory_to_itself(left_behind: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = LogStore.open(str(left_behind))
    try:
        assert main(["sessions", "drop", "pump", "--data", str(left_behind)]) == 2
        assert "leave --data out" in capsys.readouterr().err
    finally:
        store.close()


def test_a_running_broker_drops_a_session_when_asked(capsys: pytest.CaptureFixture[str]) -> None:
    with RunningBroker() as broker:
        with RawClient(broker.port) as pump:
            pump.connect("pump", False, expiry=3600)
        output(capsys, "sessions", "drop", "pump", "-h", "127.0.0.1", "-p", broker.port)
        eventually(lambda: broker.call(lambda: broker.inside.session_count) == 0, "the session is gone")
        assert main(["sessions", "drop", "typo", "-h", "127.0.0.1", "-p", str(broker.port)]) == 2
        assert "no session 'typo'" in capsys.readouterr().err
        eventually(lambda: broker.call(lambda: broker.inside.session_count) == 0, "asking has left none")
