"""Trie, match cache and topic index against the plain reference, on names that collide as often as they can."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap

from everlog.base import StorageError, table_of
from everlog.topics import (
    MatchCache,
    Postings,
    SubscriptionTrie,
    TopicIndex,
    build_index,
    matches,
    parse_filter,
)
from everlog.topics.index_format import BATCHES, NAMES, USED_BATCHES

TOKENS = st.sampled_from(["", "a", "b", "$s", "$", "é"])
TOPICS = st.lists(TOKENS, min_size=1, max_size=5).map("/".join).filter(bool)
PATTERNS = (
    st.tuples(st.lists(st.one_of(TOKENS, st.just("+")), max_size=5), st.sampled_from([[], ["#"]]))
    .map(lambda parts: "/".join(parts[0] + parts[1]))
    .filter(bool)
)
FILTERS = st.one_of(PATTERNS, PATTERNS.map(lambda text: "$share/g/" + text)).map(parse_filter)
KEYS = st.integers(0, 3)
CHANGES = st.lists(st.tuples(st.booleans(), FILTERS, KEYS), max_size=30)


def expected(model, topic):
    return {(flt, key, value) for (flt, key), value in model.items() if matches(flt, topic)}


def actual(subscriptions):
    found = [(s.filter, s.key, s.value) for s in subscriptions]
    assert len(found) == len(set(found))
    return set(found)


@given(CHANGES, st.lists(TOPICS, max_size=10))
def test_trie_matches_what_the_reference_matches(changes, topics):
    trie, model = SubscriptionTrie(), {}
    for number, (is_insert, flt, key) in enumerate(changes):
        if is_insert:
            old = trie.insert(flt, key, number)
            replaced = model.get((flt, key))
            model[flt, key] = number
        else:
            old = trie.remove(flt, key)
            replaced = model.pop((flt, key), None)
        assert (old.value if old else None) == replaced
        assert len(trie) == len(model)
    for topic in topics:
        assert actual(trie.match(topic)) == expected(model, topic)


@given(CHANGES, st.lists(TOPICS, min_size=1, max_size=12, unique=True), st.booleans(), st.integers(1, 5))
def test_filters_that_come_and_go_many_at_a_time_leave_what_they_leave_one_by_one(changes, topics, knows_ids, size):
    tries = [SubscriptionTrie(), SubscriptionTrie()]
    ids = {topic: i for i, topic in enumerate(topics)}
    id_of = (lambda name: ids.get(name, -1)) if knows_ids else None
    dropped = [[], []]
    caches = [
        MatchCache(trie, list, on_drop=some.extend, id_of=id_of) for trie, some in zip(tries, dropped, strict=True)
    ]
    for start in range(0, len(changes), size):
        for is_insert, key in {(is_insert, key) for is_insert, _, key in changes[start : start + size]}:
            some = [one for put, one, of in changes[start : start + size] if put == is_insert and of == key]
            for flt in some:
                caches[0].insert(flt, key, start) if is_insert else caches[0].remove(flt, key)
            plain = [flt for flt in some if flt.is_exact and flt.group is None]
            if is_insert:
                caches[1].insert_exact(plain, key, [start] * len(plain))
                for flt in some:
                    if flt not in plain:
                        caches[1].insert(flt, key, start)
            else:
                for text in caches[1].remove_exact([flt.text for flt in some], key):
                    caches[1].remove(parse_filter(text), key)
        assert len(tries[0]) == len(tries[1])
        for i, topic in enumerate(topics):
            found = actual(tries[0].match(topic))
            assert actual(caches[0].lookup(i, topic)) == actual(caches[1].lookup(i, topic)) == found
    assert sorted(set(dropped[0])) == sorted(set(dropped[1]) & set(dropped[0]))


@given(CHANGES, st.lists(TOPICS, min_size=1, max_size=12, unique=True), st.sampled_from([2, 6, 100]))
def test_cache_gives_what_the_trie_gives_and_drops_exactly_what_changed(changes, topics, max_topics):
    trie = SubscriptionTrie()
    cache = MatchCache(trie, list, max_topics=max_topics)
    for number, (is_insert, flt, key) in enumerate(changes):
        kept = {i: cache.lookup(i, topic) for i, topic in enumerate(topics)}
        kept = {i: result for i, result in kept.items() if i in cache}
        changed = cache.insert(flt, key, number) is None if is_insert else cache.remove(flt, key) is not None
        for i, result in kept.items():
            assert (i in cache) == (not (matches(flt, topics[i]) and (changed or is_insert)))
            if i in cache and max_topics == 100:
                assert cache.lookup(i, topics[i]) is result
        for i, topic in enumerate(topics):
            assert actual(cache.lookup(i, topic)) == actual(trie.match(topic))
        assert len(cache) <= max_topics


def index_of(names):
    return build_index(table_of([name.encode() for name in names]))


@given(
    st.lists(TOPICS, max_size=40),
    st.lists(FILTERS, min_size=1, max_size=8),
)
def test_index_serialised_or_in_memory_selects_what_the_reference_matches(names, filters):
    in_memory = Postings()
    for topic_id, name in enumerate(names):
        in_memory.add(topic_id, name)
    index = TopicIndex.from_buffer(index_of(names))
    for flt in filters:
        found = [i for i, name in enumerate(names) if matches(flt, name)]
        assert list(in_memory.select(flt)) == found
        assert list(index.match(flt)) == found
        assert list(index.names(BitMap(found))) == [(i, names[i]) for i in found]


@settings(max_examples=10, deadline=None)
@given(st.lists(TOPICS, min_size=1, max_size=30), st.lists(FILTERS, min_size=1, max_size=3), st.integers(1, 255))
def test_index_of_many_rows_agrees_too(names, filters, spread):
    names = [f"{name}/{number % spread}" for number in range(20) for name in names]
    index = TopicIndex.from_buffer(index_of(names))
    for flt in [*filters, parse_filter("+/0"), parse_filter("a/+/3/#")]:
        found = [i for i, name in enumerate(names) if matches(flt, name)]
        assert list(index.match(flt)) == found


@pytest.mark.parametrize("mask", [0x01, 0x80, 0xFF])
def test_every_flipped_byte_of_an_index_is_refused_or_does_not_matter(mask):
    names = [f"a/{i}" for i in range(20)] + ["$s/x", "a/3/b"]
    filters = [parse_filter(text) for text in ("#", "a/+", "a/3/#", "+/3", "a/3/b", "$s/+", "zz/#")]
    data = index_of(names)
    directory = TopicIndex.from_buffer(data)._directory
    names_end, batches_end, used_begin, used_end = (
        directory[kind, 0].position + is_end * directory[kind, 0].length
        for kind, is_end in ((NAMES, True), (BATCHES, True), (USED_BATCHES, False), (USED_BATCHES, True))
    )
    unread = {*range(names_end, batches_end), *range(used_begin, used_end)}  # about batches: written empty

    def questions(index):
        asked = [lambda flt=flt: list(index.match(flt)) for flt in filters]
        return [*asked, lambda: list(index.names(BitMap(range(22))))]

    right = [ask() for ask in questions(TopicIndex.from_buffer(data))]
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= mask
        refused = 0
        try:
            index = TopicIndex.from_buffer(damaged)
        except StorageError:
            continue
        for ask, answer in zip(questions(index), right, strict=True):
            try:
                assert ask() == answer
            except StorageError:
                refused += 1
        assert refused or position in unread, position  # these questions read every other byte
