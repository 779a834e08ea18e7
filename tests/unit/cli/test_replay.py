"""`everlog replay` and `everlog sub --from` against a broker in this process and its files."""

import asyncio
import json
from datetime import datetime

import pytest
from tests.brokers import ServedBroker
from tests.raw_client import RawClient

from everlog.base import UsageError
from everlog.cli import main
from everlog.cli.client.log_entry import Entry
from everlog.cli.client.pace import Pace, parse_speed
from everlog.cli.client.replay import run as run_replay
from everlog.cli.client.replay_extent import Extent, exact_time, own_properties
from everlog.commitlog import LogSettings
from everlog.mqtt import Message, Properties
from everlog.store import LogStore, parse_begin

MINUTE_US = 60_000_000


class Served:
    """A broker on files in this process, with a clock that the test moves."""

    def __init__(self, directory, shards):
        self.now_us = 1_700_000_000_000_000
        self.directory = str(directory)
        self.store = LogStore.open(self.directory, LogSettings(durability="flush"), shards=shards)
        self.running = ServedBroker(self.store, now_us=lambda: self.now_us, keep=[("#", 0)]).__enter__()
        self.port = self.running.port

    def publish(self, *messages):
        """(topic, payload, more) each a minute after the other."""
        with RawClient(self.port) as client:
            client.connect()
            for topic, payload, *more in messages:
                client.publish(topic, payload, 1, **(more[0] if more else {}))
                self.now_us += MINUTE_US

    def close(self):
        self.running.__exit__()
        self.store.close()


@pytest.fixture(params=[1, 4], ids=["one shard", "four shards"])
def served(request, tmp_path):
    made = Served(tmp_path / "data", request.param)
    yield made
    made.close()


@pytest.fixture
def run(served, capfdbinary):
    """Run a command on the broker or on its files; the lines that it printed."""

    def run(command, *words, files=False, code=0):
        where = ("--data", served.directory) if files else ("-p", str(served.port))
        assert main([command, *where, *words]) == code
        return capfdbinary.readouterr().out.decode().splitlines()

    return run


@pytest.mark.parametrize("files", [False, True], ids=["broker", "files"])
def test_history_is_printed_oldest_first_and_then_it_ends(served, run, files):
    served.publish(*((f"s/{number % 3}", str(number)) for number in range(30)))
    served.publish(("other", "x"))
    lines = run("replay", "s/#", "-v", files=files)
    assert len(lines) == 30
    for topic in range(3):
        assert [line.split()[1] for line in lines if line.startswith(f"s/{topic} ")] == [
            str(number) for number in range(topic, 30, 3)
        ]
    if files:
        assert [line.split()[1] for line in lines] == [str(number) for number in range(30)]  # merged by time
    assert run("replay", "s/1", "--limit", "2", files=files) == ["1", "4"]
    assert run("replay", "none/+", files=files) == []
    assert sorted(run("replay", "s/0", "other", "--from", "2023-11-14T22:40:20Z", files=files)) == ["27", "x"]


@pytest.mark.parametrize("files", [False, True], ids=["broker", "files"])
def test_times_and_positions_of_messages_are_shown(served, run, files):
    served.publish(("t", "a"), ("t", "b"))
    place = served.store.shard_of(b"t")
    (first, second) = (json.loads(line) for line in run("replay", "t", "-F", "%j", files=files))
    assert second["properties"]["user-properties"] == [
        {"everlog-position": f"{place}:1"},
        {"everlog-time": "2023-11-14T22:14:20.000000Z"},
    ]
    assert (first["payload"], second["payload"]) == ("a", "b")
    assert run("replay", "t", "-F", "%U", files=files) == ["1700000000.000000000", "1700000060.000000000"]


