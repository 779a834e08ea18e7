"""Filters that cover each other, and that overlap."""

import itertools

from everlog.topics import covers, matches, overlap, parse_filter


def _names(depth: int) -> list[str]:
    levels = ["a", "b", "$d", ""]
    return [
        "/".join(parts)
        for size in range(1, depth + 1)
        for parts in itertools.product(levels, repeat=size)
        if any(parts)
    ]


def test_covers_and_overlap_agree_with_every_small_topic():
    """Filters of up to 2 levels against all topics of up to 3: the third level stands for all deeper ones."""
    levels = ["a", "$d", "+", "#"]
    texts = [*levels, *("/".join(pair) for pair in itertools.product(levels, repeat=2) if pair[0] != "#")]
    topics = _names(3)
    matched = {text: {t for t in topics if matches(parse_filter(text), t)} for text in texts}
    for one, other in itertools.product(texts, repeat=2):
        left, right = parse_filter(one), parse_filter(other)
        assert covers(left, right) == (matched[other] <= matched[one]), (one, other)
        assert overlap(left, right) == bool(matched[one] & matched[other]), (one, other)
