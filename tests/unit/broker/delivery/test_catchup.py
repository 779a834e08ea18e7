"""Sessions that are behind: what they read, and that neither a long history nor many of them hold up the others."""

from itertools import pairwise

import pytest
from tests.parts import RouterStage, make_read_plans, numbers

from everlog.base import StorageError
from everlog.broker.delivery.read_plan import NO_BOUND
from everlog.sessions import Session, Subscribed
from everlog.store import ReadResult
from everlog.topics import parse_filter

LARGE = 60_000  # bytes of a message


@pytest.fixture
def stage():
    """A log whose reader gives one batch a step, as the store's gives no more than it is asked for."""
    made = RouterStage()
    made.kept.add("#")
    whole = made.log.reader

    class Reader:
        def __init__(self, filters, *, publishers=False):
            self.inner = whole(filters)

        def read_shard(self, shard, offset, max_records, max_bytes):
            made.steps += 1
            if made.failing:
                raise StorageError("the disk is gone")
            result = self.inner.read_shard(shard, offset, max_records, max_bytes)
            first = result.batches[:1]
            end = first[0].records.end_offset if first else result.positions[0]
            return ReadResult(first, (end,), False, result.lost)

    made.steps, made.failing = 0, False
    made.log.reader = Reader
    return made


def behind(stage, count, **options):
    clients = [stage.client("t", qos=0, **options) for _ in range(count)]
    for client in clients:
        client.session.read_on(0, 0)
    return clients


