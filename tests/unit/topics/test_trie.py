from itertools import product

from everlog.topics import SubscriptionTrie, parse_filter


def found(trie, topic):
    return sorted((s.filter.text, s.key, s.value) for s in trie.match(topic))


def test_overlapping_filters_of_one_key_are_all_returned():
    trie = SubscriptionTrie()
    for text in ("a/b", "a/+", "a/#", "#", "+/b", "x/#"):
        trie.insert(parse_filter(text), "c1", text)
    assert [text for text, _, _ in found(trie, "a/b")] == ["#", "+/b", "a/#", "a/+", "a/b"]


def test_insert_again_replaces_the_value():
    for text in ("a/b", "a/+", "a/#"):
        trie = SubscriptionTrie()
        assert trie.insert(parse_filter(text), "c1", 0) is None
        assert trie.insert(parse_filter(text), "c1", 1).value == 0
        assert found(trie, "a/b") == [(text, "c1", 1)]
        assert len(trie) == 1


def test_group_and_plain_subscription_of_one_key_are_kept_apart():
    for pattern in ("a", "+"):
        trie = SubscriptionTrie()
        texts = [pattern, f"$share/g/{pattern}", f"$share/h/{pattern}"]
        for text in texts:
            trie.insert(parse_filter(text), "c1", 1)
        assert [text for text, _, _ in found(trie, "a")] == sorted(texts)
        trie.remove(parse_filter(f"$share/g/{pattern}"), "c1")
        assert [text for text, _, _ in found(trie, "a")] == sorted([pattern, f"$share/h/{pattern}"])
        assert {s.filter.group for s in trie.match("a")} == {None, "h"}


def test_remove_of_what_is_not_there_changes_nothing():
    trie = SubscriptionTrie()
    trie.insert(parse_filter("a/+"), "c1", 1)
    trie.insert(parse_filter("b"), "c1", 1)
    for text, key in (("a/+", "c2"), ("a", "c1"), ("a/#", "c1"), ("a/+/b", "c1"), ("b", "c2"), ("c", "c1")):
        assert trie.remove(parse_filter(text), key) is None
    assert len(trie) == 2
    assert found(trie, "a/x") == [("a/+", "c1", 1)]


def test_removing_everything_leaves_no_node_behind():
    trie = SubscriptionTrie()
    filters = [parse_filter("/".join(parts)) for parts in product(["a", "b", "+", "c"], ["x", "+", "y"], ["#", "z"])]
    for flt in filters:
        for key in range(3):
            trie.insert(flt, key, None)
    assert len(trie) == 3 * len(filters)
    for key in range(3):
        for flt in reversed(filters):
            assert trie.remove(flt, key).key == key
    assert len(trie) == 0
    assert trie._root.is_bare()
    assert not trie._exact


def test_wildcards_do_not_match_dollar_topics():
    trie = SubscriptionTrie()
    for text in ("#", "+/x", "+/#", "$SYS/#", "$SYS/+", "$SYS/x", "+"):
        trie.insert(parse_filter(text), "c", 0)
    assert [text for text, _, _ in found(trie, "$SYS/x")] == ["$SYS/#", "$SYS/+", "$SYS/x"]
    assert [text for text, _, _ in found(trie, "$SYS")] == ["$SYS/#"]


def test_hundred_thousand_keys_on_one_filter_come_and_go():
    trie = SubscriptionTrie()
    flt = parse_filter("a/+")
    for key in range(100_000):
        trie.insert(flt, key, key)
    assert len(trie.match("a/b")) == 100_000
    for key in range(99_999):
        assert trie.remove(flt, key).value == key
    assert [s.key for s in trie.match("a/b")] == [99_999]


def test_deep_filters_need_no_stack():
    trie = SubscriptionTrie()
    levels = 20_000
    flt = parse_filter("/".join(["+"] * levels) + "/#", max_levels=levels + 1)
    trie.insert(flt, "c", 1)
    assert found(trie, "/".join(["x"] * levels)) == [(flt.text, "c", 1)]
    assert trie.remove(flt, "c") is not None
    assert trie._root.is_bare()


def test_chains_of_plus_visit_no_node_twice():
    trie = SubscriptionTrie()
    for literal in range(127):
        levels = ["+"] * 127
        levels[literal] = "a"
        trie.insert(parse_filter("/".join(levels) + "/z"), literal, 0)
        trie.insert(parse_filter("/".join(levels)), literal, 0)
    assert len(trie.match("/".join(["a"] * 127))) == 127
