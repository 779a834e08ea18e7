"""Durable sessions against a plain model: all that is owed arrives, nothing else does, repeats only with DUP."""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from tests.properties.session_world import WORKERS, World

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