@pytest.mark.parametrize("files", [False, True], ids=["broker", "files"])
def test_it_stops_before_a_time_or_a_position(served, run, files):
    served.publish(*(("t", str(number)) for number in range(10)))
    place = served.store.shard_of(b"t")
    assert run("replay", "t", "--to", "2023-11-14T22:16:20Z", files=files) == ["0", "1", "2"]
    assert run("replay", "t", "--to", f"{place}:4", files=files) == ["0", "1", "2", "3"]
    assert run("replay", "t", "--from", f"{place}:4", "--to", f"{place}:6", files=files) == ["4", "5"]
    assert run("replay", "t", "--from", f"{place}:8", "--to", "now", files=files) == ["8", "9"]


def test_history_is_published_again_as_it_was(served, run):
    properties = {"content_type": "text/plain", "user_properties": (("own", "1"),), "retain": True}
    served.publish(("a/b", "x", properties), ("a/c", "y"))
    address = f"127.0.0.1:{served.port}"
    assert run("replay", "#", "--to-broker", address, "--prefix", "copy/") == []
    lines = run("replay", "copy/#", "-q", "1", "-F", "%t %p %q %r %C %P")
    assert sorted(line.split("everlog-position")[0].strip() for line in lines) == [
        "copy/a/b x 1 1 text/plain own:1",
        "copy/a/c y 1 0",
    ]
    assert sorted(run("replay", "copy/#")) == ["x", "y"]  # its own messages are not part of the history it replays


def test_a_broker_that_refuses_is_an_error(served, capfd):
    assert main(["replay", "-p", str(served.port), "t", "--from", "9:0"]) == 1
    assert "there is no shard 9" in capfd.readouterr().err


def test_sub_shows_the_time_of_a_message_of_the_past_and_nothing_that_was_added(served, run):
    served.publish(("t", "old", {"user_properties": (("mine", "1"),)}))
    (line,) = run("sub", "-t", "t", "--from", "earliest", "-C", "1", "-F", "%U %j")
    unix, _, text = line.partition(" ")
    found = json.loads(text)
    assert float(unix) == 1_700_000_000
    assert datetime.fromisoformat(found["tst"]).timestamp() == 1_700_000_000
    assert found["properties"] == {"user-properties": [{"mine": "1"}]}


@pytest.mark.parametrize("files", [False, True], ids=["broker", "files"])
def test_a_replay_shows_the_qos_of_publishing(served, run, files):
    with RawClient(served.port) as client:
        client.connect()
        for qos in (0, 1, 2):
            client.publish("t", str(qos), qos)
    assert run("replay", "t", "-F", "%p %q", files=files) == ["0 0", "1 1", "2 2"]
    assert [json.loads(line)["qos"] for line in run("replay", "t", "-F", "%j", files=files)] == [0, 1, 2]
    assert run("replay", "t", files=files) == ["0", "1", "2"]


def test_sub_begins_in_the_past(served, run):
    served.publish(*(("t", str(number)) for number in range(5)))
    for version in ("5", "311"):
        found = run("sub", "-V", version, "-t", "t", "--from", "2023-11-14T22:15:20Z", "-C", "3")
        assert found == ["2", "3", "4"]


@pytest.mark.parametrize(
    "words",
    [
        ["replay", "a/#/b"],
        ["replay", "$share/g/a"],
        ["replay", "a", "--from", "then"],
        ["replay", "a", "--to", "then"],
        ["replay", "a", "--to", "earliest"],
        ["replay", "a", "--speed", "fast"],
        ["replay", "a", "--speed", "0x"],
        ["replay", "a", "--prefix", "x/"],
        ["replay", "a", "--to-broker", "host:port"],
        ["replay", "a", "--data", "/nowhere/at/all"],
        ["replay"],
        ["sub", "-t", "a", "--from", "then"],
    ],
)
def test_what_can_not_be_is_refused_before_anything_is_done(words, capfd):
    assert main(words) == 2
    assert capfd.readouterr().err.startswith("everlog: ")


# Without a broker


class Minutes:
    """A source with a message a minute."""

    def __init__(self, *minutes):
        self.extent = Extent.of([0], [len(minutes)], None)
        self.notes = []
        self.minutes = minutes

    async def open(self):
        """Nothing to open."""

    async def portions(self):
        yield [entry(offset, minute * MINUTE_US) for offset, minute in enumerate(self.minutes)]

    async def close(self):
        """Nothing to close."""


