import pytest

from everlog.base import UsageError
from everlog.topics import MatchCache, SubscriptionTrie, parse_filter


def cache_of(*names, **limits):
    cache = MatchCache(SubscriptionTrie(), list, **limits)  # lists, as all empty tuples are one object
    return cache, {name: cache.lookup(topic_id, name) for topic_id, name in enumerate(names)}


def test_result_is_the_same_object_until_a_matching_filter_comes():
    cache, before = cache_of("a/b", "a/c", "b/b", "$SYS/b")
    cache.insert(parse_filter("+/b"), "c1", 1)
    assert {name: cache.lookup(i, name) is before[name] for i, name in enumerate(before)} == {
        "a/b": False,
        "a/c": True,
        "b/b": False,
        "$SYS/b": True,
    }
    assert [s.key for s in cache.lookup(0, "a/b")] == ["c1"]


def test_remove_drops_only_what_it_changes():
    cache, _ = cache_of()
    cache.insert(parse_filter("a/#"), "c1", 1)
    cache.insert(parse_filter("b"), "c1", 1)
    a, b = cache.lookup(0, "a"), cache.lookup(1, "b")
    assert cache.remove(parse_filter("a/#"), "c2") is None
    assert cache.lookup(0, "a") is a
    assert cache.remove(parse_filter("a/#"), "c1") is not None
    assert cache.lookup(0, "a") == []
    assert cache.lookup(1, "b") is b


def test_a_shared_filter_drops_what_its_pattern_matches():
    cache, _ = cache_of("a/b", "c")
    cache.insert(parse_filter("$share/g/a/+"), "c1", 1)
    assert 0 not in cache
    assert 1 in cache


def test_dropped_topic_is_dropped_again_after_a_new_lookup():
    cache, _ = cache_of("a")
    for key in range(3):
        cache.insert(parse_filter("a"), key, 0)
        assert len(cache.lookup(0, "a")) == key + 1


def test_version_rises_with_every_change_and_with_nothing_else():
    cache, _ = cache_of("a")
    assert cache.version == 0
    cache.insert(parse_filter("a"), "c", 1)
    assert cache.version == 1
    cache.remove(parse_filter("x"), "c")
    cache.lookup(0, "a")
    assert cache.version == 1
    cache.remove(parse_filter("a"), "c")
    assert cache.version == 2


def test_size_is_bounded_and_what_is_used_stays():
    cache, _ = cache_of(max_topics=10)
    hot = cache.lookup(0, "hot")
    for topic_id in range(1, 100):
        cache.lookup(topic_id, f"t{topic_id}")
        assert cache.lookup(0, "hot") is hot
        assert len(cache) <= 10


def test_result_that_moved_between_generations_is_still_dropped():
    cache, _ = cache_of(max_topics=4)
    cache.lookup(0, "hot")
    for topic_id in range(1, 3):
        cache.lookup(topic_id, f"t{topic_id}")
    cache.lookup(0, "hot")
    assert len(cache) == 3
    cache.insert(parse_filter("hot"), "c", 1)
    assert len(cache) == 2
    assert [s.key for s in cache.lookup(0, "hot")] == ["c"]


def test_forgotten_id_may_stand_for_another_name():
    cache, _ = cache_of("$x/y/z", "a")
    cache.forget(0, "$x/y/z")
    assert cache.lookup(0, "b") == []
    cache.insert(parse_filter("$x/#"), "c", 1)
    assert 0 in cache
    cache.insert(parse_filter("+"), "c", 1)
    assert len(cache.lookup(0, "b")) == 1


def test_a_limit_too_small_to_halve_is_refused():
    with pytest.raises(UsageError):
        MatchCache(SubscriptionTrie(), tuple, max_topics=1)


def test_a_result_is_dropped_once_however_many_filters_come():
    dropped = []
    cache = MatchCache(SubscriptionTrie(), list, on_drop=dropped.extend)
    for topic_id in range(100):
        cache.lookup(topic_id, f"a/{topic_id}")
    for number, text in enumerate(("a/#", "a/+", "#", "a/#")):
        cache.insert(parse_filter(text), number, 1)
    assert sorted(dropped) == list(range(100))
    cache.lookup(7, "a/7")
    assert cache.invalidate(parse_filter("a/#")) == 1
