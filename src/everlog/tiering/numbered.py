"""Objects with numbers from 0 on, each created once: whoever creates the next number has decided what comes next.

Old numbers may be deleted, and yet nobody may take a deleted number for one that was never given: not a reader, who
would miss all that follows, and not a writer that slept, who would create it again. So **milestones** stay behind. A
number is deleted only once the next milestone above it exists: for most numbers the next multiple of 256, for those
the next multiple of 65,536, for those the next of 2^24, and those stay for ever, as 0 does. Whoever finds a number
missing looks at the milestones above it, the nearest first; if one is there, the number is gone, and if none is, it was
never given: had it been deleted before, its milestone would have been there before, and so on upwards.

No listing is trusted: it is a hint where to begin to look.
"""

from collections.abc import Iterator

from everlog.tiering.ports import Bucket

MILESTONES = (1 << 8, 1 << 16, 1 << 24)
_DIGITS = 20


class NumberedObjects:
    """The numbered objects of one folder of a bucket."""

    def __init__(self, bucket: Bucket, folder: str) -> None:
        self._bucket = bucket
        self.folder = folder

    def name(self, number: int) -> str:
        """Return the name of the object with a number."""
        return f"{self.folder}/{number:0{_DIGITS}d}"

    def create(self, number: int, data: bytes) -> bytes | None:
        """Create a number: return None if this call did, or the content that it has."""
        return self._bucket.create(self.name(number), data)

    def get(self, number: int) -> bytes | None:
        """Return the content of a number, or None if it is not there."""
        return self._bucket.get(self.name(number))

    def get_range(self, number: int, start: int, size: int) -> bytes | None:
        """Return a part of the content of a number, or None if it is not there."""
        return self._bucket.get_range(self.name(number), start, size)

    def has(self, number: int) -> bool:
        """Return whether a number is there."""
        return self._bucket.get_range(self.name(number), 0, 1) is not None

    def is_passed(self, number: int) -> bool:
        """Return whether a milestone above a number exists: then a number that is missing was deleted."""
        return any(self.has(milestone) for milestone in milestones_above(number))

    def find_end(self, hint: int = 0) -> int:
        """Return the first number that was not there when it was looked at; `hint` is one that was given once."""
        at = max([hint, *(number for number, _ in self.listed())])
        while True:
            above = next((one for one in reversed(milestones_above(at)) if self.has(one)), None)
            if above is not None:
                at = above
                continue
            at = self._end_of_block(at)
            if not self.is_passed(at):
                return at

    def _end_of_block(self, number: int) -> int:
        """Return the first number from this one on that is missing, if there is no milestone above it."""
        low, high = number, milestones_above(number)[0]
        while low < high:
            middle = (low + high) // 2
            if self.has(middle):
                low = middle + 1
            else:
                high = middle
        return low

    def listed(self) -> Iterator[tuple[int, int]]:
        """Yield the numbers that a listing shows, which may be old, with their sizes."""
        for found in self._bucket.find(self.folder):
            last = found.name.rpartition("/")[2]
            if len(last) == _DIGITS and last.isdigit():
                yield int(last), found.size

    def delete_below(self, horizon: int, end: int, kept_bytes: int = 0) -> int:
        """Delete the numbers below a horizon that may go and have more bytes than `kept_bytes`; return how many.

        All numbers below `end` must have been given.
        """
        doomed = [
            number
            for number, size in self.listed()
            if number < horizon and size > kept_bytes and is_deletable(number, end)
        ]
        for number in doomed:
            self._bucket.delete(self.name(number))
        return len(doomed)


def milestones_above(number: int) -> list[int]:
    """Return the next milestone of each size above a number, the nearest first."""
    return [(number // size + 1) * size for size in MILESTONES]


def is_deletable(number: int, end: int) -> bool:
    """Return whether a number may be deleted when all numbers below `end` were given."""
    for size in MILESTONES:
        if number % size:
            return (number // size + 1) * size < end
    return False


def block_of(number: int) -> int:
    """Return in which stretch between the smallest milestones a number is: the next one lets numbers go."""
    return number // MILESTONES[0]
