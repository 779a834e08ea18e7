"""Spills without a network: who is too slow for memory goes on from the log, and what that costs others."""

import pytest
from tests.parts import SPILLED, RouterStage, numbers

from everlog.base import StorageError
from everlog.sessions import Subscribed

QUEUE_BYTES = 4000
LONG = "0" * 200


def made(manual=False, spill_bytes=1 << 30, **more):
    return RouterStage(manual=manual, spill_bytes=spill_bytes, **more)


def slow(stage, *filters, name="slow", inflight=2):
    client = stage.transient(name, QUEUE_BYTES, inflight)
    for text in filters:
        stage.subscribe(client.session, Subscribed(text, 1, since=stage.router.ends()))
    return client


def flood(stage, first, stop, topic="t", **more):
    for number in range(first, stop):
        stage.publish(str(number).zfill(200), topic=topic, **more)


def take_all(stage, client):
    while client.session.waiting or client.session.inflight:
        stage.puback(client)
        stage.turn()
    return [str(int(payload)) for payload in client.payloads]


def test_a_long_queue_spills_and_is_let_go_when_the_session_is_live():
    stage = made()
    client = slow(stage, "t", "u/+")
    flood(stage, 0, 4)
    assert stage.kept.filters() == []
    flood(stage, 4, 50)
    assert stage.kept.filters() == [("t", SPILLED), ("u/+", SPILLED)]
    assert client.session.lag
    assert client.session.queued_bytes < QUEUE_BYTES / 2
    stage.sweep()
    assert stage.kept.filters(), "it is behind"
    assert take_all(stage, client) == numbers(50)
    stage.sweep()
    assert stage.kept.filters() == []
    kept = stage.router.messages_kept
    flood(stage, 50, 52)
    assert take_all(stage, client) == numbers(52)
    assert stage.router.messages_kept == kept


def test_answers_of_a_spilled_topic_wait_for_the_commit_and_others_do_not():
    stage = made(manual=True)
    slow(stage, "t")
    publisher = stage.client()
    flood(stage, 0, 20, sink=publisher)
    assert stage.router.messages_kept > 0
    before = len(publisher.answered)
    assert before == 20 - stage.router.messages_kept
    other = stage.client()
    stage.publish("x", topic="other", sink=other)
    assert len(other.answered) == 1
    stage.commit()
    assert len(publisher.answered) == 20


def test_what_was_gathered_before_a_topic_is_kept_goes_first():
    stage = made()
    other = stage.transient("other", QUEUE_BYTES, 100)
    stage.subscribe(other.session, Subscribed("t", 1))
    stage.publish("0", turn=False)
    stage.kept.add("t")
    stage.publish("1", turn=False)
    stage.turn()
    assert other.payloads == ["0", "1"]


def test_one_that_is_behind_gets_what_is_kept_no_more_after_what_it_has_not_read():
    stage = made()
    spilled, behind = slow(stage, "t", name="spilled"), slow(stage, "t", name="behind", inflight=100)
    flood(stage, 0, 20)
    behind.session.set_ready(False)
    flood(stage, 20, 23)
    assert behind.session.lag
    assert not behind.session.queued_bytes
    take_all(stage, spilled)
    stage.sweep()
    assert stage.kept.filters() == []
    flood(stage, 23, 25)
    assert behind.session.queued_bytes
    behind.session.set_ready(True)
    stage.router.pump(behind.session)
    assert take_all(stage, behind) == numbers(25)


def test_filters_go_when_nothing_is_on_its_way_through_the_log():
    stage = made(manual=True)
    client, quick = slow(stage, "t"), slow(stage, "t", name="quick", inflight=1000)
    flood(stage, 0, 20)
    stage.commit()
    take_all(stage, client)
    flood(stage, 20, 21)
    stage.sweep()
    assert stage.kept.filters(), "one is appended, and not routed"
    assert stage.router.spills.is_due
    stage.commit()
    assert stage.kept.filters() == []
    flood(stage, 21, 22)
    assert take_all(stage, quick) == numbers(22)


def test_a_moment_for_that_is_made_if_none_comes():
    stage = made(manual=True)
    client = slow(stage, "t")
    flood(stage, 0, 20)
    stage.commit()
    take_all(stage, client)
    flood(stage, 20, 21)
    for _ in range(5):
        stage.sweep()
        assert not stage.router.is_behind()
    stage.sweep()
    assert stage.router.is_behind(), "nothing more is read from publishers"
    stage.commit()
    assert not stage.router.is_behind()
    assert stage.kept.filters() == []


def test_many_filters_are_kept_and_let_go_a_few_in_a_turn():
    stage = made()
    client = slow(stage, *(f"t/{number}" for number in range(1000)), "t")
    for number in range(20):
        stage.publish(str(number).zfill(200), turn=False)
    stage.soon.pop(0)()
    assert 0 < len(stage.kept.filters()) <= 200
    stage.turn()
    assert len(stage.kept.filters()) == 1001
    stage.end(client)
    counts = []
    while stage.kept.filters():
        stage.router.spills.sweep()
        counts.append(len(stage.kept.filters()))
    assert len(counts) >= 5


