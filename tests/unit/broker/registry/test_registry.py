"""Sessions by client id, as far as the wire does not show it; `tests/conformance/` has the rest."""

import pytest
from tests.stages import Stage

from everlog.broker import Limits
from everlog.broker.token_bucket import TokenBucket
from everlog.mqtt import Reason


@pytest.fixture
def stage():
    made = Stage(limits=Limits(sessions=2))
    yield made
    made.close()


def test_more_stored_sessions_than_allowed_are_refused(stage):
    for name in "ab":
        stage.connected(name, clean_start=False, expiry=100).disconnect()
        stage.offline(name)
    for version, expiry in ((4, None), (5, 100)):
        refused = stage.client(version).connect("c", clean_start=False, expiry=expiry).reason
        assert refused is (Reason.QUOTA_EXCEEDED if version == 5 else Reason.SERVER_UNAVAILABLE)
    assert stage.broker.metrics.sessions_refused == 2
    stage.connected("a", clean_start=False, expiry=100)
    stage.connected("b", clean_start=True).disconnect()
    stage.until(lambda: stage.inside.stored_count == 1)
    stage.connected("c", expiry=100)


def test_sessions_that_end_with_their_connection_are_neither_counted_nor_refused(stage):
    passing = [stage.connected(f"p{k}", version) for k in range(3) for version in (4, 5)]
    assert stage.call(lambda: stage.inside.stored_count) == 0
    for name in "ab":
        stage.connected(name, clean_start=False, expiry=100)
    stage.connected("p9", clean_start=False)
    for one in passing:
        one.close()
    stage.until(lambda: stage.inside.session_count == 3)
    assert stage.call(lambda: stage.inside.stored_count) == 2
    stage.connected("a", clean_start=True)  # its stored session ends
    stage.connected("c", clean_start=False, expiry=100)
    assert stage.call(lambda: stage.inside.stored_count) == 2
    assert stage.broker.metrics.sessions_refused == 0


def test_a_lost_connection_leaves_nothing_behind(stage):
    for _ in range(20):
        client = stage.connected("a", clean_start=False, expiry=100)
        client.subscribe("t", qos=1)
        client.reset()
        stage.offline("a")
    inside = stage.inside
    assert (len(inside.connections), inside.sink_count, inside.live_subscriptions, inside.pending) == (0, 0, 0, 0)
    stage.later(200)
    assert inside.session_count == 0
    assert stage.call(inside.kept_filters) == []


def test_a_token_bucket_allows_so_many_a_second():
    bucket = TokenBucket(10)
    assert sum(bucket.take(100.0) for _ in range(50)) == 10
    assert sum(bucket.take(100.5) for _ in range(50)) == 5
    assert sum(bucket.take(200.0) for _ in range(50)) == 10
