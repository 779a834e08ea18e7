"""What a state shard relies on, over every journal that this room has: real files, a simulated disk, memory."""

import threading
from random import Random

import pytest
from tests.simulated_disk import SimulatedDisk
from tests.state_shards import JournalDisk, MemoryJournal

from everlog.base import StorageError
from everlog.commitlog import LogSettings
from everlog.streams import LocalJournal

SMALL = LogSettings(segment_bytes=2000, retention_bytes=0, merge_below=0)


class Files:
    """Journals in real files, with threads of their own."""

    def __init__(self, path):
        self.directory = str(path / "journal")

    def open(self):
        return LocalJournal.open(self.directory, settings=SMALL)

    def commit(self, journal):
        ended, told = threading.Event(), []
        journal.commit(lambda end: (told.append(end), ended.set()), lambda error: (told.append(error), ended.set()))
        assert ended.wait(30)
        return told[0]


class Memory:
    """Journals in memory."""

    def __init__(self, path):
        self.disk = JournalDisk()

    def open(self):
        return MemoryJournal(self.disk)

    def commit(self, journal):
        told = []
        journal.commit(told.append, told.append)
        return told[0]


@pytest.fixture(params=[Files, Memory], ids=["files", "memory"])
def place(request, tmp_path):
    return request.param(tmp_path)


def test_what_is_committed_comes_back_in_order(place):
    journal = place.open()
    assert (journal.start, journal.end, journal.committed) == (0, 0, 0)
    assert journal.append([("a", b"1"), ("b/ü", b""), ("a", b"3" * 500)]) == 0
    assert (journal.end, journal.committed) == (3, 0)
    assert list(journal.read(0, 3)) == []
    assert place.commit(journal) == 3
    assert journal.append([("c", b"4")]) == 3
    assert place.commit(journal) == 4
    assert [one[:2] for one in journal.read(0, 4)] == [(0, "a"), (1, "b/ü"), (2, "a"), (3, "c")]
    assert list(journal.read(1, 99, "a")) == [(2, "a", b"3" * 500)]
    assert list(journal.read(0, 4, "nobody")) == []
    journal.close()


def test_a_commit_of_nothing_is_answered(place):
    journal = place.open()
    assert place.commit(journal) == 0
    journal.close()


def test_the_next_owner_has_a_higher_epoch_and_the_same_records(place):
    journal = place.open()
    journal.append([("a", b"1"), ("b", b"2")])
    place.commit(journal)
    journal.append([("a", b"committed by closing")])
    place.commit(journal)
    journal.close()
    again = place.open()
    assert again.epoch > journal.epoch > 0
    assert (again.start, again.end, again.committed) == (0, 3, 3)
    assert [effect for _, _, effect in again.read(0, 3)] == [b"1", b"2", b"committed by closing"]
    assert again.append([("a", b"4")]) == 3
    again.close()


def test_trimmed_records_are_not_read(place):
    journal = place.open()
    for _ in range(40):
        journal.append([("a", b"x" * 500)])
        place.commit(journal)
    journal.trim(30)
    start = journal.start
    assert 0 < start <= 30
    with pytest.raises(StorageError, match="below"):
        list(journal.read(start - 1, 40))
    assert [one[0] for one in journal.read(start, 40)] == list(range(start, 40))
    journal.close()
    again = place.open()
    assert (again.start, again.end) == (start, 40)
    again.close()


def test_many_names_are_known_apart(place):
    journal = place.open()
    journal.append([(f"s/{n}", b"%d" % n) for n in range(3000)])
    place.commit(journal)
    assert [one[2] for one in journal.read(0, 3000)] == [b"%d" % n for n in range(3000)]
    assert list(journal.read(0, 3000, "s/2999")) == [(2999, "s/2999", b"2999")]
    journal.close()


def test_a_crash_keeps_what_was_committed():
    for seed in range(20):
        random = Random(seed)
        disk = SimulatedDisk(random)
        journal = LocalJournal.open("journal", disk=disk, settings=SMALL, epoch=1, background=False)
        told = []
        for n in range(random.randrange(1, 30)):
            journal.append([("a", b"%d" % n), ("b", b"." * random.randrange(300))])
            journal.commit(told.append, told.append)
            if random.random() < 0.6:
                journal._log.commit_step()
        committed = max(told, default=0)
        disk.crash()
        again = LocalJournal.open("journal", disk=disk, settings=SMALL, epoch=2, background=False)
        assert again.committed >= committed
        found = [effect for _, name, effect in again.read(0, committed) if name == "a"]
        assert found == [b"%d" % n for n in range(len(found))]
        assert len(found) == committed // 2
        again.close()


def test_a_journal_that_gives_up_says_so(tmp_path):
    journal = LocalJournal.open(str(tmp_path / "journal"))
    told = []
    journal.append([("a", b"1")])
    with journal._gate:
        journal._waiting.append((1, told.append, told.append))
    journal._log._committer.fail("the disk is gone", OSError("gone"))
    assert isinstance(told[0], StorageError)
    journal.commit(told.append, told.append)
    assert isinstance(told[1], StorageError)
    with pytest.raises(StorageError):
        journal.append([("a", b"2")])
    journal._log.close()


def test_one_process_has_a_journal_open(tmp_path):
    journal = LocalJournal.open(str(tmp_path / "journal"))
    with pytest.raises(StorageError):
        LocalJournal.open(str(tmp_path / "journal"))
    journal.close()
