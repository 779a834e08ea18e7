"""Postings in compiled columns: a walk meets every topic that a filter matches, once and in order."""

from random import Random

import pytest

from everlog.base import TopicTable, UsageError
from everlog.topics import TokenPostings, TokenWalk, matches, parse_filter

FILTERS = ["#", "+", "+/+", "a/#", "a", "a/b", "+/b", "+/+/c", "a/+/c/#", "$s/#", "$s/+", "/", "/#", "+/", "x/y", "#"]


def walked(postings, table, text, first=0):
    walk = TokenWalk(text.encode())
    postings.begin(walk, first)
    met = []
    while (topic := postings.step(walk)) >= 0:
        met.append(topic)
    assert walk.is_over
    assert met == sorted(set(met))
    return [topic for topic in met if walk.matches(table, topic)]


@pytest.mark.parametrize("seed", range(3))
def test_a_walk_meets_what_a_filter_matches(seed):
    random = Random(seed)
    table, postings = TopicTable(0), TokenPostings()
    names = []
    for number in range(4000):
        levels = [random.choice(["a", "b", "c", "", "$s", str(number)]) for _ in range(random.randrange(1, 5))]
        topic = table.intern("/".join(levels).encode() or b"/")
        if topic == len(names):
            names.append(table.name(topic).decode())
            postings.add(table, topic)
    for text in FILTERS:
        flt = parse_filter(text)
        wanted = [topic for topic, name in enumerate(names) if matches(flt, name)]
        first = random.randrange(len(names))
        assert walked(postings, table, text) == wanted
        assert walked(postings, table, text, first) == [topic for topic in wanted if topic >= first]


def test_a_walk_looks_at_the_rarest_token_only():
    table, postings = TopicTable(0), TokenPostings()
    for number in range(3000):
        postings.add(table, table.intern(f"{number}/{'x' if number % 1000 == 7 else 'y'}/z".encode()))
    walk = TokenWalk(b"+/x/z")
    postings.begin(walk, 0)
    met = [postings.step(walk) for _ in range(4)]
    assert met == [7, 1007, 2007, -1]


def test_topics_are_added_in_order():
    table, postings = TopicTable(0), TokenPostings()
    table.intern(b"a")
    postings.add(table, 0)
    with pytest.raises(UsageError):
        postings.add(table, 0)
    with pytest.raises(UsageError):
        postings.add(table, 1)


def test_a_walk_goes_through_what_two_long_lists_have_in_common():
    table, postings = TopicTable(0), TokenPostings()
    for number in range(6000):
        name = f"{number}/{'x' if number % 2 else 'y'}/{'z' if number % 3 else 'w'}"
        postings.add(table, table.intern(name.encode()))
    for first in (0, 1, 3500):
        walk = TokenWalk(b"+/x/w")
        postings.begin(walk, first)
        met = []
        while (topic := postings.step(walk)) >= 0:
            met.append(topic)
        assert walk.is_over
        assert met == [number for number in range(first, 6000) if number % 2 and number % 3 == 0]


def test_a_long_way_without_a_topic_is_gone_in_steps():
    table, postings = TopicTable(0), TokenPostings()
    for number in range(60_000):
        postings.add(
            table, table.intern(f"{number}/{'x' if number % 2 else 'y'}/{'w' if number % 2 else 'z'}".encode())
        )
    topic = table.intern(b"a/x/z")
    postings.add(table, topic)
    walk, steps = TokenWalk(b"+/x/z"), []
    postings.begin(walk, 0)
    while not walk.is_over:
        steps.append(postings.step(walk))
    assert steps[-2:] == [topic, -1]
    assert steps[:-2] == [-1] * (len(steps) - 2)
    assert len(steps) > 3
