"""Sessions by client id, as far as the wire does not show it; `tests/conformance/` has the rest."""

import pytest
from tests.conformance.conftest import Stage

from everlog.broker.limits import Limits
from everlog.broker.rates import TokenBucket
from everlog.mqtt import Reason


@pytest.fixture
def stage():
    made = Stage(limits=Limits(sessions=2))
    yield made
    made.close()


def test_more_sessions_than_allowed_are_refused(stage):
    for name in "ab":
        stage.connected(name, clean_start=False, expiry=100).disconnect()
        stage.offline(name)
    assert stage.client().connect("c").reason is Reason.QUOTA_EXCEEDED
    stage.connected("a", clean_start=False, expiry=100)
    stage.connected("b", clean_start=True).disconnect()
    stage.until(lambda: len(stage.broker.clients) == 1)
    stage.connected("c")


def test_a_lost_connection_leaves_nothing_behind(stage):
    for _ in range(20):
        client = stage.connected("a", clean_start=False, expiry=100)
        client.subscribe("t", qos=1)
        client.reset()
        stage.offline("a")
    broker = stage.broker
    assert (
        len(broker.clients.connections),
        len(broker.router.delivering.sinks),
        len(broker.audiences),
        broker.pending,
    ) == (
        0,
        0,
        0,
        0,
    )
    stage.later(200)
    assert len(broker.clients) == 0
    assert stage.call(broker.keep.filters) == []


def test_a_token_bucket_allows_so_many_a_second():
    bucket = TokenBucket(10)
    assert sum(bucket.take(100.0) for _ in range(50)) == 10
    assert sum(bucket.take(100.5) for _ in range(50)) == 5
    assert sum(bucket.take(200.0) for _ in range(50)) == 10


def test_connects_over_the_rate_are_closed_and_counted():
    stage = Stage(limits=Limits(connects_per_second=2))
    stage.connected("a")
    stage.connected("b")
    stage.client().expect_closed()
    assert stage.broker.metrics.connects_limited == 1
    stage.close()
