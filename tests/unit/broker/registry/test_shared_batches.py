"""Which changes of a client share a batch of the session tables, and so a sync."""

import pytest
from tests.memory_tables import MemoryTables
from tests.stages import Stage

from everlog.mqtt import Connack, Connect, Properties, Suback, Subscribe, Subscription
from everlog.sessions import Changes, Refused


class CountedTables(MemoryTables):
    """Tables that count the batches somebody waits for."""

    def __init__(self) -> None:
        super().__init__()
        self.durable = 0

    def apply(self, changes: Changes, durable: bool = False) -> Refused:
        self.durable += durable
        return super().apply(changes, durable)


@pytest.fixture
def tables():
    return CountedTables()


@pytest.fixture
def stage(tables):
    made = Stage(tables=tables)
    yield made
    made.close()


CONNECT = Connect(5, "c", False, 0, None, None, None, Properties(session_expiry_interval=100))
SUBSCRIBE = Subscribe(1, (Subscription("a", 1),))


def test_a_subscribe_right_behind_its_connect_shares_the_batch_of_both_answers(stage, tables):
    client = stage.client()
    before = tables.durable
    client.send(CONNECT, SUBSCRIBE)
    client.expect(Connack)
    client.expect(Suback)
    assert tables.durable == before + 1
    stored = {one.row.client_id: [row.filter for row in one.subscriptions] for one in tables.load().sessions}
    assert stored == {"c": ["a"]}


def test_each_answer_that_a_client_waits_for_has_a_batch_before_it(stage, tables):
    client = stage.client()
    before = tables.durable
    client.send(CONNECT)
    client.expect(Connack)
    assert tables.durable == before + 1
    client.send(SUBSCRIBE)
    client.expect(Suback)
    assert tables.durable == before + 2
