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