class Diary:
    """A sink that notes when each message came, and a clock that naps move."""

    def __init__(self):
        self.now = 1000.0
        self.came = []
        self.flushed = 0

    async def nap(self, seconds):
        self.now += seconds

    async def open(self):
        """Nothing to open."""

    async def put(self, one):
        self.came.append((one.offset, self.now - 1000))

    def flush(self):
        self.flushed = len(self.came)

    async def settle(self):
        return 0

    async def close(self):
        """Nothing to close."""


@pytest.mark.parametrize(("speed", "minute_s"), [(1.0, 60), (10.0, 6), (None, 0)])
def test_messages_come_as_fast_as_they_did_or_so_many_times(speed, minute_s):
    diary = Diary()
    pace = Pace(speed, lambda: diary.now, diary.nap)
    assert asyncio.run(run_replay(Minutes(0, 1, 5, 3, 6), diary, pace, None, show_bar=False)) == 0
    wanted = [(0, 0), (1, minute_s), (2, 5 * minute_s), (3, 5 * minute_s), (4, 6 * minute_s)]
    assert [offset for offset, _ in diary.came] == [offset for offset, _ in wanted]
    assert [at for _, at in diary.came] == pytest.approx([at for _, at in wanted])
    if speed is not None:
        assert diary.flushed == 5  # nothing is held back while it waits


def test_the_bar_is_for_people(capfd):
    diary = Diary()
    asyncio.run(run_replay(Minutes(*range(9)), diary, Pace(None), None, show_bar=True))
    captured = capfd.readouterr()
    assert captured.out == ""
    assert len(diary.came) == 9


# The pure parts


def entry(offset, time_us=0, shard=0, section=b""):
    return Entry(shard, offset, time_us, Message(b"t", b"", 0, False, 0, section))


def test_an_extent_ends_each_shard_by_itself():
    extent = Extent.of([0, 10], [5, 30], parse_begin("1:20", 0))
    assert extent.left == 15
    assert extent.takes(entry(4))
    extent.passed(entry(4))
    assert extent.left == 10
    assert not extent.takes(entry(5))
    assert extent.takes(entry(19, shard=1))
    assert not extent.takes(entry(25, shard=1))
    assert extent.left == 0
    with pytest.raises(UsageError, match="shard 2"):
        Extent.of([0, 0], [1, 1], parse_begin("2:0", 0))


def test_a_time_ends_a_shard_too():
    extent = Extent.of([0, 0], [10, 10], parse_begin("1970-01-01T00:00:01Z", 0))
    assert extent.takes(entry(3, 999_999))
    extent.passed(entry(3, 999_999))
    assert not extent.takes(entry(4, 1_000_000))
    assert extent.left == 10  # the other shard


def test_pace():
    pace = Pace(10.0)
    assert pace.wait_s(5_000_000, 100.0) == 0
    assert pace.wait_s(25_000_000, 100.5) == pytest.approx(1.5)
    assert pace.wait_s(25_000_000, 103.0) == 0
    assert pace.wait_s(1_000_000, 100.0) == 0  # of another shard
    assert Pace(None).wait_s(10**12, 0.0) == 0
    assert [parse_speed(text) for text in ("max", "original", "10x", "0.5x")] == [None, 1.0, 10.0, 0.5]


def test_times_are_shown_exactly():
    assert exact_time(1_700_000_000_000_001) == "2023-11-14T22:13:20.000001Z"
    assert parse_begin(exact_time(123_456_789), 0).time_us == 123_456_789


def test_what_the_broker_added_is_not_published_again():
    section = b"\x26\x00\x01k\x00\x01v\x0b\x07\x26\x00\x10everlog-position\x00\x030:1"
    assert own_properties(Message(b"t", b"", 0, False, 0, section)) == Properties(user_properties=(("k", "v"),))
    assert own_properties(Message(b"t", b"", 0, False, 0, b"")) == Properties()
