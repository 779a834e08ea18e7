"""The router without a network: what is read from the log, and what happens when that is not as usual."""

import pytest
from tests.parts import RouterStage, numbers

from everlog.base import Unavailable


def test_answers_wait_for_the_commit_and_keep_their_order():
    stage = RouterStage(manual=True)
    stage.kept.add("kept")
    client = stage.client("#")
    stage.publish("1", topic="kept", sink=client)
    stage.publish("2", topic="free", sink=client)
    assert (client.answered, client.payloads) == ([], ["2"])
    assert stage.router.pending.waiting_bytes == 6
    stage.log.commit_now()
    stage.router.committed()
    assert (client.answered, client.payloads) == ([(b"ack", 1)] * 2, ["2", "1"])
    assert stage.router.pending.waiting_bytes == 0


def test_a_full_window_leaves_kept_messages_in_the_log():
    stage = RouterStage()
    stage.kept.add("#")
    client = stage.client("t", inflight=3)
    stage.publish(*numbers(5))
    stage.publish(*numbers(5, 10))
    assert client.payloads == numbers(3)
    assert client.session.lag == {0: 3}
    assert client.session.queued_bytes == 0
    for seen in (6, 9, 10):
        stage.ack(client)
        assert client.payloads == numbers(seen)
    assert client.session.lag == {}
    stage.ack(client)
    stage.publish("10")
    assert client.payloads == numbers(11)


def test_a_batch_that_goes_on_behind_what_is_routed_is_not_handed_over_twice():
    stage = RouterStage()
    stage.kept.add("#")
    client = stage.client("t", inflight=2)
    stage.publish(*numbers(4))
    shard = stage.log.shards[0]
    stage.publish(*numbers(4, 8), turn=False)
    shard.commit_now()  # committed, and not routed yet
    whole = stage.log.shards[0].batches
    stage.ack(client)
    stage.ack(client)
    assert client.payloads == numbers(4)
    assert whole[-1].end_offset == 8
    stage.turn()
    while len(client.payloads) < 8:
        stage.ack(client)
    assert client.payloads == numbers(8)


@pytest.mark.parametrize("gap", [1, 1000, 1 << 40])
def test_a_batch_behind_offsets_that_nothing_has_is_handed_over_from_its_first_row(gap: int):
    """As after a crash that left some out, a damaged segment, or the restore of a cluster."""
    stage = RouterStage()
    stage.kept.add("#")
    client = stage.client("t", inflight=10)
    stage.publish(*numbers(4))
    shard = stage.log.shards[0]
    shard.committed = shard.end = shard.end + gap
    stage.publish(*numbers(4, 8))
    assert client.payloads == numbers(8)


def test_what_can_not_be_read_stops_nobody():
    stage = RouterStage()
    stage.kept.add("#")
    client = stage.client("t", inflight=2)
    stage.publish(*numbers(4))
    stage.log.shards[0].batches.clear()
    stage.ack(client)
    assert client.session.lag == {}
    stage.publish("4")
    assert client.payloads == ["0", "1", "4"]
    stage.publish("5", turn=False)
    shard = stage.log.shards[0]
    shard.commit_now()
    shard.batches.clear()
    stage.turn()
    assert stage.router.routed == [6]
    stage.ack(client)
    stage.publish("6")
    assert client.payloads == ["0", "1", "4", "6"]


def test_a_full_table_of_topics_does_not_stop_what_is_in_the_log():
    stage = RouterStage(max_topics=4)
    stage.kept.add("#")
    client = stage.client("t/+", "u", inflight=100)
    for number in range(4):
        stage.publish(str(number), topic=f"t/{number}")
    stage.table.reset()
    for number in range(4):
        stage.publish(f"u{number}", topic=f"other/{number}")
    client.session.read_on(0, 0)
    stage.pump(client)
    assert client.payloads == numbers(4) * 2
    assert client.session.lag == {}


def test_messages_under_way_go_out_again_before_what_was_missed():
    stage = RouterStage(shards=3)
    stage.kept.add("#")
    client = stage.client("#", inflight=5)
    for number in range(9):
        stage.publish(str(number), topic="t" * (1 + number % 3))
    before = list(client.ids)
    again = stage.connect(client.session, 2)
    stage.resume(again)
    assert (again.payloads, again.ids) == (client.payloads[:2], before[:2])
    while len(again.payloads) < 9:
        stage.ack(again, 1)
    assert again.payloads[:5] == client.payloads
    assert again.ids[:5] == before
    assert sorted(again.payloads) == numbers(9)


def test_a_message_gone_from_the_log_is_given_up():
    stage = RouterStage()
    stage.kept.add("#")
    client = stage.client("t")
    stage.publish("0", "1")
    stage.log.shards[0].batches.clear()
    stage.resume(client)
    assert client.session.inflight == 0
    stage.publish("2")
    assert client.payloads[-1] == "2"


class SlowTables:
    """Tables that store ids when the test says so."""

    def __init__(self):
        self.moved = set()
        self.waiting = []

    def when_durable(self, call):
        self.waiting.append(call)


def test_a_message_whose_id_is_not_stored_yet_is_not_committed_with_an_earlier_one():
    stage, tables = RouterStage(), SlowTables()
    stage.kept.add("#")
    stage.router.use(stage.groups, tables)
    stage.publish("1", turn=False)
    stage.router.ids_ahead = True
    stage.turn()
    assert (stage.log.shards[0].committed, len(tables.waiting)) == (0, 1)
    stage.publish("2", turn=False)
    stage.router.ids_ahead = True
    tables.waiting.pop(0)()  # the first id is stored before the second one's turn has come
    assert stage.log.shards[0].committed == 0
    stage.turn()
    tables.waiting.pop(0)()
    assert stage.log.shards[0].committed == 2


def test_a_message_that_the_log_refused_leaves_no_old_time_behind():
    stage = RouterStage()
    stage.kept.add("t")
    shard = stage.log.shards[0]
    append, shard.append = shard.append, refusing
    with pytest.raises(Unavailable):
        stage.publish("lost", turn=False)
    stage.turn()
    shard.append, stage.now_us = append, 5_000_000
    stage.publish("kept")
    assert shard.batches[0].first_time == 5_000_000


def refusing(*arguments):
    raise Unavailable("no room")


def test_what_is_read_in_parts_is_all_routed():
    stage = RouterStage(manual=True)
    client = stage.client("t")
    stage.kept.add("t")
    for number in range(5):  # a read gives one of these batches, or two
        stage.publish(f"{number} " + "x" * (2 << 20), turn=False)
        stage.log.shards[0].commit_now()
    stage.router.committed()
    assert [payload[0] for payload in client.payloads] == list("01234")
    assert stage.router.routed == [5]


def test_what_is_not_kept_and_has_no_reader_is_not_taken():
    stage = RouterStage()
    stage.publish("1", topic="free", turn=False)
    client = stage.client("#")
    stage.publish("2", topic="free")
    assert client.payloads == ["2"]
    assert stage.router.messages_in == 2
