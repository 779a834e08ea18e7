import threading
from collections.abc import Callable

import pytest

from everlog.base import EverlogError, Fenced, StorageError, Unavailable
from everlog.tiering import JournalReader, MemoryBucket, ObjectJournal
from everlog.tiering.journal_format import HEADER_BYTES


class TroubledBucket(MemoryBucket):
    """A bucket that can't be reached, or whose replies get lost, when a test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.before: Callable[[str], None] = lambda name: None
        self.after: Callable[[str], None] = lambda name: None
        self.creates: list[str] = []

    def create(self, name: str, data: bytes) -> bytes | None:
        self.before(name)
        self.creates.append(name)
        answer = super().create(name, data)
        self.after(name)
        return answer


class Answers:
    def __init__(self) -> None:
        self.all: list[int | EverlogError] = []
        self.told = threading.Semaphore(0)

    def __call__(self, what: int | EverlogError) -> None:
        self.all.append(what)
        self.told.release()

    def next(self) -> int | EverlogError:
        assert self.told.acquire(timeout=20)
        return self.all[-1]


def read_all(bucket: MemoryBucket) -> list[tuple[int, str, bytes]]:
    reader = JournalReader(bucket, "shard")
    reader.follow()
    return list(reader.read(0, reader.end))


def fails(times: int) -> Callable[[str], None]:
    """Return what fails so many times."""
    left = [times]

    def fail(name: str) -> None:
        if left[0]:
            left[0] -= 1
            raise Unavailable("no answer")

    return fail


@pytest.mark.parametrize("where", ["before", "after"])
def test_trouble_that_passes_costs_time_and_nothing_else(where: str) -> None:
    bucket = TroubledBucket()
    journal = ObjectJournal(bucket, "shard", 1, group_s=0)
    setattr(bucket, where, fails(3))
    journal.append([("a", b"one"), ("b", b"two")])
    answers = Answers()
    journal.commit(answers, answers)
    assert answers.next() == 2
    assert journal.trouble is None
    journal.close()
    assert [effect for _, _, effect in journal.read(0, 2)] == [b"one", b"two"]
    assert len(list(bucket.find("shard"))) == 2


def test_a_takeover_whose_reply_was_lost_is_made_once() -> None:
    bucket = TroubledBucket()
    bucket.after = fails(2)
    journal = ObjectJournal(bucket, "shard", 5, group_s=0)
    assert journal.epoch == 5
    assert len(list(bucket.find("shard"))) == 1
    journal.close()


def test_a_bucket_that_is_away_at_the_start_is_an_error() -> None:
    bucket = TroubledBucket()
    bucket.before = fails(1000)
    with pytest.raises(Unavailable):
        ObjectJournal(bucket, "shard", 1)


def test_close_does_not_wait_for_a_bucket_that_is_away() -> None:
    bucket = TroubledBucket()
    journal = ObjectJournal(bucket, "shard", 1, group_s=0)
    bucket.before = fails(1_000_000)
    answers = Answers()
    journal.append([("a", b"one")])
    journal.commit(answers, answers)
    journal.close()
    assert type(answers.next()) is Unavailable
    with pytest.raises(Unavailable):
        journal.append([("a", b"two")])


def test_what_gathers_while_an_object_is_written_goes_in_one() -> None:
    bucket = TroubledBucket()
    journal = ObjectJournal(bucket, "shard", 1, group_s=0)
    under_way, go_on = threading.Event(), threading.Event()

    def hold(name: str) -> None:
        under_way.set()
        assert go_on.wait(20)

    bucket.before = hold
    answers = Answers()
    for number in range(50):
        journal.append([("a", b"%d" % number)])
        journal.commit(answers, answers)
        if number == 0:
            assert under_way.wait(20)
    go_on.set()
    for _ in range(50):
        answers.next()
    assert answers.all == [1, *[50] * 49]
    assert len(bucket.creates) == 3  # the fence, the first, all others
    journal.close()


def test_an_object_has_a_limit_in_bytes() -> None:
    bucket = TroubledBucket()
    journal = ObjectJournal(bucket, "shard", 1, group_s=0, object_bytes=1000)
    journal.append([("a", b"x" * 400) for _ in range(5)] + [("a", b"y" * 5000)])
    answers = Answers()
    journal.commit(answers, answers)
    assert answers.next() == 6
    journal.close()
    assert len(bucket.creates) == 1 + 4
    assert [len(effect) for _, _, effect in journal.read(0, 6)] == [400] * 5 + [5000]


@pytest.mark.parametrize("at", [0, 5, 20, 60, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 30, -1])
def test_a_changed_byte_is_noticed(at: int) -> None:
    bucket = MemoryBucket()
    journal = ObjectJournal(bucket, "shard", 1, group_s=0)
    journal.append([("a", b"one"), ("b", b"two")])
    journal.close()
    name = f"shard/{1:020d}"
    data = bytearray(bucket.get(name) or b"")
    data[at] ^= 1
    bucket.put(name, bytes(data))
    with pytest.raises(StorageError):
        read_all(bucket)


def test_a_reader_follows_the_owner() -> None:
    bucket = MemoryBucket()
    reader = JournalReader(bucket, "shard")
    assert reader.follow() is None
    journal = ObjectJournal(bucket, "shard", 1, group_s=0)
    journal.append([("a", b"one")])
    journal.close()
    reader.follow()
    assert list(reader.read(0, 10)) == [(0, "a", b"one")]


def test_a_sleeper_finds_its_fence_however_much_was_trimmed_since() -> None:
    bucket = MemoryBucket()
    sleeper = ObjectJournal(bucket, "shard", 1, group_s=0)
    sleeper.append([("a", b"late")])
    journal = ObjectJournal(bucket, "shard", 2, group_s=0)
    answers = Answers()
    for number in range(1200):
        journal.append([("a", b"%d" % number)])
        journal.commit(answers, answers)
        answers.next()
        journal.allow_trim(number)
        journal.trim(number)
    assert len(list(bucket.find("shard"))) < 600
    sleeper.commit(answers, answers)
    assert isinstance(answers.next(), Fenced)
    journal.close()
    sleeper.close()


def test_what_is_read_stays_in_memory_up_to_a_limit() -> None:
    class Counting(MemoryBucket):
        gets = 0

        def get(self, name: str) -> bytes | None:
            self.gets += 1
            return super().get(name)

        def get_range(self, name: str, start: int, size: int) -> bytes | None:
            return (MemoryBucket.get(self, name) or b"")[start : start + size] or None

    bucket = Counting()
    journal = ObjectJournal(bucket, "shard", 1, group_s=0, object_bytes=1)
    journal.append([("a", b"x" * 1000) for _ in range(20)])
    journal.close()
    reader = JournalReader(bucket, "shard", cache_bytes=5000)
    reader.follow()
    bucket.gets = 0
    for _ in range(3):
        assert len(list(reader.read(16, 20))) == 4
    assert bucket.gets == 4
    for _ in range(2):
        assert len(list(reader.read(0, 20))) == 20
    assert bucket.gets > 4 + 20
    assert reader._cached_bytes <= 5000
