"""What is kept, as one byte for each topic and QoS."""

import pytest
from tests.parts import make_kept_topics

from everlog.base import NOT_KEPT, TopicTable


def made(max_topics=100, shards=4):
    table = TopicTable(0)
    return table, make_kept_topics(table, lambda name: len(name) % shards, max_topics)


def routes(kept, table, topic):
    number = table.lookup(topic.encode())
    kept.extend()
    return list(kept.routes[4 * number : 4 * number + 4])


def test_a_kept_topic_has_its_shard_and_others_have_none():
    table, kept = made()
    kept.add("a/+")
    for name in (b"a/b", b"a/bc", b"b"):
        table.intern(name)
    assert kept.extend()
    assert routes(kept, table, "a/b") == [3] * 4
    assert routes(kept, table, "a/bc") == [0] * 4
    assert routes(kept, table, "b") == [NOT_KEPT] * 4


def test_topics_known_before_the_first_filter_are_looked_at_again():
    table, kept = made()
    table.intern(b"a")
    assert not kept.extend()
    kept.add("a")
    assert kept.extend()
    assert routes(kept, table, "a") == [1] * 4
    kept.remove("a")
    table.intern(b"b")
    assert not kept.extend()
    assert routes(kept, table, "a") == [NOT_KEPT] * 4
    kept.add("#")
    kept.extend()
    assert routes(kept, table, "b") == [1] * 4


def test_a_lowest_qos_lets_lower_ones_pass_by():
    table, kept = made()
    kept.configure([("a", 1), ("+", 2)])
    table.intern(b"a")
    table.intern(b"b")
    kept.extend()
    assert routes(kept, table, "a")[:3] == [NOT_KEPT, 1, 1]
    assert routes(kept, table, "b")[:3] == [NOT_KEPT, NOT_KEPT, 1]
    kept.add("#")
    assert routes(kept, table, "a")[:3] == [1, 1, 1]
    kept.remove("#")
    assert routes(kept, table, "a")[:3] == [NOT_KEPT, 1, 1]


def test_what_is_never_kept_is_kept_for_durable_sessions_alone():
    table, kept = made(shards=1)
    kept.configure([("#", 0), ("response/now", 0)], ["response/#", "p/+"])
    names = ("a", "response/1", "response/now", "p/1", "p/1/x")
    for name in names:
        table.intern(name.encode())

    def found():
        return {name for name in names if routes(kept, table, name) == [0] * 4}

    assert found() == {"a", "p/1/x"}
    kept.add("$share/g/response/+")
    kept.add("#")
    assert found() == {*names}
    kept.remove("#")
    assert found() == {"a", "p/1/x", "response/1", "response/now"}
    kept.remove("response/+")
    assert found() == {"a", "p/1/x"}
    assert kept.filters() == [("#", 0), ("response/now", 0)]


def test_nothing_is_looked_up_when_there_is_nothing_that_never_could_limit():
    table, kept = made()
    kept.configure([], ["response/#"])
    table.intern(b"response/1")
    assert not kept.extend()


def test_a_filter_is_kept_as_long_as_anyone_asks_for_it():
    table, kept = made()
    table.intern(b"a")
    for text in ("a", "$share/g/a", "a"):
        kept.add(text)
    assert kept.filters() == [("a", 0)]
    kept.remove("a")
    kept.remove("$share/g/a")
    kept.extend()
    assert routes(kept, table, "a") == [1] * 4
    kept.remove("a")
    kept.remove("a")
    assert kept.filters() == []
    assert routes(kept, table, "a") == [NOT_KEPT] * 4


@pytest.mark.parametrize("cached", [2, 4, 1000])
def test_a_change_finds_topics_that_the_cache_has_let_go(cached):
    table, kept = made(cached)
    kept.add("x")
    for start in range(0, 60, 10):
        for number in range(start, start + 10):
            table.intern(b"t/%d" % number)
        kept.extend()
    kept.add("t/#")
    assert all(routes(kept, table, f"t/{number}")[0] != NOT_KEPT for number in range(60))
    kept.remove("t/#")
    assert all(routes(kept, table, f"t/{number}")[0] == NOT_KEPT for number in range(60))


def test_a_table_that_begins_anew_is_followed():
    table, kept = made()
    kept.add("a")
    table.intern(b"b")
    table.intern(b"a")
    kept.extend()
    table.reset()
    table.intern(b"a")
    kept.extend()
    assert len(kept.routes) == 4
    assert routes(kept, table, "a") == [1] * 4


def test_filters_that_come_together_cost_one_look_at_each_topic():
    looked = []
    table = TopicTable(0)
    kept = make_kept_topics(table, lambda name: looked.append(name) or 0, 2000)
    for number in range(500):
        table.intern(b"a/b/%d" % number)
    for text in ("a/#", "a/+/#", "+/b/#", "+/+/#", "a/b/+", "+/b/+", "+/+/+", "#"):
        kept.add(text)
    assert kept.extend()
    assert len(looked) == 500
    kept.remove("#")
    kept.extend()
    assert len(looked) == 1000
