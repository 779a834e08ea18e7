from everlog.topics import Postings, matches, parse_filter

NAMES = [f"{a}/{b}/{c}" for a in ("x", "$y", "") for b in range(50) for c in "pq"] + ["x", "/", "a/b/c/d/e"]
FILTERS = [
    "#",
    "+",
    "x/#",
    "x/7/q",
    "+/7/+",
    "+/+/#",
    "+/+/+/#",
    "$y/+/p",
    "$y/#",
    "/+/p",
    "nope/#",
    "x/#",
    "a/b/c/d/#",
]


def ids(flt):
    return [i for i, name in enumerate(NAMES) if matches(flt, name)]


def test_topics_added_at_once_or_one_at_a_time_are_selected_alike():
    at_once, single, reverse = Postings(), Postings(), Postings()
    at_once.extend(0, NAMES[:100])
    at_once.extend(100, NAMES[100:])
    for topic_id, name in enumerate(NAMES):
        single.add(topic_id, name)
    for topic_id in reversed(range(len(NAMES))):
        reverse.add(topic_id, NAMES[topic_id])
    for text in FILTERS:
        flt = parse_filter(text)
        for postings in (at_once, single, reverse):
            assert list(postings.select(flt)) == ids(flt), text
            assert len(postings) == len(NAMES)


def test_removed_topics_are_not_selected_and_leave_nothing():
    postings = Postings()
    postings.extend(0, NAMES)
    for topic_id in range(1, len(NAMES), 2):
        postings.remove(topic_id, NAMES[topic_id])
    for text in FILTERS:
        flt = parse_filter(text)
        assert list(postings.select(flt)) == [i for i in ids(flt) if i % 2 == 0]
    for topic_id, name in enumerate(NAMES):
        postings.remove(topic_id, name)
    assert len(postings) == 0
    assert not any(postings.levels)


def test_selected_bitmap_is_the_callers_own():
    postings = Postings()
    postings.extend(0, NAMES)
    for text in FILTERS:
        flt = parse_filter(text)
        postings.select(flt).clear()
        assert list(postings.select(flt)) == ids(flt)
