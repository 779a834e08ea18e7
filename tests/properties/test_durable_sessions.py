"""Durable sessions against a plain model: all that is owed arrives, nothing else does, repeats only with DUP."""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from tests.properties import session_world
from tests.properties.session_world import WORKERS, World

from everlog.broker.registry import marks
from everlog.sessions import pack_subscription, stored_session

NAMES = ("one", "two", "three")
NAME = st.sampled_from(NAMES)
WORKER = st.sampled_from(WORKERS)
TOPICS = st.sampled_from(("a/x", "a/y", "b/x", "b/y"))
FILTERS = st.sampled_from(("a/+", "a/x", "b/#", "+/x"))
QOS = st.sampled_from((1, 2))


class DurableSessions(RuleBasedStateMachine):
    """What clients and brokers do, in any order; who is to do something and is not there comes back first."""

    shards = 1

    @initialize(seed=st.integers(0, 2**32), filters=st.lists(FILTERS, min_size=3, max_size=3), qos=QOS)
    def begin(self, seed: int, filters: list[str], qos: int) -> None:
        self.world = World(seed, self.shards)
        for name, text in zip(NAMES, filters, strict=True):
            self.world.connect(name, False, 3)
            self.world.subscribe(name, text, qos)

    def _come(self, name: str, maximum: int = 3) -> None:
        if name not in self.world.clients:
            self.world.connect(name, False, maximum)

    @rule(name=NAME, clean=st.integers(0, 9).map(lambda n: n == 0), maximum=st.sampled_from((1, 3, 20)))
    def connect(self, name: str, clean: bool, maximum: int) -> None:
        self.world.connect(name, clean, maximum)

    @rule(name=NAME)
    def disconnect(self, name: str) -> None:
        if name in self.world.clients:
            self.world.disconnect(name)

    @rule(name=NAME, text=FILTERS, qos=QOS)
    def subscribe(self, name: str, text: str, qos: int) -> None:
        self._come(name)
        self.world.subscribe(name, text, qos)

    @rule(name=NAME, text=FILTERS)
    def unsubscribe(self, name: str, text: str) -> None:
        self._come(name)
        if text in self.world.models[name].filters:
            self.world.unsubscribe(name, text)

    @rule(topics=st.lists(TOPICS, min_size=1, max_size=8), qos=QOS)
    def publish(self, topics: list[str], qos: int) -> None:
        for topic in topics:
            self.world.publish(topic, qos)

    @rule(name=NAME, places=st.lists(st.integers(0, 20), max_size=5))
    def acknowledge(self, name: str, places: list[int]) -> None:
        self._come(name)
        self.world.receive(name)
        self.world.acknowledge(name, places)

    @rule(name=NAME, places=st.lists(st.integers(0, 20), min_size=1, max_size=5), reads=st.booleans())
    def acknowledge_and_go(self, name: str, places: list[int], reads: bool) -> None:
        self._come(name)
        self.world.receive(name)
        self.world.acknowledge_and_go(name, places, reads)

    @rule(name=WORKER, places=st.lists(st.integers(0, 5), max_size=5))
    def work(self, name: str, places: list[int]) -> None:
        self.world.work(name, places)

    @rule(name=WORKER)
    def leave_work(self, name: str) -> None:
        if name in self.world.clients:
            self.world.leave_work(name)

    @rule(what=st.sampled_from(("roll", "retain", "retain", "pass_time", "restart", "crash", "crash")))
    def calamity(self, what: str) -> None:
        getattr(self.world, what)()

    @rule(topic=TOPICS, qos=QOS, turns=st.integers(0, 12))
    def publish_and_crash(self, topic: str, qos: int, turns: int) -> None:
        self.world.publish_and_crash(topic, qos, turns)

    @rule(name=NAME, text=FILTERS, qos=QOS, topics=st.lists(TOPICS, min_size=1, max_size=8))
    def subscribe_meanwhile_and_crash(self, name: str, text: str, qos: int, topics: list[str]) -> None:
        self._come(name)
        self.world.receive(name)
        self.world.subscribe_meanwhile(name, text, qos, topics)
        self.world.check_stored()
        self.world.crash()

    def teardown(self) -> None:
        world = getattr(self, "world", None)
        if world is not None:
            try:
                world.settle()
            finally:
                world.close()


class DurableSessionsInFourShards(DurableSessions):
    """So, where only a topic's messages have an order."""

    shards = 4


@pytest.mark.slow
@pytest.mark.parametrize("machine", [DurableSessions, DurableSessionsInFourShards])
def test_sessions_do_what_the_model_says(machine: type[RuleBasedStateMachine]) -> None:
    few = settings(max_examples=60, stateful_step_count=25, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(machine, settings=few)


@pytest.fixture
def world() -> Iterator[World]:
    """Two clients are there, one of them with a subscription that makes topics kept."""
    world = World(1, 1)
    world.tables._committed = None  # what is stored is looked at by the test alone
    for name in NAMES[:2]:
        world.connect(name, False, 20)
    world.subscribe("one", "a/+", 1)
    yield world
    world.close()


def publish_again(world: World) -> None:
    """As many messages as the crash has cut."""
    world.crash()
    for _ in range(5):
        world.publish("a/x", 1)
    world.settle()


def test_a_subscription_that_begins_while_messages_are_on_their_way_loses_nothing_in_a_crash(world: World) -> None:
    world.subscribe_meanwhile("two", "a/x", 1, ["a/x"] * 5)
    world.check_stored()
    publish_again(world)


def test_a_begin_that_is_stored_above_the_committed_end_is_found(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marks, "pack_subscription", lambda one, committed: pack_subscription(one, one.since))
    world.subscribe_meanwhile("two", "a/x", 1, ["a/x"] * 5)
    with pytest.raises(AssertionError, match="above the committed end"):
        world.check_stored()


def test_such_a_begin_would_lose_messages(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_world, "STUCK_S", 1)
    monkeypatch.setattr(marks, "pack_subscription", lambda one, committed: pack_subscription(one, one.since))
    monkeypatch.setattr(stored_session, "_cut", lambda rows, ends: rows)  # the repair of what earlier versions stored
    world.subscribe_meanwhile("two", "a/x", 1, ["a/x"] * 5)
    with pytest.raises(AssertionError, match="two never got"):
        publish_again(world)
