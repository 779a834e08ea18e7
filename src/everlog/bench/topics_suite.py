"""What finding subscribers and selecting topics cost: trie, match cache and topic index, each beside a plain walk."""

import random
from collections.abc import Callable
from time import perf_counter

from everlog.base import table_of
from everlog.bench.measurement import Row
from everlog.topics import (
    MatchCache,
    SectionCache,
    Subscription,
    SubscriptionTrie,
    TopicIndex,
    build_index,
    matches,
    parse_filter,
)

TOPICS = 1_000_000
SESSIONS = 100_000
FORMS = ("a/b/c/#", "+/b/c/d/e", "a/+/c/+/e")
_WALKED = 20  # one topic in so many is walked, and the time multiplied


def run() -> list[Row]:
    """Return all rows in about 6 seconds."""
    return [*_trie_rows(), *_index_rows()]


def mixed_topics(count: int, other: Callable[[int], str]) -> list[str]:
    """Return distinct topics of depth 5 in random order: each of FORMS selects 1%, `other` makes the rest by number."""
    share = count // 100
    names = [f"a/b/c/d{i % 100}/f{i}" for i in range(share)]
    names += [f"n{i}/b/c/d/e" for i in range(share)]
    names += [f"a/m{i}/c/k{i % 7}/e" for i in range(share)]
    names += map(other, range(count - len(names)))
    random.Random(1).shuffle(names)
    return names


def topic_names(count: int) -> list[str]:
    """Return distinct topics; each of FORMS selects about 1% of them."""
    a, b, c, d, e = [[letter, *(f"{letter}{i}" for i in range(1, 16))] for letter in "abcde"]
    return mixed_topics(  # 16**5 combinations, each at most once
        count, lambda i: f"{a[i & 15]}/{b[i >> 4 & 15]}/{c[i >> 8 & 15]}/{d[i >> 12 & 15]}/{e[i >> 16 & 15]}"
    )


def _seconds(call: Callable[[], object], times: int = 1) -> float:
    start = perf_counter()
    for _ in range(times):
        call()
    return (perf_counter() - start) / times


def _trie_rows() -> list[Row]:
    trie: SubscriptionTrie[int, int] = SubscriptionTrie()
    cache: MatchCache[int, int, tuple[Subscription[int, int], ...]] = MatchCache(trie, tuple)
    filters = [parse_filter(f"dev/{i}/{'cmd' if i % 2 else '+'}") for i in range(SESSIONS)]
    wide = [parse_filter(text) for text in ("dev/+/cmd", "dev/#", "+/+/cmd", "x/+/y/#")]
    note = f"{SESSIONS} sessions, one filter each, half with +; 3 wider filters match too"

    def insert_all() -> None:
        for key, flt in enumerate(filters + wide):
            trie.insert(flt, key, 1)

    inserting = _seconds(insert_all) / len(trie)
    topics = [f"dev/{i}/cmd" for i in range(0, SESSIONS, 10)]
    matching = _seconds(lambda: [trie.match(topic) for topic in topics]) / len(topics)
    for i, topic in enumerate(topics):
        cache.lookup(i, topic)
    cached = _seconds(lambda: [cache.lookup(i, topic) for i, topic in enumerate(topics)]) / len(topics)
    sample = random.Random(2).sample(filters, len(filters) // _WALKED)
    walking = _seconds(lambda: [flt for flt in sample if matches(flt, topics[7])]) * _WALKED
    changed = parse_filter("dev/4711/+/#")
    dropping = _seconds(lambda: cache.insert(changed, -1, 1), 1_000)
    trie.remove(changed, -1)

    def remove_all() -> None:
        for key, flt in enumerate(filters + wide):
            trie.remove(flt, key)

    removing = _seconds(remove_all) / (len(filters) + len(wide))
    return [
        ("trie insert", inserting * 1e6, "µs", note),
        ("trie remove", removing * 1e6, "µs", note),
        ("trie match", matching * 1e6, "µs", note),
        ("trie match, cached by topic id", cached * 1e6, "µs", note),
        ("plain walk of the filters", walking * 1e6, "µs", f"{note}; 1 in {_WALKED} walked"),
        ("filter change with cached topics", dropping * 1e6, "µs", f"{len(topics)} cached topics, 1 of them matches"),
    ]


def _index_rows() -> list[Row]:
    names = topic_names(TOPICS)
    encoded = [name.encode() for name in names]
    few, every = table_of(encoded[: TOPICS // 10]), table_of(encoded)
    note = f"{TOPICS // 10} topics of depth 5"
    rows: list[Row] = [("topic index build", _seconds(lambda: build_index(few)), "s", note)]
    start = perf_counter()
    data = build_index(every)
    note = f"{TOPICS} topics of depth 5"
    rows.append(("topic index build", perf_counter() - start, "s", note))
    rows.append(("topic index size", len(data) / 1e6, "MB", note))
    rows.append(("topic index open", _seconds(lambda: TopicIndex.from_buffer(data), 100) * 1e6, "µs", note))
    walked = names[::_WALKED]
    for text in FORMS:
        flt = parse_filter(text)
        index = TopicIndex.from_buffer(data, cache=SectionCache(64 << 20))
        cold = _seconds(lambda index=index, flt=flt: index.match(flt))  # type: ignore[misc]
        warm = _seconds(lambda index=index, flt=flt: index.match(flt), 20)  # type: ignore[misc]
        walk = _seconds(lambda flt=flt: [name for name in walked if matches(flt, name)]) * _WALKED  # type: ignore[misc]
        note = f"{len(index.match(flt)) / TOPICS:.1%} of {TOPICS} topics"
        rows.append((f"topic index {text}, nothing loaded", cold * 1e3, "ms", note))
        rows.append((f"topic index {text}, sections loaded", warm * 1e3, "ms", note))
        rows.append((f"plain walk {text}", walk * 1e3, "ms", f"{note}; 1 in {_WALKED} walked"))
    return rows