def test_a_turn_of_the_event_loop_is_not_all_for_those_who_are_behind(stage):
    stage.time_reads(lambda: 0.0)
    for number in range(64):
        stage.publish(f"{number}" + "x" * LARGE)
    clients = behind(stage, 4)
    for client in clients:
        stage.pump(client)
    seen = [[len(client.payloads) for client in clients]]
    while stage.soon:
        stage.soon.pop(0)()
        seen.append([len(client.payloads) for client in clients])
    assert seen[-1] == [64] * 4
    a_slice, a_turn = (size // LARGE + 1 for size in (256 << 10, 1 << 20))
    for before, after in pairwise(seen):
        assert sum(after) - sum(before) <= a_turn + a_slice
        assert max(after) - min(after) <= 2 * a_slice  # nobody is far ahead
    assert all(client.session.lag == {} for client in clients)


def test_a_slow_disk_leaves_room_for_others_too(stage):
    stage.time_reads(iter(range(10**9)).__next__)  # every look at the clock is a second later
    for number in range(20):
        stage.publish(f"{number}" + "x" * LARGE)
    clients = behind(stage, 3)
    for client in clients:
        stage.pump(client)
    while stage.soon:
        before = stage.steps
        stage.soon.pop(0)()
        assert stage.steps - before <= (256 << 10) // LARGE + 1  # one slice of one session
    assert [len(client.payloads) for client in clients] == [20] * 3


def test_nothing_is_missed_or_repeated_by_who_stands_in_line_while_messages_come(stage):
    for number in range(30):
        stage.publish(f"{number} " + "x" * LARGE)
    clients = behind(stage, 5)
    for client in clients:
        stage.pump(client)
    for number in range(30, 60):
        stage.publish(f"{number} " + "x" * LARGE, turn=False)
        stage.soon.pop(0)()
    stage.turn()
    for client in clients:
        assert [payload.split()[0] for payload in client.payloads] == numbers(60)


def test_many_with_the_same_filter_read_each_part_of_the_log_once(stage):
    for number in range(30):
        stage.publish(f"{number} " + "x" * LARGE)
    alone, *others = behind(stage, 101)
    stage.pump(alone)
    stage.turn()
    steps_of_one = stage.steps
    for client in others:
        stage.pump(client)
    stage.turn()
    assert stage.steps <= 3 * steps_of_one
    for client in (alone, *others):
        assert [payload.split()[0] for payload in client.payloads] == numbers(30)


def test_who_leaves_stands_in_line_no_more(stage):
    for number in range(30):
        stage.publish(f"{number}" + "x" * LARGE)
    gone, stays = behind(stage, 2)
    for client in (gone, stays):
        stage.pump(client)
    stage.disconnect(gone)
    seen = len(gone.payloads)
    stage.turn()
    assert (len(gone.payloads), len(stays.payloads)) == (seen, 30)


def test_a_read_that_fails_in_line_is_tried_again_and_stops_nobody(stage):
    for number in range(30):
        stage.publish(f"{number}" + "x" * LARGE)
    (client,) = behind(stage, 1)
    stage.pump(client)
    stage.failing = True
    stage.turn()
    assert len(client.payloads) < 30
    stage.retry()
    stage.turn()
    assert len(client.payloads) < 30
    stage.failing = False
    stage.retry()  # nothing is under way, so no ack would come by
    stage.turn()
    assert len(client.payloads) == 30


def test_who_could_not_be_read_for_and_left_is_not_tried_again(stage):
    for number in range(30):
        stage.publish(f"{number}" + "x" * LARGE)
    (client,) = behind(stage, 1)
    stage.pump(client)
    stage.failing = True
    stage.turn()
    stage.forget(client)
    stage.retry()
    assert stage.soon == []


def test_an_idle_turn_asks_for_no_other(stage):
    stage.publish("0")
    (client,) = behind(stage, 1)
    stage.pump(client)
    stage.turn()
    assert client.payloads == ["0"]
    assert stage.soon == []


# How a session reads


class Readers:
    """A log that remembers which filters it was asked for."""

    def __init__(self):
        self.asked = []

    def reader(self, filters, *, publishers=False):
        self.asked.append([flt.text for flt in filters])
        return object()


def subscribed(**begins):
    return Session("c", subscriptions={text: Subscribed(text, 1, since=since) for text, since in begins.items()})


def test_a_filter_that_begins_later_is_not_read_before():
    log = Readers()
    plans = make_read_plans(log)
    session = subscribed(a=(0, 5), b=(100, 0), c=())
    session.subscribe(Subscribed("$share/g/x", 1, since=(0, 0)))
    first = plans.plan(session, 0, 0)
    assert (log.asked, first.bound) == ([["a", "c"]], 100)
    assert first.filters == (parse_filter("a"), parse_filter("c"))
    assert plans.plan(session, 0, 99) is first
    assert plans.plan(session, 0, 100).bound == NO_BOUND
    other = plans.plan(session, 1, 3)
    assert (log.asked[2:], other.bound) == ([["b", "c"]], 5)
    assert plans.plan(session, 1, 5).reader is plans.plan(session, 0, 100).reader


def test_where_nothing_has_begun_nothing_is_read():
    log = Readers()
    plan = make_read_plans(log).plan(subscribed(a=(50,), b=(40,)), 0, 0)
    assert (plan.reader, plan.bound, log.asked) == (None, 40, [])


def test_very_many_beginnings_are_read_as_one():
    log = Readers()
    plan = make_read_plans(log).plan(subscribed(**{f"f{number}": (number,) for number in range(100)}), 0, 0)
    assert (len(log.asked[0]), plan.bound) == (100, NO_BOUND)


def test_the_shard_that_is_furthest_back_in_time_comes_first():
    plans = make_read_plans(Readers())
    session = subscribed(a=(0, 0))
    session.leave((0, 0))
    for shard in (0, 1):
        plans.plan(session, shard, 0).time_us = 100 - shard
    assert plans.furthest_back(session) == 1
    plans.plan(session, 1, 0).time_us = 101
    assert plans.furthest_back(session) == 0


def test_what_is_committed_and_not_routed_yet_is_left_to_the_router():
    stage = RouterStage()
    stage.kept.add("#")
    stage.publish(*numbers(4))
    (client,) = behind(stage, 1)
    stage.publish(*numbers(4, 8), turn=False)
    stage.log.shards[0].commit_now()
    stage.pump(client)
    assert (client.payloads, client.session.lag) == (numbers(4), {})
    stage.turn()
    assert client.payloads == numbers(8)


def test_what_goes_to_the_session_in_one_way_needs_no_look_at_its_topics():
    def way(**subscriptions):
        session = Session("c", subscriptions={text: Subscribed(text, **each) for text, each in subscriptions.items()})
        found = make_read_plans(Readers()).plan(session, 0, 10).merged
        return None if found is None else (found.qos, found.identifiers, found.tells, found.until)

    assert way(a={"qos": 1, "since": (10,), "identifier": 7}) == (1, b"\x0b\x07", False, ())
    assert way(a={"qos": 1, "since": (5,)}, b={"qos": 1, "since": (7,)}) == (1, b"", False, ())
    assert way(a={"qos": 1, "tells": 1}, b={"qos": 1, "tells": 1}) == (1, b"", True, ())
    assert way(a={"qos": 1}, b={"qos": 2}) is None
    assert way(a={"qos": 1, "identifier": 7}, b={"qos": 1, "identifier": 7}) is None
    assert way(a={"qos": 1}, b={"qos": 1, "no_local": True}) is None
    assert way(a={"qos": 1}, b={"qos": 1, "since": (11,)}) == (1, b"", False, ())  # `b` is not read yet
    assert way(**{f"f{number}": {"qos": 1, "since": (number,)} for number in range(40)}) is None
