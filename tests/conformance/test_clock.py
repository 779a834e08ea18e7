"""A wall clock that jumps ahead: no session and no message expires until that is settled."""

import pytest
from tests.conformance.test_sessions import away, back

from everlog.broker import ExpiryClock

DAY_S = 86_400


@pytest.fixture
def clocked(stages):
    """A stage with a clock of its own: `stage.later` moves the wall clock alone."""
    made = []

    def due_us():
        if not made:
            made.append(ExpiryClock(lambda: stage.now_us, lambda: 0))
        return made[0].due_us()

    stage = stages(due_us=due_us)
    stage.call(due_us)
    return stage, made[0]


def test_nothing_expires_after_a_jump_until_it_is_settled(clocked):
    stage, clock = clocked
    away(stage, "c", 5, "a", "$share/g/s")
    publisher = stage.connected("publisher")
    publisher.publish("a", "owed", 1, message_expiry_interval=60)
    publisher.publish("s", "shared", 1, message_expiry_interval=60)
    publisher.publish("r", "retained", 1, retain=True, message_expiry_interval=60)
    stage.later(365 * DAY_S)
    assert not clock.is_believed
    client = back(stage, "c", 5)
    assert sorted(client.payloads(2)) == ["owed", "shared"]
    client.subscribe("r")
    assert client.message().payload == b"retained"
    client.disconnect()
    stage.offline("c")
    stage.later(DAY_S)
    stage.call(clock.settle)
    stage.later(0)
    back(stage, "c", 5, present=False)
    late = stage.connected("late")
    late.subscribe("r")
    late.expect_nothing()


def test_all_is_as_it_was_when_the_clock_is_back(clocked):
    stage, clock = clocked
    away(stage, "c", 5, "a")
    stage.later(DAY_S)
    stage.later(-DAY_S)
    assert clock.is_believed
    back(stage, "c", 5).disconnect()
    stage.offline("c")
    for _ in range(40):
        stage.later(30)
    back(stage, "c", 5, present=False)
