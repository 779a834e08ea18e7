import pytest

from everlog.tiering import MemoryBucket, NumberedObjects
from everlog.tiering.numbered import is_deletable, milestones_above


class Unlisted(MemoryBucket):
    """A bucket whose listings show nothing."""

    def find(self, prefix: str):  # type: ignore[no-untyped-def]
        return iter(())


def filled(bucket: MemoryBucket, count: int) -> NumberedObjects:
    numbers = NumberedObjects(bucket, "shard")
    for number in range(count):
        assert numbers.create(number, b"%d" % number) is None
    return numbers


@pytest.mark.parametrize("bucket", [MemoryBucket(), Unlisted()])
@pytest.mark.parametrize("count", [0, 1, 255, 256, 257, 1000])
def test_the_end_is_found_whatever_a_listing_shows(bucket: MemoryBucket, count: int) -> None:
    assert filled(type(bucket)(), count).find_end() == count


def test_a_deleted_number_is_never_taken_for_one_that_was_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everlog.tiering.numbered.MILESTONES", (4, 16, 64))
    bucket = Unlisted()
    end, horizon = 3 * 64 + 27, 3 * 64 + 23
    numbers = filled(bucket, end)
    for number in range(horizon):
        if is_deletable(number, end):
            bucket.delete(numbers.name(number))
    assert sum(numbers.has(number) for number in range(horizon)) < 20
    for number in range(end):
        assert numbers.has(number) or numbers.is_passed(number)
        assert numbers.find_end(hint=number) == end
    assert not numbers.is_passed(end)


def test_milestones_stay_until_there_is_a_higher_one() -> None:
    assert milestones_above(0) == [256, 65536, 1 << 24]
    assert milestones_above(256) == [512, 65536, 1 << 24]
    assert not is_deletable(255, 256)
    assert is_deletable(255, 257)
    assert not is_deletable(256, 65536)
    assert is_deletable(256, 65537)
    assert not is_deletable(65536, 1 << 24)
    assert not is_deletable(0, 1 << 40)


def test_only_what_is_below_the_horizon_and_no_milestone_goes_and_nothing_small() -> None:
    bucket = MemoryBucket()
    numbers = NumberedObjects(bucket, "shard")
    for number in range(600):
        numbers.create(number, b"%d" % number if number == 7 else b"many bytes")
    assert numbers.delete_below(300, 600, kept_bytes=3) == 300 - 3
    assert [number for number in range(300) if numbers.has(number)] == [0, 7, 256]
    assert numbers.has(300)
