"""What is kept, as one byte for each topic and QoS."""

import pytest
from tests.parts import make_keep

from everlog.base import NOT_KEPT, TopicTable


def made(max_topics=100, shards=4):
    table = TopicTable(0)
    return table, make_keep(table, lambda name: len(name) % shards, max_topics)


def routes(keep, table, topic):
    number = table.lookup(topic.encode())
    keep.extend()
    return list(keep.routes[4 * number : 4 * number + 4])


def test_a_kept_topic_has_its_shard_and_others_have_none():
    table, keep = made()
    keep.add("a/+")
    for name in (b"a/b", b"a/bc", b"b"):
        table.intern(name)
    assert keep.extend()
    assert routes(keep, table, "a/b") == [3] * 4
    assert routes(keep, table, "a/bc") == [0] * 4
    assert routes(keep, table, "b") == [NOT_KEPT] * 4


def test_topics_known_before_the_first_filter_are_looked_at_again():
    table, keep = made()
    table.intern(b"a")
    assert not keep.extend()
    keep.add("a")
    assert keep.extend()
    assert routes(keep, table, "a") == [1] * 4
    keep.remove("a")
    table.intern(b"b")
    assert not keep.extend()
    assert routes(keep, table, "a") == [NOT_KEPT] * 4
    keep.add("#")
    keep.extend()
    assert routes(keep, table, "b") == [1] * 4


def test_a_lowest_qos_lets_lower_ones_pass_by():
    table, keep = made()
    keep.add("a", 1)
    table.intern(b"a")
    keep.extend()
    assert routes(keep, table, "a")[:3] == [NOT_KEPT, 1, 1]
    keep.add("+", 2)
    assert routes(keep, table, "a")[:3] == [NOT_KEPT, 1, 1]
    keep.add("#")
    assert routes(keep, table, "a")[:3] == [1, 1, 1]
    keep.remove("#")
    keep.remove("a", 1)
    assert routes(keep, table, "a")[:3] == [NOT_KEPT, NOT_KEPT, 1]


def test_a_filter_is_kept_as_long_as_anyone_asks_for_it():
    table, keep = made()
    table.intern(b"a")
    for text in ("a", "$share/g/a", "a"):
        keep.add(text)
    assert keep.filters() == [("a", 0)]
    keep.remove("a")
    keep.remove("$share/g/a")
    keep.extend()
    assert routes(keep, table, "a") == [1] * 4
    keep.remove("a")
    keep.remove("a")
    assert keep.filters() == []
    assert routes(keep, table, "a") == [NOT_KEPT] * 4


@pytest.mark.parametrize("cached", [2, 4, 1000])
def test_a_change_finds_topics_that_the_cache_has_let_go(cached):
    table, keep = made(cached)
    keep.add("x")
    for start in range(0, 60, 10):
        for number in range(start, start + 10):
            table.intern(b"t/%d" % number)
        keep.extend()
    keep.add("t/#")
    assert all(routes(keep, table, f"t/{number}")[0] != NOT_KEPT for number in range(60))
    keep.remove("t/#")
    assert all(routes(keep, table, f"t/{number}")[0] == NOT_KEPT for number in range(60))


def test_a_table_that_begins_anew_is_followed():
    table, keep = made()
    keep.add("a")
    table.intern(b"b")
    table.intern(b"a")
    keep.extend()
    table.reset()
    table.intern(b"a")
    keep.extend()
    assert len(keep.routes) == 4
    assert routes(keep, table, "a") == [1] * 4


def test_filters_that_come_together_cost_one_look_at_each_topic():
    looked = []
    table = TopicTable(0)
    keep = make_keep(table, lambda name: looked.append(name) or 0, 2000)
    for number in range(500):
        table.intern(b"a/b/%d" % number)
    for text in ("a/#", "a/+/#", "+/b/#", "+/+/#", "a/b/+", "+/b/+", "+/+/+", "#"):
        keep.add(text)
    assert keep.extend()
    assert len(looked) == 500
    keep.remove("#")
    keep.extend()
    assert len(looked) == 1000