def test_many_that_spill_again_and_again_look_up_few_topics():
    stage = made()
    topics = [f"t/{number}" for number in range(500)]
    clients = [slow(stage, "t/#", name=str(number)) for number in range(20)]
    for turn in range(3):
        for topic in topics[:50]:
            stage.publish(LONG, topic=topic)
        assert len(stage.router.spills) == len(clients)
        for client in clients:
            take_all(stage, client)
        stage.sweep()
        assert stage.kept.filters() == []
        assert stage.kept.looked_up <= 50 * (turn + 1), "once for each time that the filter came, and as they came"


def test_a_filter_of_settings_makes_spills_cost_no_look():
    stage = made()
    stage.kept.add("#", 2)
    stage.kept.add("#", 0)
    client = slow(stage, "t")
    flood(stage, 0, 20)
    assert not client.session.queued_bytes, "it falls back to the log at once"
    looked_up = stage.kept.looked_up
    stage.router.spills.spill(client.session)
    flood(stage, 20, 30)
    take_all(stage, client)
    stage.sweep()
    assert stage.kept.looked_up == looked_up


@pytest.mark.parametrize("go_wrong", ["fail", "trouble"])
def test_a_log_that_can_not_be_written_takes_no_spill(go_wrong):
    stage = made()
    closed = []
    stage.router.spills.on_over_quota = closed.append
    getattr(stage.log, go_wrong)(0, StorageError("no room"))
    client = slow(stage, "t")
    flood(stage, 0, 50)
    assert set(closed) == {client.session}
    assert stage.kept.filters() == []


def test_who_is_spilled_when_the_log_fails_is_named():
    stage = made()
    client = slow(stage, "t")
    flood(stage, 0, 20)
    stage.log.fail(0, StorageError("no room"))
    assert stage.router.spills.failed() == [client.session]


def test_beyond_the_limit_the_slowest_are_cut_off():
    stage = made(spill_bytes=6000)
    cut_off = []
    stage.router.spills.on_full = lambda session: cut_off.append(session.client_id)
    slowest, quicker = slow(stage, "t", name="slowest"), slow(stage, "t", name="quicker")
    flood(stage, 0, 20)
    stage.sweep()
    assert cut_off == []
    flood(stage, 20, 50)
    while len(quicker.payloads) < 40:
        stage.puback(quicker)
        stage.turn()
    stage.sweep()
    assert cut_off == ["slowest"]
    stage.end(slowest)
    stage.sweep()
    assert cut_off == ["slowest"]
    assert take_all(stage, quicker) == numbers(50)


def test_a_group_spills_and_ends_that_when_its_members_are_done():
    stage = made()
    members = [slow(stage, "$share/g/t", name=name) for name in ("first", "second")]
    flood(stage, 0, 60)
    assert stage.kept.filters() == [("t", SPILLED)]
    assert len(stage.groups) == 0, "it is no durable group"
    assert [one.durable for one in stage.groups.states()] == [False]
    for _ in range(100):
        for member in members:
            stage.puback(member)
        stage.turn()
    got = sorted(int(payload) for member in members for payload in member.payloads)
    assert got == list(range(60))
    for _ in range(3):
        stage.sweep()
    assert stage.kept.filters() == []
    assert not members[0].session.memberships
    flood(stage, 60, 62)
    assert sum(len(member.payloads) for member in members) == 62


def test_what_a_lost_member_of_a_spilled_group_had_goes_to_others():
    stage = made()
    lost, other = (slow(stage, "$share/g/t", name=name) for name in ("lost", "other"))
    flood(stage, 0, 60)
    for _ in range(5):
        stage.puback(lost)
        stage.turn()
    acknowledged = [int(payload) for payload in lost.payloads][: len(lost.payloads) - lost.session.inflight]
    stage.end(lost)
    stage.turn()
    for _ in range(100):
        stage.puback(other)
        stage.turn()
    assert sorted(acknowledged + [int(payload) for payload in other.payloads]) == list(range(60))
    stage.end(other)
    for _ in range(3):
        stage.sweep()
    assert stage.kept.filters() == []
    assert len(stage.router.spills) == 0


def test_a_durable_member_makes_a_spilled_group_durable():
    stage = made()
    first = slow(stage, "$share/g/t", name="first")
    flood(stage, 0, 60)
    durable = stage.client()
    durable.session.kept = True
    stage.subscribe(durable.session, Subscribed("$share/g/t", 1))
    stage.turn()
    stage.sweep()
    assert stage.kept.filters() == [("t", 0)]
    assert len(stage.groups) == 1
    for _ in range(100):
        for member in (first, durable):
            stage.puback(member)
        stage.turn()
    assert sorted(int(payload) for one in (first, durable) for payload in one.payloads) == list(range(60))
