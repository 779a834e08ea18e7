"""The journal of a state shard in a local directory: crashes of its disk, failures, and its lock."""

from random import Random

import pytest
from tests.simulated_disk import SimulatedDisk

from everlog.base import StorageError
from everlog.commitlog import LogSettings
from everlog.streams import LocalJournal

SMALL = LogSettings(segment_bytes=2000, retention_bytes=0, merge_below=0)


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
