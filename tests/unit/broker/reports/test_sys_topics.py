"""The `$SYS` topics: their texts from numbers, and on a running broker."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from tests.brokers import RunningBroker
from tests.listening import eventually, on_loop
from tests.raw_client import RawClient

from everlog import __version__
from everlog.broker import Numbers, Survey
from everlog.broker.reports.survey import Surveyor
from everlog.broker.reports.sys_topics import ROOT, SysInfo
from everlog.sessions import Session, Subscribed, stored

REFERENCE = Path(__file__).parents[4] / "docs" / "reference" / "sys-topics.md"

ALL_TOPICS = sorted(SysInfo().topics(Numbers()))


def test_texts_are_those_that_dashboards_know() -> None:
    topics = SysInfo().topics(Numbers(uptime_s=61.7, connected=3, sessions=5, retained=2, received=9, stored=4))
    assert topics["$SYS/broker/version"] == f"everlog version {__version__}"
    assert topics["$SYS/broker/uptime"] == "61 seconds"
    assert topics["$SYS/broker/clients/connected"] == "3"
    assert topics["$SYS/broker/clients/disconnected"] == "2"
    assert topics["$SYS/broker/clients/total"] == "5"
    assert topics["$SYS/broker/retained messages/count"] == "2"
    assert topics["$SYS/broker/messages/received"] == "9"
    assert topics["$SYS/broker/messages/stored"] == "4"


# The numbers on the dashboards that come with Mosquitto's exporters.
DASHBOARD = """
bytes/received bytes/sent clients/active clients/connected clients/disconnected clients/expired clients/inactive
clients/maximum clients/total heap/current heap/maximum messages/inflight messages/received messages/sent
messages/stored publish/bytes/received publish/bytes/sent publish/messages/dropped publish/messages/received
publish/messages/sent store/messages/bytes store/messages/count subscriptions/count uptime version
"""


def test_the_names_of_mosquittos_dashboards_are_there() -> None:
    assert {ROOT + name for name in DASHBOARD.split()} <= set(ALL_TOPICS)


def test_the_most_clients_at_once_are_remembered() -> None:
    info = SysInfo()
    info.topics(Numbers(connected=7))
    assert info.topics(Numbers(connected=1))["$SYS/broker/clients/maximum"] == "7"


def test_loads_go_to_the_rate_per_minute_sooner_over_one_minute_than_over_fifteen() -> None:
    info, texts = SysInfo(), {}
    for step in range(1, 7):  # 10 a second for a minute
        texts = info.topics(Numbers(uptime_s=10.0 * step, received=100 * step))
    one, five, fifteen = (float(texts[f"{ROOT}load/messages/received/{m}min"]) for m in (1, 5, 15))
    assert one == pytest.approx(600 * (1 - math.exp(-1)), abs=0.01)
    assert five == pytest.approx(600 * (1 - math.exp(-1 / 5)), abs=0.01)
    assert fifteen == pytest.approx(600 * (1 - math.exp(-1 / 15)), abs=0.01)


def test_only_what_changed_is_said_again() -> None:
    info = SysInfo()
    assert set(info.changes(Numbers())) == set(ALL_TOPICS)
    assert info.changes(Numbers()) == {}
    assert set(info.changes(Numbers(uptime_s=1.0, connected=1))) == {
        f"{ROOT}uptime",
        f"{ROOT}clients/connected",
        f"{ROOT}clients/active",
        f"{ROOT}clients/maximum",
    }


def test_every_topic_is_documented() -> None:
    text = REFERENCE.read_text()
    missing = [topic for topic in ALL_TOPICS if f"`{topic.removeprefix(ROOT)}`" not in text]
    assert not missing


# On a running broker


@pytest.fixture
def running() -> Iterator[RunningBroker]:
    with RunningBroker() as broker:
        yield broker


def subscriber(running: RunningBroker, got: dict[str, bytes], topic: str = "$SYS/#") -> paho.Client:
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, "watcher")
    client.on_connect = lambda c, *_: c.subscribe(topic)
    client.on_message = lambda _c, _u, message: got.__setitem__(message.topic, message.payload)
    client.connect("127.0.0.1", running.port)
    client.loop_start()
    return client


def surveyor(running: RunningBroker, *clock: Callable[[], float]) -> Surveyor:
    broker = running.broker
    return Surveyor(broker.registry, broker.metrics, broker.log, *clock)


def surveyed(running: RunningBroker) -> Survey:
    return on_loop(running, surveyor(running).take())


def counted(running: RunningBroker) -> Numbers:
    return on_loop(running, running.broker.reports.take())


def test_they_are_retained_for_whoever_subscribes_later(running: RunningBroker) -> None:
    on_loop(running, running.broker.sys_topics(10).publish())
    got: dict[str, bytes] = {}
    client = subscriber(running, got)
    eventually(lambda: len(got) == len(ALL_TOPICS), "every topic arrived")
    assert got["$SYS/broker/clients/connected"] == b"0"
    client.disconnect()
    client.loop_stop()


def test_the_timer_tells_live_subscribers_and_zero_never_starts_one(running: RunningBroker) -> None:
    got: dict[str, bytes] = {}
    client = subscriber(running, got)
    never, often = running.broker.sys_topics(0), running.broker.sys_topics(0.01)
    running.call(never.start)
    assert never._task is None
    running.call(often.start)
    eventually(lambda: got.get("$SYS/broker/clients/connected") == b"1", "the count of clients arrived")
    on_loop(running, often.stop())
    on_loop(running, never.stop())
    client.disconnect()
    client.loop_stop()


def test_a_client_can_not_publish_to_them(running: RunningBroker) -> None:
    on_loop(running, running.broker.sys_topics(10).publish())
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, "liar")
    client.connect("127.0.0.1", running.port)
    client.loop_start()
    client.publish("$SYS/broker/version", b"a lie", 1, retain=True).wait_for_publish(20)
    client.disconnect()
    client.loop_stop()
    got: dict[str, bytes] = {}
    watcher = subscriber(running, got, "$SYS/broker/version")
    eventually(lambda: got, "the version arrived")
    assert got["$SYS/broker/version"] == f"everlog version {__version__}".encode()
    watcher.disconnect()
    watcher.loop_stop()


def test_numbers_count_messages_both_ways(running: RunningBroker) -> None:
    got: dict[str, bytes] = {}
    client = subscriber(running, got, "t")
    eventually(lambda: running.broker.metrics.subscribes, "the subscription is there")
    client.publish("t", b"m", 1).wait_for_publish(20)
    eventually(lambda: got, "the message came back")
    found = counted(running)
    assert (found.received, found.survey.sent, found.connected, found.survey.subscriptions) == (1, 1, 1, 1)
    assert min(found.bytes_in, found.bytes_out) > 0
    client.disconnect()
    client.loop_stop()
    eventually(lambda: not running.inside.sessions, "the session has ended")
    assert counted(running).survey.sent == 1  # what went to it still counts


def test_a_survey_names_those_most_behind_and_lets_others_run(running: RunningBroker) -> None:
    def fill() -> None:
        running.broker.log.shards[0].committed = 10_000  # type: ignore[misc]
        running.inside.routed[0] = 10_000
        for number in range(2001):  # more than are counted in one turn of the loop
            shared = {"$share/g/t": Subscribed("$share/g/t", 1)}
            session = Session(f"s{number}", expiry_s=60, subscriptions=shared, lag={0: 10_000 - number})
            running.inside.add_session(session)

    running.call(fill)
    found = surveyed(running)
    assert (found.sessions, found.durable, found.behind) == (2001, 2001, 2000)
    assert (found.subscriptions, found.shared_subscriptions) == (2001, 2001)
    assert found.max_lag == 2000
    assert found.most_behind[:2] == ((2000, "s2000"), (1999, "s1999"))
    assert len(found.most_behind) == 10
    running.call(running.inside.forget_sessions)


def test_sessions_asleep_are_counted_too(running: RunningBroker) -> None:
    def put() -> None:
        running.broker.log.shards[0].committed = 50  # type: ignore[misc]
        running.inside.routed[0] = 50
        session = Session("sleeper", expiry_s=60, subscriptions={"t": Subscribed("t", 1)}, lag={0: 20})
        running.inside.add_asleep(stored(session, [50]))

    running.call(put)
    found = surveyed(running)
    assert (found.sessions, found.durable, found.connected, found.subscriptions) == (1, 1, 0, 1)
    assert found.most_behind == ((30, "sleeper"),)
    running.call(running.inside.forget_sessions)


def test_a_survey_that_took_long_stands_for_longer(running: RunningBroker) -> None:
    now = [0.0]

    def clock() -> float:
        now[0] += 1.0  # so that every step takes a second
        return now[0]

    slow = surveyor(running, clock)
    first = on_loop(running, slow.take())
    assert on_loop(running, slow.take()) is first
    now[0] += 1000
    assert on_loop(running, slow.take()) is not first


def test_the_brokers_own_messages_are_not_received(running: RunningBroker) -> None:
    topics = running.broker.sys_topics(1)
    on_loop(running, topics.publish())
    numbers = on_loop(running, running.broker.reports.take())
    assert (numbers.received, numbers.memory_bytes > 0) == (0, True)
    with RawClient(running.port) as client:
        client.connect("c", clean_start=False, expiry=0)
        client.publish("a", b"x")
    assert on_loop(running, running.broker.reports.take()).received == 1


def test_the_most_memory_is_never_below_what_is_taken_now(
    running: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("everlog.broker.reports.numbers.peak_bytes", lambda: 1)  # the system notes it now and then
    numbers = on_loop(running, running.broker.reports.take())
    assert numbers.memory_peak_bytes == numbers.memory_bytes > 1
