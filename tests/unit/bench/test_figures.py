"""The histogram's error is bounded over its whole range, in both twins."""

import random
from itertools import pairwise
from typing import Any

import pytest
from tests.load_kernels import TWINS, names_of

from everlog.bench.load.gaps import Gaps

both = pytest.mark.parametrize("twin", TWINS, ids=names_of)
EXTREMES = [0, 1, 127, 128, 255, 256, 257, 4095, 4096, 65_535, 65_536, 10**6, 10**9, 2**32, 2**63 - 1, 2**63, 2**64 - 1]


@both
@pytest.mark.parametrize("value", EXTREMES)
def test_single_value_is_its_own_quantile(twin: Any, value: int) -> None:
    histogram = twin.figures.Histogram()
    histogram.add(value)
    assert histogram.quantile(0.5) == histogram.highest == value


@both
def test_quantiles_are_never_low_and_at_most_a_128th_high(twin: Any) -> None:
    chance = random.Random(4)
    values = sorted(int(2 ** (chance.random() * 50)) for _ in range(5000))
    histogram = twin.figures.Histogram()
    for value in values:
        histogram.add(value)
    assert histogram.count == 5000
    for share in (0.001, 0.25, 0.5, 0.9, 0.99, 0.999, 1.0):
        true = values[max(0, -(-int(share * 1000) * 5000 // 1000) - 1)]
        assert true <= histogram.quantile(share) <= true * (1 + 1 / 128)


@both
def test_bucket_ends_grow_without_a_gap(twin: Any) -> None:
    upper_end = twin.figures.upper_end
    ends = [upper_end(index) for index in range(7424)]
    assert ends[-1] == 2**64 - 1
    assert all(one < other for one, other in pairwise(ends))
    for index in (0, 255, 256, 300, 5000):
        histogram = twin.figures.Histogram()
        histogram.add(ends[index])
        histogram.add(2**64 - 1)
        assert histogram.quantile(0.5) == ends[index]


@both
def test_empty_histogram_has_no_quantile(twin: Any) -> None:
    histogram = twin.figures.Histogram()
    assert (histogram.quantile(0.5), histogram.mean) == (0, 0.0)


def test_gaps_are_filled_once() -> None:
    gaps = Gaps()
    gaps.skip(10, 15)
    gaps.skip(20, 21)
    assert len(gaps) == 6
    assert [gaps.fill(number) for number in (12, 12, 10, 14, 20, 15, 9, 11, 13)] == [
        True,
        False,
        True,
        True,
        True,
        False,
        False,
        True,
        True,
    ]
    assert len(gaps) == 0
