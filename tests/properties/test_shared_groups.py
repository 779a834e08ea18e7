"""A shared group against a plain model: each message is with one member at a time, and all are done in the end."""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from tests.properties.group_world import CLEAN, DURABLE, GroupWorld

NAME = st.sampled_from((*DURABLE, *CLEAN))


class Groups(RuleBasedStateMachine):
    """What members and brokers do, in any order."""

    qos = 1
    ordered = False

    @initialize(shards=st.sampled_from((1, 3)))
    def begin(self, shards: int) -> None:
        self.world = GroupWorld(shards, self.qos, self.ordered)

    @rule(name=NAME)
    def come(self, name: str) -> None:
        self.world.come(name)

    @rule(name=NAME)
    def drop(self, name: str) -> None:
        self.world.drop(name)

    @rule(name=NAME)
    def unsubscribe(self, name: str) -> None:
        self.world.unsubscribe(name)

    @rule(topics=st.lists(st.sampled_from(("t/a", "t/b", "t/cc", "t/ddd")), min_size=1, max_size=8))
    def publish(self, topics: list[str]) -> None:
        self.world.publish(topics)

    @rule(name=NAME, places=st.lists(st.integers(0, 5), max_size=5))
    def acknowledge(self, name: str, places: list[int]) -> None:
        if name in self.world.clients:
            self.world.receive(name)
            self.world.acknowledge(name, places)

    @rule(what=st.sampled_from(("time_out", "save", "restart", "crash", "crash")))
    def calamity(self, what: str) -> None:
        getattr(self.world, what)()

    def teardown(self) -> None:
        world = getattr(self, "world", None)
        if world is not None:
            try:
                world.settle()
            finally:
                world.close()


class ExactlyOnce(Groups):
    """So, where each message goes to one member for ever."""

    qos = 2


class InOrder(Groups):
    """So, where a topic is with one member at a time."""

    ordered = True


@pytest.mark.parametrize("machine", [Groups, ExactlyOnce, InOrder])
def test_groups_do_what_the_model_says(machine: type[Groups]) -> None:
    few = settings(max_examples=40, stateful_step_count=25, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(machine, settings=few)
