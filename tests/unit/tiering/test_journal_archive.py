import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from everlog.base import Fenced, StorageError, Unavailable
from everlog.streams import LocalJournal
from everlog.tiering import JournalArchive, JournalReader, JournalWriter, MemoryBucket


class Server:
    """A server with a local journal and a bucket."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.bucket = MemoryBucket()
        self.opened: list[LocalJournal | JournalArchive] = []

    def journal(self, name: str = "journal", **how: int) -> LocalJournal:
        self.opened.append(LocalJournal.open(str(self.path / name), **how))
        return self.opened[-1]

    def archive(self, journal: LocalJournal, **how: float) -> JournalArchive:
        self.opened.append(JournalArchive(journal, self.bucket, "archive", **({"period_s": 0, "idle_s": 60} | how)))
        return self.opened[-1]

    def copied(self) -> list[tuple[int, str, bytes]]:
        reader = JournalReader(self.bucket, "archive")
        reader.follow()
        return list(reader.read(reader.start, reader.end))

    def close(self) -> None:
        while self.opened:
            self.opened.pop().close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path)
    yield made
    made.close()


def write(journal: LocalJournal, *effects: bytes) -> int:
    journal.append([("stream", effect) for effect in effects])
    done = threading.Event()
    journal.commit(lambda end: done.set(), lambda error: None)
    assert done.wait(20)
    return journal.end


def wait(archive: JournalArchive, end: int) -> int:
    told: list[int] = []
    done = threading.Event()
    archive.want(end, lambda reached: (told.append(reached), done.set()))
    assert done.wait(20)
    return told[0]


def test_what_somebody_waits_for_reaches_the_bucket_at_its_position(server: Server) -> None:
    journal = server.journal()
    archive = server.archive(journal)
    write(journal, b"one", b"two")
    assert wait(archive, 2) == 2 == archive.end
    assert wait(archive, 1) == 2
    assert server.copied() == [(0, "stream", b"one"), (1, "stream", b"two")]


def test_the_copy_goes_on_after_a_restart(server: Server) -> None:
    journal = server.journal()
    wait(server.archive(journal), write(journal, b"one"))
    server.close()
    journal = server.journal()
    write(journal, b"two")
    archive = server.archive(journal)
    assert wait(archive, 2) == 2
    assert [effect for _, _, effect in server.copied()] == [b"one", b"two"]


def test_who_waits_for_what_is_in_the_bucket_already_is_told(server: Server) -> None:
    journal = server.journal()
    wait(server.archive(journal), write(journal, b"one"))
    server.close()
    gate = threading.Event()
    follow = server.bucket.get_range

    def held(name: str, start: int, size: int) -> bytes | None:
        assert gate.wait(20)
        return follow(name, start, size)

    server.bucket.get_range = held  # type: ignore[method-assign]
    archive = server.archive(server.journal())
    told = threading.Event()
    archive.want(1, lambda end: told.set())
    gate.set()
    assert told.wait(20)


def test_close_copies_what_is_committed(server: Server) -> None:
    journal = server.journal()
    archive = server.archive(journal, period_s=60)
    write(journal, b"one")
    archive.close()
    assert [effect for _, _, effect in server.copied()] == [b"one"]


def test_what_the_journal_has_trimmed_is_told_as_trimmed(server: Server) -> None:
    class Trimmed:
        epoch, start, committed = 1, 100, 102

        def read(self, position: int, end: int) -> Iterator[tuple[int, str, bytes]]:
            return iter([(at, "stream", b"%d" % at) for at in range(position, end)])

    archive = server.archive(Trimmed())  # type: ignore[arg-type]
    assert wait(archive, 102) == 102
    assert server.copied() == [(100, "stream", b"100"), (101, "stream", b"101")]


def test_a_disk_that_lost_what_the_bucket_has_is_noticed(server: Server) -> None:
    journal = server.journal()
    wait(server.archive(journal), write(journal, b"one", b"two"))
    server.close()
    fresh = server.journal("another", epoch=9)
    write(fresh, b"other")
    archive = server.archive(fresh)
    archive.close()
    for _ in range(2):  # however often it tries
        with pytest.raises(StorageError):
            archive._copy()
    assert isinstance(archive.trouble, StorageError)
    assert "restore the shard" in str(archive.trouble)
    assert archive.end == 0


def test_another_owner_of_the_bucket_ends_the_copy(server: Server) -> None:
    journal = server.journal()
    archive = server.archive(journal)
    wait(archive, write(journal, b"one"))
    JournalWriter(server.bucket, "archive", 5).take_over()
    write(journal, b"two")
    archive.want(2, lambda end: pytest.fail("it is not in the bucket"))
    archive._thread.join(20)
    assert isinstance(archive.trouble, Fenced)
    assert archive.end == 1


def test_a_bucket_that_is_away_for_a_while_costs_time_only(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = server.journal()
    archive = server.archive(journal)
    wait(archive, write(journal, b"one"))
    create, left, is_away = server.bucket.create, [2], threading.Event()

    def away(name: str, data: bytes) -> bytes | None:
        if left[0]:
            left[0] -= 1
            is_away.set()
            raise Unavailable("no answer")
        return create(name, data)

    monkeypatch.setattr(server.bucket, "create", away)
    archive.want(write(journal, b"two"), lambda end: None)
    assert is_away.wait(20)
    assert wait(archive, write(journal, b"three", b"four")) == 4
    assert archive.trouble is None
    assert [effect for _, _, effect in server.copied()] == [b"one", b"two", b"three", b"four"]


def test_trimming_lets_copies_go(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everlog.tiering.numbered.MILESTONES", (4, 16, 64))
    journal = server.journal()
    archive = server.archive(journal)
    for number in range(20):
        wait(archive, write(journal, b"%d" % number))
    archive.trim(18)
    wait(archive, write(journal, b"20"))
    for number in range(21, 26):
        wait(archive, write(journal, b"%d" % number))
    assert server.copied()[0][0] == 18
    assert len(list(server.bucket.find("archive"))) < 15
